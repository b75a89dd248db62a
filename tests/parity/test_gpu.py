"""Steps on a GPU against the same steps on the CPU: same draws, same loss within the dtype's rounding."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from trainer.checkpoint import CheckpointConfig
from trainer.heldout import HeldoutConfig
from trainer.loop import LoopConfig, Trainer
from trainer.metrics import LogConfig, read_metrics
from trainer.models.attention import resolve
from trainer.models.wan import Wan, WanConfig
from trainer.optim import OptimizerConfig
from trainer.parallel.world import ParallelConfig, World, start_world, stop_world

pytestmark = pytest.mark.gpu
CONFIG = WanConfig(
    num_attention_heads=2, attention_head_dim=64, ffn_dim=256, num_layers=2, in_channels=4, out_channels=4,
    text_dim=24, freq_dim=64, rope_max_seq_len=64,
)  # fmt: skip


@pytest.fixture(scope="module")
def packs():
    spec = importlib.util.spec_from_file_location("trainer_test_packs", Path(__file__).parents[1] / "trainer/packs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def losses(packs, world: World, parallel: ParallelConfig, folder: Path, backend: str = "auto") -> list[float]:
    """Four steps of two packs with other lengths each time."""
    torch.manual_seed(0)
    config = LoopConfig(
        steps=4,
        optimizer=OptimizerConfig(lr=1e-3, warmup_steps=2),
        checkpoint=CheckpointConfig(every=2),
        heldout=HeldoutConfig(every=0),
        parallel=parallel,
        log=LogConfig(every=1, tensorboard=False),
    )
    model = Wan(CONFIG, resolve(backend, world.device, world.dtype)).to(world.device)
    source = packs.Source(lambda step: [[step, 1, 2, 7], [3, 4 + step]], length=64)
    Trainer(model, config, world, source, null_text_ME=torch.zeros(1, 24), run=folder).train()
    return [row["loss"] for row in read_metrics(folder / "metrics.jsonl")]


@pytest.fixture(scope="module")
def on_cpu(packs, tmp_path_factory) -> list[float]:
    return losses(packs, World(), ParallelConfig(), tmp_path_factory.mktemp("cpu"))


def test_float32_equals_the_cpu(packs, on_cpu, tmp_path):
    world = World(device=torch.device("cuda"))
    assert losses(packs, world, ParallelConfig(), tmp_path) == pytest.approx(on_cpu, rel=1e-4)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("backend", "compiled"), [("sdpa", False), ("varlen", False), ("auto", False), ("auto", True)])
def test_bfloat16_is_near_the_cpu(packs, on_cpu, tmp_path, backend, compiled):
    """FSDP of one rank, as any 16-bit run: parameters in float32, computed in bfloat16."""
    parallel = ParallelConfig(dtype="bfloat16", compile=compiled)
    world = start_world(parallel)
    try:
        found = losses(packs, world, parallel, tmp_path, backend)
    finally:
        stop_world()
    assert found == pytest.approx(on_cpu, rel=2e-2)
