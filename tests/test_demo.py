"""`make demo`, from footage to a sample, held to what the project promises of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("demo") / "out"
    command = ["bash", "scripts/demo.sh", str(Path(sys.executable).parent), str(out)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out, done.stdout


@pytest.mark.long
@pytest.mark.timeout(3300)
def test_everything_that_it_points_at_is_there(demo):
    out, said = demo
    for name in ("dataset/report.html", "sample.mp4", "run/loss.svg"):
        assert (out / name).stat().st_size > 1000
        assert str(out / name) in said


@pytest.mark.long
def test_the_model_learnt(demo):
    """Held-out loss against the best per-channel linear predictor, and with the latents' positions shuffled."""
    lines = (demo[0] / "run" / "metrics.jsonl").read_text().splitlines()
    last = [row for row in map(json.loads, lines) if "heldout/loss" in row][-1]
    assert last["heldout/loss"] <= 0.75 * last["heldout/linear"]
    assert last["heldout/shuffled"] >= 1.03 * last["heldout/loss"]


@pytest.mark.long
def test_the_sample_is_no_noise(demo):
    """Neighbouring pixels of the sample agree far better than those of noise, and the frames are not flat."""
    with av.open(str(demo[0] / "sample.mp4")) as container:
        frames = np.stack([frame.to_ndarray(format="gray") for frame in container.decode(video=0)]).astype(float)
    assert len(frames) >= 17
    assert frames.std() > 10
    left, right = frames[:, :, :-1].ravel(), frames[:, :, 1:].ravel()
    assert np.corrcoef(left, right)[0, 1] > 0.8
