"""What a conditioner is: from a clip's frames, as the VAE sees them, to a tensor that is stored beside the latent."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from schemas.buckets import Bucket
from schemas.columns import Column
from schemas.conditioning import MODELS, Conditioning
from schemas.errors import UserError, nearest
from vidpipe.construct import construct

if TYPE_CHECKING:
    import torch

    from vidpipe.vaes.base import Vae


@dataclass(frozen=True, kw_only=True)
class ConditionerConfig:
    """`[[encode.conditioning]]`: a conditioner's registry name, its weights and its own parameters.

    `source` is the VAE's where it is left out: a whole pipeline's folder or hub id has both.
    """

    name: str
    source: str = ""
    params: dict[str, Any] = field(default_factory=dict)


class Conditioner(abc.ABC):
    """Makes one column.

    Attributes:
        name: registry name.
        column: of the latent table.
        meaning: of the column.
        normalised: in the latent space's normalisation.
    """

    name: str
    column: str
    meaning: str
    normalised: bool = False

    @property
    def revision(self) -> str:
        """Of its own weights; empty for conditioners that use the VAE's."""
        return ""

    def identity(self) -> dict[str, Any]:
        """What shapes the column beside VAE and clip, for the encode stage's fingerprint: JSON values."""
        return {"name": self.name, "revision": self.revision}

    @abc.abstractmethod
    def shape(self, vae: Vae, bucket: Bucket) -> tuple[int, ...]:
        """Of one row's tensor."""

    @abc.abstractmethod
    def encode(self, frames_BCTHW: torch.Tensor, vae: Vae) -> torch.Tensor:
        """From uint8 frames of a bucket's shape to [B, *shape] in the latent space's dtype."""

    def columns(self) -> tuple[Column, Column]:
        """The column and its checksum."""
        return (
            Column(
                name=f"{self.column}_crc32",
                type=pa.uint32(),
                nullable=False,
                meaning=f"crc32 of the bytes of {self.column}",
            ),
            Column(
                name=self.column, type=pa.large_binary(), nullable=False, blob=True, unit="bytes", meaning=self.meaning
            ),
        )

    def described(self, vae: Vae, bucket: Bucket) -> Conditioning:
        """For the table's metadata."""
        return Conditioning(
            column=self.column,
            conditioner=self.name,
            revision=self.revision,
            shape=self.shape(vae, bucket),
            dtype=vae.space.dtype,
            normalised=self.normalised,
        )


def wanted(conditioning: Iterable[ConditionerConfig], for_model: str) -> list[ConditionerConfig]:
    """A recipe's conditioners and those that its model wants, each once."""
    if for_model and for_model not in MODELS:
        raise UserError(f"encode.for_model: unknown model {for_model!r}{nearest(for_model, MODELS)}")
    found = {c.name: c for c in conditioning}
    for name in MODELS.get(for_model, ()):
        found.setdefault(name, ConditionerConfig(name=name))
    return list(found.values())


def make_conditioner(config: ConditionerConfig, *, source: str, device: str) -> Conditioner:
    """Conditioner by name; `source` is the VAE's. UserError on an unknown name or parameter."""
    from vidpipe.registry import load_conditioner

    where = f"encode.conditioning.{config.name}"
    return construct(load_conditioner(config.name), config.params, where, source=config.source or source, device=device)
