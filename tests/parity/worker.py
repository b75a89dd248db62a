"""One process of a parity run: `python worker.py WORK`, alone or under torchrun. Rank 0 writes WORK/world<N>.json.

All cells run in one start of a world, since starting costs more than they do.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from trainer import recipe, run
from trainer.checkpoint import CheckpointConfig
from trainer.heldout import Heldout, HeldoutConfig
from trainer.loop import LoopConfig, Trainer
from trainer.metrics import LogConfig, read_metrics
from trainer.models.wan import Wan, WanConfig
from trainer.optim import OptimizerConfig
from trainer.parallel.world import ParallelConfig, World, start_world, stop_world

NULL = torch.zeros(1, 24)
SIZES = {
    "num_attention_heads": 2, "attention_head_dim": 16, "ffn_dim": 64, "num_layers": 2, "freq_dim": 32,
    "rope_max_seq_len": 64,
}  # fmt: skip
SMALL = WanConfig(in_channels=4, out_channels=4, text_dim=24, **SIZES)

# the same six samples a step, laid out in packs; 3 packs on 2 ranks leave a slot empty
LAYOUTS = {
    "two packs": [[0, 1, 2], [3, 4, 5]],
    "six packs": [[0], [1], [2], [3], [4], [5]],
    "three packs": [[5, 2], [1, 0], [4, 3]],
    "one and five": [[3], [0, 1, 2, 4, 5]],
}


def load_packs() -> Any:
    path = Path(__file__).parents[1] / "trainer" / "packs.py"
    spec = importlib.util.spec_from_file_location("trainer_test_packs", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def layout_cell(
    packs: Any, world: World, lists: list[list[int]], parallel: ParallelConfig, work: Path
) -> dict[str, Any]:
    """Four steps over the same samples in a given layout: losses, gradient norms, held-out loss, a weight's sum."""
    torch.manual_seed(0)
    config = LoopConfig(
        steps=4,
        optimizer=OptimizerConfig(lr=3e-3, warmup_steps=2),
        checkpoint=CheckpointConfig(every=0),
        heldout=HeldoutConfig(every=0),
        parallel=parallel,
        log=LogConfig(every=1, tensorboard=False),
    )
    held_packs = [packs.make([20, 21]), packs.make([22]), packs.make([23, 24])]
    held = Heldout(held_packs, config.heldout, config.flow, world, channels=4, null_text_ME=NULL)
    source = packs.Source(lambda step: lists, world.rank, world.size, length=64)
    folder = Path(world.broadcast(str(work / f"layout-{world.size}")))
    trainer = Trainer(Wan(SMALL, "sdpa"), config, world, source, null_text_ME=NULL, held=held, run=folder)
    trainer.train()
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if "loss" in row]
    world.barrier()
    if world.is_main:
        shutil.rmtree(folder)
    world.barrier()
    held_loss = trainer.last_heldout
    return {
        "loss": [row["loss"] for row in rows],
        "grad_norm": [row["grad_norm"] for row in rows],
        "heldout": [held_loss.loss, held_loss.linear, held_loss.shuffled],
        "bins": list(held_loss.bins),
    }


def run_cell(world: World, dataset: Path, folder: Path, *, steps: int, stop: int = 0, **values: Any) -> dict[str, Any]:
    """A whole run over a dataset: losses and the packs of each step, over all ranks in the plan's order."""
    made = recipe.from_values(
        {
            "steps": steps,
            "data": {"datasets": [{"path": str(dataset)}], "latents": "synthetic", "text_encoder": "synthetic"},
            "plan": {"token_budget": 96, "packs_per_step": 3, "window_steps": 2},
            "model": {"overrides": SIZES},
            "optimizer": {"lr": 3e-3, "warmup_steps": 2},
            "heldout": {"every": 0, "max_samples": 7},
            "checkpoint": {"every": 2, "keep": 0},
            "log": {"every": 1, "tensorboard": False},
            **values,
        }
    )
    if world.is_main:
        run.check_output(folder)
    world.barrier()
    trainer = run.make_trainer(made, folder, world)
    seen: list[Any] = []
    trainer.source = Recording(trainer.source, seen)

    class Stop(Exception):
        pass

    def at(step: int) -> None:
        if step == stop:
            raise Stop

    with contextlib.suppress(Stop):
        trainer.train(at)
    every = [entry for part in world.collect(seen) for entry in part]
    rows = read_metrics(folder / "metrics.jsonl") if world.is_main else []
    rows = world.broadcast(rows)
    return {
        "packs": sorted(every),
        "loss": {row["step"]: row["loss"] for row in rows if "loss" in row},
        "heldout": [row["heldout/loss"] for row in rows if "heldout/loss" in row],
        "step": trainer.step,
    }


class Recording:
    """Passes steps on and notes (step, pack number, ids, visits) of those that count."""

    def __init__(self, source: Any, seen: list[Any]) -> None:
        self.source, self.seen = source, seen

    def __iter__(self):
        for packs in self.source:
            for pack in packs:
                if pack.weight:
                    ids = [name.hex() for name in pack.latent_ids]
                    self.seen.append([pack.step, pack.number, ids, pack.visits.tolist()])
            yield packs

    def state_dict(self) -> dict[str, Any]:
        return self.source.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.source.load_state_dict(state)


def gloo_threads() -> int:
    """Threads of process groups in this process; one that is late as the process ends would abort it."""
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in name for name in names)


def main() -> None:
    torch.set_num_threads(1)
    work = Path(sys.argv[1])
    packs, plain = load_packs(), ParallelConfig()
    world = start_world(plain)
    found: dict[str, Any] = {name: layout_cell(packs, world, lists, plain, work) for name, lists in LAYOUTS.items()}
    lists = LAYOUTS["three packs"]
    if world.size > 1:
        variants = {
            "hsdp": ParallelConfig(replicate=2),
            "every pack": ParallelConfig(sync_every_pack=True),
            "gathered": ParallelConfig(reshard_after_forward=False),
            "recomputed": ParallelConfig(activation_checkpointing=True),
        }
        for name, parallel in variants.items():
            changed = start_world(parallel)
            found[name] = layout_cell(packs, changed, lists, parallel, work)
    dataset, folder = work / "dataset", work / f"run-{world.size}"
    found["run"] = run_cell(world, dataset, folder, steps=6)
    if world.size == 1:
        found["stopped"] = run_cell(world, dataset, work / "elastic", steps=6, stop=3)
    else:
        found["resumed"] = run_cell(world, dataset, work / "elastic", steps=6)
    stop_world()
    found["threads"] = gloo_threads()
    if world.is_main:
        (work / f"world{world.size}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
