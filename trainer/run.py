"""From a resolved recipe to a run: tables, plan, loader, model and held-out packs put together.

RUN/
  recipe.toml          the resolved recipe
  run.json             latent space, text encoder, model configuration, table versions: what sampling needs
  captions.safetensors some held-out captions with their embeddings, and the empty caption's
  metrics.jsonl        a line a log interval and a held-out evaluation
  tensorboard/         the same for TensorBoard
  loss.svg             their curve, drawn at the end
  index/               the index of what is trained on
  checkpoints/         see `trainer.checkpoint`
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch

from schemas.config import to_toml
from schemas.errors import UserError
from schemas.latent_spaces import LatentSpace
from trainer import checkpoint
from trainer import recipe as recipes
from trainer.data.build import build_index
from trainer.data.index import Index
from trainer.data.loader import PackLoader
from trainer.data.packing import FlopModel
from trainer.data.plan import PlanConfig, Planner
from trainer.data.schedule import Phase, Schedule
from trainer.heldout import Heldout
from trainer.heldout_packs import heldout_packs, save_captions, typical_fps
from trainer.loop import LoopConfig, Trainer
from trainer.models import attention, diffusers_format
from trainer.parallel.world import World
from trainer.recipe import TrainRecipe

log = logging.getLogger("trainer")

RECIPE, FACTS, INDEX = "recipe.toml", "run.json", "index"
CAPTIONS, QUARANTINE = "captions.safetensors", "quarantine.jsonl"
Split = Literal["train", "heldout", "all"]
TYPICAL_TEXT = 64
"""Text tokens a sample that the planner's FLOP model assumes, where the model does not fix them."""


def check_output(run: Path) -> None:
    """Make the run's folder; raise UserError where it cannot be written."""
    try:
        run.mkdir(parents=True, exist_ok=True)
        probe = run / ".writable"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise UserError(f"output {run}: cannot be written: {error.strerror or error}") from None


def make_index(
    recipe: TrainRecipe,
    folder: Path,
    world: World,
    *,
    split: Split,
    resumed: Mapping[str, Any] | None = None,
    tag: bool = True,
) -> Index:
    """Build the index of a split on rank 0, and map it on the others.

    Args:
        resumed: `state.json` of the checkpoint to go on from: its table versions are read again.
        tag: tag those versions in the dataset, so that `vidpipe clean` keeps them.
    """
    data = dataclasses.replace(recipe.data, split=split)
    found: Index | str = ""
    if world.is_main:
        try:
            found = build_index(data, folder, versions=resumed["versions"] if resumed else None, tag=tag)
        except UserError as error:  # to be raised on every rank
            found = str(error)
    found = world.broadcast(found)
    if isinstance(found, str):
        raise UserError(found)
    return found


def build_model(recipe: TrainRecipe, model_config: Any, world: World) -> torch.nn.Module:
    """The whole model on the world's device, equal on all ranks: drawn from the recipe's seed, or pretrained."""
    backend = attention.resolve(recipe.model.attention, world.device, world.dtype)
    torch.manual_seed(recipe.seed)
    model = recipes.model_class(recipe.model.name)(model_config, backend)
    if recipe.model.pretrained:
        diffusers_format.load_weights(model, recipe.model.pretrained)
    return model.to(world.device)


@dataclasses.dataclass(kw_only=True, eq=False)
class Parts:
    """What a run is put together from, see `assemble`; `index` is the first phase's."""

    index: Index
    indexes: list[Index]
    loader: PackLoader
    model_config: Any
    null_text_ME: torch.Tensor
    held: Heldout | None


def with_patch(recipe: TrainRecipe) -> TrainRecipe:
    """The recipe with `data.patch` as the model has it."""
    values, _ = recipes.model_values(recipe.model)
    patch = tuple(values.get("patch_size", (1, 2, 2)))
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, patch=patch))


def flop_model(model_config: Any) -> FlopModel:
    """The planner's cost of a sample, from the model's configuration."""
    quadratic, linear = model_config.flop_coefficients(model_config.text_length or TYPICAL_TEXT)
    return FlopModel(quadratic=quadratic, linear=linear)


