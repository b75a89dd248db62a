"""What a model wants stored beside its latents, and how a latent table says what it has.

A model's image conditions come from pixels, and cannot be derived from the latent. Which conditioners (by the names of
`vidpipe.registry.CONDITIONERS`) a model wants is declared here, where both packages see it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

METADATA_KEY = b"vidpipe.conditioning"

MODELS: dict[str, tuple[str, ...]] = {
    "wan2.1-i2v": ("first-frame", "clip-image"),
    "wan2.1-flf2v": ("first-last-frame", "clip-first-last"),
    "wan2.2-i2v": ("first-frame",),
    "hunyuan-video-i2v": ("reference-frames",),
}
"""Conditioners of each model. Wan 2.2's 5B model takes the first latent frame itself, so it wants none."""


@dataclass(frozen=True, kw_only=True)
class Conditioning:
    """One conditioning column of a latent table: raw bytes a row, little endian, C order.

    Attributes:
        column: its name; `<column>_crc32` holds the checksum.
        conditioner: what made it, and `revision` of its weights.
        shape: of one row's tensor.
        dtype: `bfloat16`, `float16` or `float32`.
        normalised: in the latent space's normalisation.
    """

    column: str
    conditioner: str
    revision: str
    shape: tuple[int, ...]
    dtype: str
    normalised: bool


def to_json(columns: list[Conditioning]) -> str:
    """For table metadata under METADATA_KEY."""
    return json.dumps([asdict(c) for c in columns], sort_keys=True)


def from_metadata(metadata: Mapping[bytes, bytes] | None) -> list[Conditioning]:
    """Conditioning columns of a latent table; empty if it has none."""
    found = json.loads((metadata or {}).get(METADATA_KEY, b"[]"))
    return [Conditioning(**{**c, "shape": tuple(c["shape"])}) for c in found]
