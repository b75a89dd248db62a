"""Names of VAEs and text encoders as `module:Class` strings, plus what third parties add by entry point.

Both packages load by name through here, so that the trainer decodes and encodes text without naming vidpipe.
Third parties register under the entry point groups `vidpipe.vaes` and `vidpipe.text_encoders`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from schemas.errors import UserError, nearest

VAES: dict[str, str] = {
    "dct": "vidpipe.vaes.dct:DctVae",
    "wan2.1": "vidpipe.vaes.wan21:Wan21Vae",
    "wan2.2": "vidpipe.vaes.wan21:Wan22Vae",
    "hunyuan-video": "vidpipe.vaes.hunyuan_video:HunyuanVideoVae",
    "cogvideox": "vidpipe.vaes.cogvideox:CogVideoXVae",
    "ltx-video": "vidpipe.vaes.ltx_video:LtxVideoVae",
    "flux": "vidpipe.vaes.image:FluxVae",
    "sd3": "vidpipe.vaes.image:Sd3Vae",
}

TEXT_ENCODERS: dict[str, str] = {
    "hashed-ngrams": "vidpipe.text_encoders.hashed_ngrams:HashedNgrams",
    "clip-text": "vidpipe.text_encoders.t5:ClipTextEncoder",
    "llm": "vidpipe.text_encoders.t5:LLMEncoder",
    "t5": "vidpipe.text_encoders.t5:T5Encoder",
    "umt5": "vidpipe.text_encoders.t5:UMT5Encoder",
}


def load(names: Mapping[str, str], group: str, name: str) -> Any:
    """Import the class called `name`; raise UserError with the nearest known name."""
    target = names.get(name)
    if target is None:
        from importlib.metadata import entry_points  # slow to import, and rarely needed

        found = {point.name: point for point in entry_points(group=group)}
        if name in found:
            return found[name].load()
        raise UserError(f"unknown {group.rsplit('.', 1)[-1]} {name!r}{nearest(name, [*names, *found])}")
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def load_vae(name: str) -> Any:
    """Class of a VAE by registry name."""
    return load(VAES, "vidpipe.vaes", name)


def load_text_encoder(name: str) -> Any:
    """Class of a text encoder by registry name."""
    return load(TEXT_ENCODERS, "vidpipe.text_encoders", name)