def assemble(recipe: TrainRecipe, run: Path, world: World, resumed: Mapping[str, Any] | None = None) -> Parts:
    """Open tables, plan, and read the held-out packs; `recipe` is one that `with_patch` gave."""
    started = time.perf_counter()
    phases = recipes.by_phase(recipe)
    indexes = [
        make_index(phase, run / INDEX, world, split=phase.data.split, resumed=_of_phase(resumed, number))
        for number, phase in enumerate(phases)
    ]
    index = indexes[0]
    model_config = recipes.resolve_model(recipe.model, index.space, index.text_dim)
    loader = PackLoader(
        index,
        make_schedule(recipe, indexes, flop_model(model_config), resumed),
        rank=world.rank,
        world_size=world.size,
        config=recipe.loader,
        device=world.device,
        quarantine=run / QUARANTINE,
    )
    null_text = loader.null_text() if index.text_dim else torch.zeros(1, model_config.text_dim)
    held = make_heldout(recipe, run, world, model_config, null_text, resumed)
    if world.is_main:
        kept = f"{held.num_samples} latents held out" if held else "nothing held out"
        for phase, later in zip(recipe.phases, indexes[1:]):
            log.info("from step %d on: %s", phase.from_step, later)
        log.info("%s; %s; ready in %.1f s", index, kept, time.perf_counter() - started)
    return Parts(
        index=index, indexes=indexes, loader=loader, model_config=model_config, null_text_ME=null_text, held=held
    )


def _of_phase(resumed: Mapping[str, Any] | None, number: int) -> Mapping[str, Any] | None:
    """`resumed` with the table versions of a phase; None, to read the newest, for a phase that it did not know."""
    versions = resumed.get("phase_versions", [resumed["versions"]]) if resumed else []
    return {"versions": versions[number]} if number < len(versions) else None


def make_schedule(
    recipe: TrainRecipe, indexes: Sequence[Index], cost: FlopModel, resumed: Mapping[str, Any] | None = None
) -> Schedule:
    """The recipe's phases under one count of steps."""
    eras = resumed["source"].get("steps_per_era", 0) if resumed else 0
    eras = [*(eras if isinstance(eras, list) else [eras]), *([0] * len(indexes))]
    starts = [0, *(phase.from_step for phase in recipe.phases)]
    lengths = [*(b - a for a, b in pairwise(starts)), 0]
    return Schedule(
        [
            Phase(planner=Planner(index, phase.plan, cost, steps_per_era=era), num_steps=length)
            for phase, index, era, length in zip(recipes.by_phase(recipe), indexes, eras, lengths)
        ]
    )


def make_heldout(
    recipe: TrainRecipe,
    run: Path,
    world: World,
    model_config: Any,
    null_text_ME: torch.Tensor,
    resumed: Mapping[str, Any] | None,
) -> Heldout | None:
    """Held-out packs of the dataset's `heldout` split; None, with a warning, where nothing is held out."""
    if recipe.data.split != "train":
        return None
    try:
        index = make_index(recipe, run / INDEX, world, split="heldout", resumed=resumed)
    except UserError as error:
        if world.is_main:
            log.warning("no held-out loss: %s", error)
        return None
    budget = max(recipe.plan.token_budget, *(s.num_tokens for s in index.streams))
    planner = Planner(index, PlanConfig(token_budget=budget, packs_per_step=1), flop_model(model_config))
    loader = PackLoader(index, planner)
    packs = heldout_packs(loader, recipe.heldout.max_samples)
    if world.is_main:
        save_captions(run / CAPTIONS, loader, packs, null_text_ME)
    return Heldout(
        packs,
        recipe.heldout,
        recipe.flow,
        world,
        channels=index.space.channels,
        null_text_ME=null_text_ME,
        text_length=model_config.text_length,
        keep_padding=recipe.parallel.compile,
    )


def make_trainer(recipe: TrainRecipe, run: Path, world: World, *, resume: bool = True) -> Trainer:
    """A trainer, at step 0 or where the newest checkpoint that verifies left off.

    Raises:
        UserError: the run cannot go on under this recipe; says why.
    """
    recipe = with_patch(recipe)
    if world.is_main:
        checkpoint.remove_leftovers(run)
    folder = checkpoint.newest_verified(run, world) if resume else None
    resumed = checkpoint.read_state(folder) if folder else None
    parts = assemble(recipe, run, world, resumed)
    if folder:
        _require_same_run(recipe, run, parts)
    model = build_model(recipe, parts.model_config, world)
    if world.is_main:
        _describe(recipe, model, world)
    names = [f.name for f in dataclasses.fields(LoopConfig)]
    values = recipes.to_values(recipe)
    later = recipes.by_phase(recipe)[1:]
    trainer = Trainer(
        model,
        LoopConfig(**{name: getattr(recipe, name) for name in names}),
        world,
        parts.loader,
        null_text_ME=parts.null_text_ME,
        text_length=parts.model_config.text_length,
        held=parts.held,
        run=run,
        state={
            "recipe": values,
            "versions": parts.index.versions,
            "phase_versions": [index.versions for index in parts.indexes],
            "content_hash": parts.index.content_hash,
        },
        flows=[(0, recipe.flow), *zip((p.from_step for p in recipe.phases), (r.flow for r in later))],
    )
    if folder and resumed:
        trainer.resume(folder)
        if world.is_main:
            log.info("going on from %s%s", folder.name, _changes(resumed["recipe"], values))
    if world.is_main:  # a run that is refused leaves them as they were: they describe its checkpoints
        (run / RECIPE).write_text(to_toml(values), encoding="utf-8")
        (run / FACTS).write_text(json.dumps(facts(recipe, parts), indent=1), encoding="utf-8")
    return trainer


