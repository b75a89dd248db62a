"""SIGTERM: the step at hand is finished and saved, alone and under torchrun, and the run goes on from there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.recipes import TINY
from trainer.metrics import read_metrics

RECIPE = f"""
steps = 100000
{TINY}
[data]
latents = "synthetic"
text_encoder = "synthetic"

[checkpoint]
every = 0

[heldout]
every = 0
"""
LAUNCH = {
    1: [sys.executable, "-m", "trainer.cli"],
    2: [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "trainer.cli"],
}


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    from trainer.data.synthetic import SyntheticConfig, write_dataset

    folder = tmp_path_factory.mktemp("stop")
    write_dataset(str(folder / "data"), SyntheticConfig(buckets={"1x32x32": 24}, text_dim=24))
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


def start(work: Path, ranks: int, run: str, *extra: str) -> subprocess.Popen[str]:
    command = [*LAUNCH[ranks], "train", str(work / "recipe.toml"), "--data", str(work / "data"), *extra]
    return subprocess.Popen(
        [*command, "--output", str(work / run)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "OMP_NUM_THREADS": "1"},
        cwd=work,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def steps_of(run: Path) -> list[int]:
    path = run / "metrics.jsonl"
    return [row["step"] for row in read_metrics(path) if "loss" in row] if path.exists() else []


@pytest.mark.timeout(180)
@pytest.mark.parametrize("ranks", [1, 2])
def test_sigterm_saves_the_step_at_hand(work, ranks):
    run = work / f"run{ranks}"
    process = start(work, ranks, run.name)
    while len(steps_of(run)) < 3:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (143 if ranks == 1 else 1), errors  # torchrun has a status of its own
    last = steps_of(run)[-1]
    assert f"stopped by SIGTERM at step {last}; run the same command" in errors
    assert [p.name for p in (run / "checkpoints").iterdir()] == [f"step-{last:08d}"]

    more = start(work, 1, run.name, "--set", f"steps={last + 2}")
    _, errors = more.communicate(timeout=60)
    assert more.returncode == 0, errors
    assert steps_of(run) == list(range(1, last + 3))
