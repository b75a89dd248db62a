"""Sections of a data recipe that belong to the engine and its stages; `vidpipe.recipe` puts them together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from schemas.errors import UserError
from vidpipe.registry import DECODERS, load_decoder


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name} must be at least 1, found {value}")


@dataclass(frozen=True, kw_only=True)
class IngestConfig:
    """`[ingest]`: which files are looked at.

    Attributes:
        recursive: descend into folders.
        files_per_unit: files that one task probes.
    """

    recursive: bool = True
    files_per_unit: int = 64

    def __post_init__(self) -> None:
        _at_least_one("files_per_unit", self.files_per_unit)


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """`[[score]]`: a scorer that is run later than the analyze pass, into `scores/<name>.lance`.

    Its columns must be new: a scorer of the analyze pass under other parameters is a change of `[analyze]`.
    """

    name: str
    params: dict[str, Any] = field(default_factory=dict)
    where: str = "true"


@dataclass(frozen=True, kw_only=True)
class NearDuplicatesConfig:
    """`[near_duplicates]`.

    Attributes:
        radius: perceptual hashes that differ in at most this many bits of 64 are one picture.
    """

    radius: int = 6

    def __post_init__(self) -> None:
        if not 0 <= self.radius <= 32:
            raise UserError(f"near_duplicates.radius must be in [0, 32] bits, found {self.radius}")


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """`[split]`: `heldout` is a share in [0, 1) of the near-duplicate groups, chosen by keyed hash."""

    heldout: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.heldout < 1:
            raise UserError(f"split.heldout must be in [0, 1), found {self.heldout}")


@dataclass(frozen=True, kw_only=True)
class CaptionerConfig:
    """`[[caption.captioners]]`: a captioner's registry name and its own parameters."""

    name: str
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CaptionConfig:
    """`[caption]`: which clips are captioned (`where`), and by whom; every captioner sees every selected clip."""

    where: str = "true"
    captioners: tuple[CaptionerConfig, ...] = (CaptionerConfig(name="sidecar"), CaptionerConfig(name="clip_table"))
    clips_per_unit: int = 64

    def __post_init__(self) -> None:
        _at_least_one("clips_per_unit", self.clips_per_unit)
        if not self.captioners:
            raise UserError("captioners: expected at least one; leave `caption` out of `stages` for no captions")


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    """`[embed]`: the text encoder by registry name, its weights and its own parameters."""

    encoder: str = "hashed-ngrams"
    source: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    texts_per_unit: int = 1024

    def __post_init__(self) -> None:
        _at_least_one("texts_per_unit", self.texts_per_unit)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """`[engine]`: how the work is run; never part of a fingerprint.

    Attributes:
        workers: worker processes of the embedded cluster; 0 for one a core.
        in_flight: units handed out at once, per worker.
        unit_minutes: footage that one analyze unit holds; less where there is not enough for two units a worker.
        unit_mb: latents that one encode unit holds, so that a fragment is worth reading; less likewise.
        deadline_seconds: a unit's time limit, beside `deadline_per_minute` seconds for each minute of its footage.
        row_deadline_seconds: likewise for each row (a file, a clip) of a unit, where the stage says which it is at.
        commit_seconds: finished units wait at most this long before they are committed.
        max_error_fraction: the run stops when more than this share of a stage's rows fail by crash, deadline or error,
            or get no answer of a captioner (not by a reason of the file itself), counted once there are twenty.
        lease_seconds: how long a coordinator on another host may be silent before its lease can be taken.
        device: `auto`, `cpu` or `cuda`, for models.
        decoder: back end for decoding, or `auto`.
    """

    workers: int = 0
    in_flight: int = 2
    unit_minutes: float = 5.0
    unit_mb: float = 256.0
    deadline_seconds: float = 600.0
    row_deadline_seconds: float = 120.0
    deadline_per_minute: float = 120.0
    commit_seconds: float = 10.0
    max_error_fraction: float = 0.5
    lease_seconds: float = 60.0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    decoder: str = "auto"

    def __post_init__(self) -> None:
        for name in (
            "in_flight",
            "unit_minutes",
            "unit_mb",
            "deadline_seconds",
            "row_deadline_seconds",
            "lease_seconds",
        ):
            if not getattr(self, name) > 0:  # not a number is refused too
                raise UserError(f"engine.{name} must be above 0, found {getattr(self, name)}")
        for name in ("workers", "deadline_per_minute", "commit_seconds"):
            if not getattr(self, name) >= 0:
                raise UserError(f"engine.{name} must be at least 0, found {getattr(self, name)}")
        if not 0 <= self.max_error_fraction <= 1:
            raise UserError(f"engine.max_error_fraction must be in [0, 1], found {self.max_error_fraction}")
        if self.decoder not in ("auto", *DECODERS):
            load_decoder(self.decoder)  # somebody else's, or an error that names the nearest
