"""From a resolved recipe to a run: tables, plan, loader, model and held-out packs put together.

    RUN/
      recipe.toml      the resolved recipe
      run.json         latent space, text encoder, model configuration, table versions: what sampling needs
      metrics.jsonl    a line a log interval and a held-out evaluation
      tensorboard/     the same for TensorBoard
      loss.svg         their curve, drawn at the end
      index/           the index of what is trained on
      checkpoints/     see `trainer.checkpoint`
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from schemas.config import to_toml
from schemas.errors import UserError
from schemas.latent_spaces import LatentSpace
from trainer import recipe as recipes
from trainer.data.build import build_index
from trainer.data.collate import Pack
from trainer.data.index import Index
from trainer.data.loader import PackLoader
from trainer.data.packing import FlopModel
from trainer.data.plan import PlanConfig, Planner
from trainer.heldout import Heldout
from trainer.loop import LoopConfig, Trainer
from trainer.models import attention, diffusers_format
from trainer.parallel.world import World
from trainer.recipe import TrainRecipe

log = logging.getLogger("trainer")

RECIPE, FACTS, INDEX = "recipe.toml", "run.json", "index"
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


def make_index(recipe: TrainRecipe, folder: Path, world: World, split: str) -> Index:
    """Build the index of a split on rank 0, and map it on the others."""
    data = dataclasses.replace(recipe.data, split=split)
    found: Index | str = ""
    if world.is_main:
        try:
            found = build_index(data, folder)
        except UserError as error:
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


def heldout_packs(loader: PackLoader, max_samples: int) -> list[Pack]:
    """Packs of distinct latents, each once, in the loader's fixed order, until `max_samples` or all are there."""
    wanted = min(max_samples, len(loader.index))
    seen: set[bytes] = set()
    packs = []
    for step in loader:
        for pack in step:
            fresh = [i for i, name in enumerate(pack.latent_ids) if name not in seen][: wanted - len(seen)]
            if fresh and pack.weight:
                packs.append(take_samples(pack, fresh))
                seen.update(packs[-1].latent_ids)
        if len(seen) >= wanted:
            return packs
    return packs


def take_samples(pack: Pack, chosen: Iterable[int]) -> Pack:
    """A pack of some of another's samples; its length stays, so that what they leave becomes padding."""
    chosen = list(chosen)
    if chosen == list(range(pack.num_samples)):
        return pack
    tokens = [pack.tokens_LD[pack.cu_seqlens[i] : pack.cu_seqlens[i + 1]] for i in chosen]
    texts = [pack.text_LD[pack.text_cu_seqlens[i] : pack.text_cu_seqlens[i + 1]] for i in chosen]
    tokens_LD = torch.zeros_like(pack.tokens_LD)
    used = sum(len(t) for t in tokens)
    tokens_LD[:used] = torch.cat(tokens)
    return dataclasses.replace(
        pack,
        tokens_LD=tokens_LD,
        cu_seqlens=_bounds(tokens),
        grid_thw=pack.grid_thw[chosen],
        text_LD=torch.cat(texts),
        text_cu_seqlens=_bounds(texts),
        latent_ids=[pack.latent_ids[i] for i in chosen],
        visits=pack.visits[chosen],
        rows=pack.rows[chosen],
        num_padding_tokens=len(tokens_LD) - used,
    )


def _bounds(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([0, *(len(p) for p in parts)], dtype=torch.int32).cumsum(0, dtype=torch.int32)


@dataclasses.dataclass(kw_only=True, eq=False)
class Parts:
    """What a run is put together from; see `assemble`."""

    index: Index
    loader: PackLoader
    model_config: Any
    null_text_ME: torch.Tensor
    held: Heldout | None


def assemble(recipe: TrainRecipe, run: Path, world: World) -> Parts:
    """Open tables, plan, and read the held-out packs."""
    started = time.perf_counter()
    values, _ = recipes.model_values(recipe.model)
    patch = tuple(recipe.model.overrides.get("patch_size", values.get("patch_size", (1, 2, 2))))
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, patch=patch))
    index = make_index(recipe, run / INDEX, world, recipe.data.split)
    model_config = recipes.resolve_model(recipe.model, index.space, index.text_dim)
    quadratic, linear = model_config.flop_coefficients(model_config.text_length or TYPICAL_TEXT)
    flops = FlopModel(quadratic=quadratic, linear=linear)
    loader = PackLoader(
        index,
        Planner(index, recipe.plan, flops),
        rank=world.rank,
        world_size=world.size,
        num_readers=recipe.loader.num_readers,
    )
    null_text = loader.null_text() if index.text_dim else torch.zeros(1, model_config.text_dim)
    held = make_heldout(recipe, run, world, flops, model_config, null_text)
    if world.is_main:
        log.info("%s; %s; ready in %.1f s", index, held_summary(held), time.perf_counter() - started)
    return Parts(index=index, loader=loader, model_config=model_config, null_text_ME=null_text, held=held)


