"""A data recipe: one TOML file that says what every stage of `vidpipe run` does.

Each section maps onto one frozen dataclass. The sections that shape output (and so enter a stage's fingerprint) hold
no machine facts; those are in `[engine]`, which never changes a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from schemas import config
from schemas.errors import UserError, nearest
from vidpipe.analyze import AnalyzeConfig
from vidpipe.encode_config import EncodeConfig
from vidpipe.sections import (
    CaptionConfig,
    EmbedConfig,
    EngineConfig,
    IngestConfig,
    NearDuplicatesConfig,
    ScoreConfig,
    SplitConfig,
)

NEEDS = {
    "checksum": ("ingest",),
    "analyze": ("ingest",),
    "score": ("analyze",),
    "near_duplicates": ("analyze",),
    "split": ("near_duplicates",),
    "caption": ("analyze",),
    "embed": ("caption",),
    "encode": ("analyze",),
}
"""Stages whose tables a stage reads."""
STAGES = ("ingest", "checksum", "analyze", "score", "near_duplicates", "split", "caption", "embed", "encode")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The whole recipe. `stages` names those that run, in the pipeline's own order."""

    stages: tuple[str, ...] = ("ingest", "analyze", "near_duplicates", "split", "caption", "embed", "encode")
    ingest: IngestConfig = field(default_factory=IngestConfig)
    analyze: AnalyzeConfig = field(default_factory=AnalyzeConfig)
    score: tuple[ScoreConfig, ...] = ()
    near_duplicates: NearDuplicatesConfig = field(default_factory=NearDuplicatesConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    caption: CaptionConfig = field(default_factory=CaptionConfig)
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    encode: EncodeConfig = field(default_factory=EncodeConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        if not self.stages:
            raise UserError(f"stages: expected at least one of {', '.join(STAGES)}")
        scorers = [s.name for s in self.score]
        for name in scorers:
            if scorers.count(name) > 1:
                raise UserError(f"score: {name!r} is there twice; a scorer has one table")
        for name in self.stages:
            if name not in STAGES:
                raise UserError(f"stages: unknown stage {name!r}{nearest(name, STAGES)}")
            for needed in NEEDS.get(name, ()):
                if needed not in self.stages:
                    raise UserError(
                        f"stages: {name!r} wants {needed!r} in the list; to run only some of a recipe's stages now, "
                        "leave the list whole and say `--stages`"
                    )


def load(path: str, overrides: tuple[str, ...] = ()) -> Recipe:
    """Read a recipe and its `--set` overrides; raise UserError on what does not fit."""
    mapping = config.load_recipe(path, overrides)
    _as_expressions(mapping)
    return config.build(Recipe, mapping)


def _as_expressions(value: Any) -> None:
    """`where = true` is the expression `true`: `--set encode.where=true` needs no two kinds of quotes."""
    if isinstance(value, dict):
        if isinstance(value.get("where"), bool):
            value["where"] = str(value["where"]).lower()
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _as_expressions(item)


def to_toml(recipe: Recipe) -> str:
    """The resolved recipe, every default written out."""
    return config.to_toml(config.to_mapping(recipe))
