"""Latent spaces: a VAE with its revision, as stored in a latent table's metadata and checked by the trainer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass

from schemas.errors import LatentSpaceMismatch, SchemaMismatch

METADATA_KEY = b"vidpipe.latent_space"


@dataclass(frozen=True, kw_only=True)
class LatentSpace:
    """What a stored latent means.

    Attributes:
        name: folder name under `latents/`: [a-z0-9._-].
        vae: registry name that `schemas.registry.VAES` resolves, to decode with.
        source: path or hub id of the weights; empty for weights-free codecs.
        revision: weights hash (hex), or the codec's version; two spaces with different revisions never mix.
        channels: latent channels C.
        stride_t, stride_h, stride_w: pixels a latent element; F = stride_t * k + 1 frames give k + 1 latent frames.
        mean, std: per channel, raw = stored * std + mean; stored latents are already normalised.
        posterior: `mean`, or `mean_logvar` (2C channels stored, mean first).
        dtype: `bfloat16`, `float16` or `float32`, of the stored bytes (little endian, C order, [C, T, H, W]).
    """

    name: str
    vae: str
    revision: str
    channels: int
    stride_t: int
    stride_h: int
    stride_w: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str = ""
    posterior: str = "mean"
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(map(float, self.mean)))
        object.__setattr__(self, "std", tuple(map(float, self.std)))
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise LatentSpaceMismatch(
                f"latent space {self.name}: {self.channels} channels, "
                f"but {len(self.mean)} means and {len(self.std)} stds"
            )
        if self.posterior not in ("mean", "mean_logvar"):
            raise LatentSpaceMismatch(f"latent space {self.name}: posterior must be mean or mean_logvar")
        if self.dtype not in ("bfloat16", "float16", "float32"):
            raise LatentSpaceMismatch(f"latent space {self.name}: dtype must be bfloat16, float16 or float32")

    @property
    def element_bytes(self) -> int:
        """Bytes an element of a stored latent."""
        return 4 if self.dtype == "float32" else 2

    def num_latent_frames(self, num_frames: int) -> int:
        """Latent frames of `num_frames` = stride_t * k + 1 video frames."""
        return (num_frames - 1) // self.stride_t + 1

    def to_json(self) -> str:
        """Serialise for table metadata."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> LatentSpace:
        """Read `to_json`'s form; tuples come back as tuples."""
        return cls(**json.loads(text))

    @classmethod
    def from_metadata(cls, metadata: Mapping[bytes, bytes] | None, where: str) -> LatentSpace:
        """Read the space of a latent table; `where` names the table in the error."""
        if not metadata or METADATA_KEY not in metadata:
            raise SchemaMismatch(f"{where}: no latent space in the table's metadata; it is not a latent table")
        return cls.from_json(metadata[METADATA_KEY])

    def require(self, other: LatentSpace, where: str) -> None:
        """Raise LatentSpaceMismatch unless `other`, found at `where`, holds latents that mean the same as ours."""
        ours, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        differing = [k for k in ours if k not in ("name", "source") and ours[k] != theirs[k]]
        if differing:
            detail = ", ".join(f"{k} {theirs[k]!r} instead of {ours[k]!r}" for k in differing)
            raise LatentSpaceMismatch(
                f"{where} holds latents of space {other.name!r}, but {self.name!r} is wanted ({detail}); "
                "choose tables of that space, or encode again with its VAE"
            )