def held_summary(held: Heldout | None) -> str:
    """For the log."""
    return "nothing held out" if held is None else f"{sum(p.num_samples for p in held.all_packs)} latents held out"


def make_heldout(
    recipe: TrainRecipe, run: Path, world: World, flops: FlopModel, model_config: Any, null_text_ME: torch.Tensor
) -> Heldout | None:
    """Held-out packs of the dataset's `heldout` split; None where nothing is held out."""
    if recipe.data.split != "train":
        return None
    try:
        index = make_index(recipe, run / INDEX, world, "heldout")
    except UserError as error:
        if world.is_main:
            log.warning("no held-out loss: %s", error)
        return None
    plan = PlanConfig(token_budget=recipe.plan.token_budget, packs_per_step=1, allow_skipping=recipe.plan.allow_skipping)
    packs = heldout_packs(PackLoader(index, Planner(index, plan, flops)), recipe.heldout.max_samples)
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


def make_trainer(recipe: TrainRecipe, run: Path, world: World) -> Trainer:
    """A trainer at step 0, its output folder described by recipe.toml and run.json."""
    parts = assemble(recipe, run, world)
    model = build_model(recipe, parts.model_config, world)
    if world.is_main:
        num = sum(p.numel() for p in model.parameters())
        backend = attention.resolve(recipe.model.attention, world.device, world.dtype)
        log.info("%s: %.1f M parameters, attention %s, %s", recipe.model.preset, num / 1e6, backend, world)
        (run / RECIPE).write_text(to_toml(recipes.to_values(recipe)), encoding="utf-8")
        (run / FACTS).write_text(json.dumps(facts(recipe, parts), indent=1), encoding="utf-8")
    state = {"recipe": recipes.to_values(recipe), "versions": parts.index.versions}
    names = {f.name for f in dataclasses.fields(LoopConfig)}
    return Trainer(
        model,
        LoopConfig(**{name: getattr(recipe, name) for name in names}),
        world,
        parts.loader,
        null_text_ME=parts.null_text_ME,
        text_length=parts.model_config.text_length,
        held=parts.held,
        run=run,
        state={**state, "content_hash": parts.index.content_hash},
    )


def facts(recipe: TrainRecipe, parts: Parts) -> dict[str, Any]:
    """What sampling and export need, so that they work without the dataset."""
    return {
        "space": json.loads(parts.index.space.to_json()),
        "text": json.loads(parts.index.texts[0].metadata) if parts.index.texts else None,
        "model": {"name": recipe.model.name, **dataclasses.asdict(parts.model_config)},
        "datasets": [d.path for d in recipe.data.datasets],
        "versions": parts.index.versions,
        "buckets": {s.bucket: s.num_rows for s in parts.index.streams},
        "content_hash": parts.index.content_hash,
    }


def read_facts(run: Path) -> dict[str, Any]:
    """`run.json`; raise UserError where `run` is no run."""
    try:
        return json.loads((run / FACTS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"run {run}: no {FACTS} in it; expected what `trainer train --output` wrote") from None
    except (OSError, ValueError) as error:
        raise UserError(f"run {run}: {FACTS} cannot be read: {error}") from None


def space_of(run_facts: dict[str, Any]) -> LatentSpace:
    """Latent space of a run."""
    return LatentSpace.from_json(json.dumps(run_facts["space"]))
