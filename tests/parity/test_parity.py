"""The loss does not depend on how packs are laid out, on how many processes share them, nor on a restart.

A world is started once for each size and runs all cells (`worker.py`); the tests compare what they wrote.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("worker.py")
LAYOUTS = ["two packs", "six packs", "three packs", "one and five"]
ROUNDING = 1e-5
"""Relative difference of float32 losses over a few steps; sums in another order differ by about 1e-7 a step."""


@pytest.fixture(scope="module")
def worlds(tmp_path_factory) -> dict[int, dict]:
    """What the cells gave on one and on two processes."""
    from trainer.data.synthetic import SyntheticConfig, write_dataset

    work = tmp_path_factory.mktemp("parity")
    buckets = {"1x32x32": 24, "5x32x48": 18, "9x32x32": 18}
    write_dataset(str(work / "dataset"), SyntheticConfig(buckets=buckets, text_dim=24, heldout_every=5))
    start(work, [sys.executable, str(WORKER), str(work)])
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    start(work, [sys.executable, *launch, str(WORKER), str(work)])
    return {size: json.loads((work / f"world{size}.json").read_text()) for size in (1, 2)}


def start(work: Path, command: list[str]) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=work, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def close(a, b, tolerance=ROUNDING) -> bool:
    return len(a) == len(b) and a == pytest.approx(b, rel=tolerance, nan_ok=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_world_sizes_agree(worlds, layout):
    expected = worlds[1]["two packs"]
    assert expected["loss"][0] > 1 and len(expected["loss"]) == 4
    assert expected["loss"][3] < expected["loss"][0]  # weights moved: the later steps compare gradients too
    for size in (1, 2):
        found = worlds[size][layout]
        assert close(found["loss"], expected["loss"]), size
        assert close(found["grad_norm"], expected["grad_norm"], 1e-4), size
        assert close(found["heldout"], expected["heldout"]), size
        assert close(found["bins"], expected["bins"]), size


@pytest.mark.parametrize("variant", ["hsdp", "every pack", "gathered", "recomputed"])
def test_ways_to_shard_agree(worlds, variant):
    expected, found = worlds[1]["three packs"], worlds[2][variant]
    assert close(found["loss"], expected["loss"])
    assert close(found["grad_norm"], expected["grad_norm"], 1e-4)
    assert close(found["heldout"], expected["heldout"])


def test_one_and_two_processes_see_the_same_packs_and_losses(worlds):
    one, two = worlds[1]["run"], worlds[2]["run"]
    assert {entry[0] for entry in one["packs"]} == set(range(6))
    assert one["packs"] == two["packs"]
    assert one["loss"].keys() == two["loss"].keys() == {str(step) for step in range(1, 7)}
    assert close(list(two["loss"].values()), list(one["loss"].values()))
    assert close(two["heldout"], one["heldout"])


def test_a_run_of_one_process_goes_on_with_two(worlds):
    """Stopped a step after the checkpoint of step 2: the third is done again, and nothing is seen twice or left out."""
    whole, stopped, resumed = worlds[1]["run"], worlds[1]["stopped"], worlds[2]["resumed"]
    assert stopped["step"] == 3 and resumed["step"] == 6
    assert [e for e in stopped["packs"] if e[0] < 2] + resumed["packs"] == whole["packs"]
    assert close([resumed["loss"][str(s)] for s in range(1, 7)], [whole["loss"][str(s)] for s in range(1, 7)])


def test_no_thread_of_a_process_group_outlives_it(worlds):
    assert worlds[1]["threads"] == worlds[2]["threads"] == 0