def _require_same_run(recipe: TrainRecipe, run: Path, parts: Parts) -> None:
    """Raise UserError where the run's checkpoints are of another latent space or another model."""
    old = read_facts(run)
    space_of(old).require(parts.index.space, f"dataset {recipe.data.datasets[0].path}")
    new = json.loads(json.dumps(facts(recipe, parts)["model"]))
    if changed := _changes(old["model"], new).removeprefix("; changed: "):
        raise UserError(
            f"run {run}: its checkpoints do not fit this model: {changed}; restore [model], or name another output"
        )


def _describe(recipe: TrainRecipe, model: torch.nn.Module, world: World) -> None:
    """Log what is trained."""
    backend = attention.resolve(recipe.model.attention, world.device, world.dtype)
    origin = recipe.model.pretrained or recipe.model.preset
    size = sum(p.numel() for p in model.parameters()) / 1e6
    dtype = str(world.dtype).removeprefix("torch.")
    where = f"{world.size} process{'es' if world.size > 1 else ''} on {world.device.type}"
    log.info("%s %s: %.1f M parameters, %s, attention %s, %s", recipe.model.name, origin, size, dtype, backend, where)


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> str:
    """What differs between two resolved recipes, as `; changed: a.b 1 -> 2, ...`; empty if nothing does."""

    def walk(a: Mapping[str, Any], b: Mapping[str, Any], where: str) -> list[str]:
        found = []
        for key in sorted({*a, *b}):
            x, y = a.get(key), b.get(key)
            if isinstance(x, Mapping) and isinstance(y, Mapping):
                found += walk(x, y, f"{where}{key}.")
            elif json.dumps(x) != json.dumps(y):
                found.append(f"{where}{key} {x} -> {y}")
        return found

    changed = walk(old, new, prefix)
    return f"; changed: {', '.join(changed)}" if changed else ""


def facts(recipe: TrainRecipe, parts: Parts) -> dict[str, Any]:
    """What sampling and export need, so that they work without the dataset."""
    return {
        "space": json.loads(parts.index.space.to_json()),
        "text": json.loads(parts.index.texts[0].metadata) if parts.index.texts else None,
        "model": {"name": recipe.model.name, **dataclasses.asdict(parts.model_config)},
        "shift": recipe.flow.shift,
        "shift_tokens": recipe.flow.shift_tokens,
        "datasets": [d.path for d in recipe.data.datasets],
        "buckets": {s.bucket: s.num_rows for s in parts.indexes[-1].streams},
        "fps": typical_fps(parts.indexes[-1]),
        "versions": parts.index.versions,
        "content_hash": parts.index.content_hash,
    }


def read_facts(run: Path) -> dict[str, Any]:
    """`run.json`; raise UserError where `run` is no run."""
    try:
        return json.loads((run / FACTS).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"run {run}: no {FACTS} in it; expected what `trainer train --output` wrote") from None
    except (OSError, ValueError) as error:
        raise UserError(f"run {run}: {FACTS} cannot be read: {error}") from None


def space_of(run_facts: Mapping[str, Any]) -> LatentSpace:
    """Latent space of a run."""
    return LatentSpace.from_json(json.dumps(run_facts["space"]))


def load_model(
    run: Path, *, weights: str = "average", step: int | None = None, world: World | None = None
) -> tuple[Any, int]:
    """The whole model of a run's checkpoint in one process, and the checkpoint's step.

    Args:
        weights: `average`, or `model` for those of the last step.
        step: the newest checkpoint that verifies where None.
        world: of one process; says device and dtype to choose the attention back end for.
    Raises:
        UserError: no run, no (such) checkpoint that verifies.
    """
    run_facts, world = read_facts(run), world or World()
    folder = checkpoint.find(run, step, world)
    values = dict(run_facts["model"])
    cls = recipes.model_class(values.pop("name"))
    values["patch_size"] = tuple(values["patch_size"])
    model = cls(cls.Config(**values), attention.resolve("auto", world.device, world.dtype)).to(world.device)
    averaged = checkpoint.load_weights(folder, model, weights)
    if weights == "average" and not averaged:
        log.info("%s holds no averaged weights; using the model's own", folder)
    return model.eval(), int(checkpoint.read_state(folder)["step"])
