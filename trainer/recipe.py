"""A training recipe: TOML sections onto the configurations of the parts, one to one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas import config
from schemas.errors import LatentSpaceMismatch, UserError, nearest
from trainer.checkpoint import CheckpointConfig
from trainer.data.index import DataConfig
from trainer.data.loader import LoaderConfig
from trainer.data.plan import PlanConfig
from trainer.flow import FlowConfig
from trainer.heldout import HeldoutConfig
from trainer.metrics import LogConfig
from trainer.models import MODELS
from trainer.optim import OptimizerConfig
from trainer.parallel.world import ParallelConfig

if TYPE_CHECKING:
    from schemas.latent_spaces import LatentSpace


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model.

    Attributes:
        name: registry name, see `trainer.models.MODELS`.
        preset: a named configuration of that model, such as `toy` or `wan2.1-1.3b`.
        overrides: values that replace the preset's. `in_channels`, `out_channels` and `text_dim` follow the dataset
            where neither names them and nothing pretrained is loaded.
        pretrained: folder of a diffusers checkpoint to start from; its config.json then takes the preset's place.
        attention: back end of `trainer.models.attention`.
        vae: registry name of the VAE whose latents the weights know; tables of another are refused. Empty: `wan2.1`
            for a pretrained Wan, any for a new model.
    """

    name: str = "wan"
    preset: str = "toy"
    overrides: dict[str, Any] = field(default_factory=dict)
    pretrained: str = ""
    attention: str = "auto"
    vae: str = ""

    def __post_init__(self) -> None:
        if self.name not in MODELS:
            raise UserError(f"name: unknown model {self.name!r}{nearest(self.name, MODELS)}")


@dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """`[[phases]]`: a later mix of the run, such as 480p after 256p, under the same count of steps.

    Attributes:
        from_step: its first step.
        data, plan, flow: what it changes in these sections; held-out loss stays that of the recipe's own.
    """

    from_step: int
    data: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    flow: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    """Everything that shapes a run. `seed` draws noise, timesteps and dropout; `plan.seed` the order of the data."""

    steps: int
    data: DataConfig
    plan: PlanConfig
    seed: int = 0
    model: ModelConfig = field(default_factory=ModelConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    heldout: HeldoutConfig = field(default_factory=HeldoutConfig)
    log: LogConfig = field(default_factory=LogConfig)
    phases: tuple[PhaseConfig, ...] = ()

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UserError(f"steps: expected at least 1, found {self.steps}")
        starts = [0, *(phase.from_step for phase in self.phases)]
        if any(a >= b for a, b in pairwise(starts)):
            raise UserError(f"phases: from_step must ascend from 1 on, found {starts[1:]}")


def load(path: str | Path, dataset: str | None = None, overrides: Iterable[str] = ()) -> TrainRecipe:
    """Read a recipe; `dataset` takes the place of its `data.datasets`.

    Raises:
        UserError: no such file, not TOML, an unknown key or a value that a part refuses.
    """
    values = config.load_recipe(path, overrides)
    if dataset is not None:
        section = values.setdefault("data", {})
        if not isinstance(section, dict):
            raise UserError(f"recipe {path}: data: expected a section, found {section!r}")
        section["datasets"] = [{"path": dataset}]
    return from_values(values)


def from_values(values: Mapping[str, Any]) -> TrainRecipe:
    """Build from TOML values, as `to_values` gives them."""
    return config.build(TrainRecipe, values)


def to_values(recipe: TrainRecipe) -> dict[str, Any]:
    """TOML values of a resolved recipe; credentials are left out."""
    values = config.to_mapping(recipe)
    for dataset in values["data"]["datasets"]:
        dataset.pop("storage_options", None)
    return values


def by_phase(recipe: TrainRecipe) -> list[TrainRecipe]:
    """The recipe as each phase of the run has it, the first included.

    Raises:
        UserError: an unknown key or a value that a part refuses, with the phase's number.
    """
    first = dataclasses.replace(recipe, phases=())
    made = [first]
    for number, phase in enumerate(recipe.phases):
        values = config.to_mapping(first)
        for section in ("data", "plan", "flow"):
            values[section] = {**values[section], **getattr(phase, section)}
        try:
            made.append(from_values(values))
        except UserError as error:
            raise UserError(f"phases[{number}]: {error}") from None
    return made


def model_class(name: str) -> Any:
    """Class of a model by registry name."""
    import importlib

    module, _, attribute = MODELS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def model_values(recipe: ModelConfig) -> tuple[dict[str, Any], bool]:
    """Configuration values that the recipe fixes, and whether they come from a checkpoint."""
    cls = model_class(recipe.name)
    if recipe.pretrained:
        from trainer.models import diffusers_format

        return {**dataclasses.asdict(diffusers_format.read_config(recipe.pretrained)), **recipe.overrides}, True
    if recipe.preset not in cls.PRESETS:
        raise UserError(f"model.preset: unknown {recipe.preset!r}{nearest(recipe.preset, cls.PRESETS)}")
    return {**cls.PRESETS[recipe.preset], **recipe.overrides}, False


def resolve_model(recipe: ModelConfig, space: LatentSpace, text_dim: int) -> Any:
    """The model's configuration for a dataset.

    Raises:
        LatentSpaceMismatch: the weights are for latents of another VAE.
        UserError: an override that the model does not have; channels or text width other than the dataset's.
    """
    values, pretrained = model_values(recipe)
    cls = model_class(recipe.name)
    vae = recipe.vae or (cls.VAE if pretrained else "")
    if vae and vae != space.vae:
        raise LatentSpaceMismatch(
            f"the model was made for latents of VAE {vae!r}, but the dataset's space {space.name!r} is of "
            f"{space.vae!r}; choose tables of {vae!r}, or encode again with it"
        )
    if not pretrained:
        values = {"in_channels": space.channels, "out_channels": space.channels, **values}
        if text_dim and "text_dim" not in recipe.overrides:
            values["text_dim"] = text_dim
    made = config.build(cls.Config, _as_toml(values), "model.overrides")
    if made.in_channels != space.channels:
        raise UserError(
            f"model: in_channels = {made.in_channels}, but latents of space {space.name!r} have {space.channels} "
            "channels; choose latents of the VAE that the model was made for"
        )
    if text_dim and made.text_dim != text_dim:
        raise UserError(
            f"model: text_dim = {made.text_dim}, but the dataset's text embeddings have width {text_dim}; "
            "choose data.text_encoder to fit the model"
        )
    return made


def _as_toml(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
