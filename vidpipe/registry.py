"""Names of shot detectors, scorers, captioners, conditioners and decoders as `module:Class` strings.

They are imported only when used. Third parties add theirs under the entry point groups `vidpipe.shot_detectors`,
`vidpipe.scorers`, `vidpipe.captioners`, `vidpipe.conditioners` and `vidpipe.decoders`. VAEs and text encoders are in
`schemas.registry`, since the trainer loads them too.
"""

from __future__ import annotations

from typing import Any

from schemas.registry import load

SHOT_DETECTORS: dict[str, str] = {
    "adaptive": "vidpipe.shots.colour:Adaptive",
    "content": "vidpipe.shots.colour:Content",
    "fades": "vidpipe.shots.fades:Fades",
    "hash": "vidpipe.shots.pyscenedetect:Hash",
    "histogram": "vidpipe.shots.pyscenedetect:Histogram",
    "structure": "vidpipe.shots.structure:Structure",
    "threshold": "vidpipe.shots.pyscenedetect:Threshold",
    "transnetv2": "vidpipe.shots.transnetv2:TransNetV2",
}

SCORERS: dict[str, str] = {
    "blur": "vidpipe.scorers.blur:Blur",
    "letterbox": "vidpipe.scorers.letterbox:Letterbox",
    "luminance": "vidpipe.scorers.luminance:Luminance",
    "motion": "vidpipe.scorers.motion:Motion",
    "phash": "vidpipe.scorers.phash:PerceptualHash",
    "static_ratio": "vidpipe.scorers.static_ratio:StaticRatio",
}

CAPTIONERS: dict[str, str] = {
    "clip_table": "vidpipe.captioners.clip_table:ClipTable",
    "openai": "vidpipe.captioners.openai_server:OpenAICaptioner",
    "sidecar": "vidpipe.captioners.sidecar:Sidecar",
}

CONDITIONERS: dict[str, str] = {
    "clip-first-last": "vidpipe.conditioners.clip_image:ClipFirstLast",
    "clip-image": "vidpipe.conditioners.clip_image:ClipImage",
    "first-frame": "vidpipe.conditioners.frames:FirstFrame",
    "first-last-frame": "vidpipe.conditioners.frames:FirstLastFrame",
    "reference-frames": "vidpipe.conditioners.frames:ReferenceFrames",
}

DECODERS: dict[str, str] = {
    "pyav": "vidpipe.media.pyav:PyAvReader",
    "torchcodec": "vidpipe.media.torchcodec_cpu:TorchcodecReader",
    "torchcodec-cuda": "vidpipe.media.torchcodec_cuda:TorchcodecCudaReader",
    "dali": "vidpipe.media.dali:DaliReader",
}


def load_shot_detector(name: str) -> Any:
    """Class of a shot detector; UserError with the nearest known name."""
    return load(SHOT_DETECTORS, "vidpipe.shot_detectors", name)


def load_scorer(name: str) -> Any:
    """Class of a scorer; UserError with the nearest known name."""
    return load(SCORERS, "vidpipe.scorers", name)


def load_captioner(name: str) -> Any:
    """Class of a captioner; UserError with the nearest known name."""
    return load(CAPTIONERS, "vidpipe.captioners", name)


def load_conditioner(name: str) -> Any:
    """Class of a conditioner; UserError with the nearest known name."""
    return load(CONDITIONERS, "vidpipe.conditioners", name)


def load_decoder(name: str) -> Any:
    """Class of a decoder back end; UserError with the nearest known name."""
    return load(DECODERS, "vidpipe.decoders", name)
