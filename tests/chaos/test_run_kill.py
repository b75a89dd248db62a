"""Kill or pause `vidpipe run` anywhere and resume: the tables equal an uninterrupted run's.

The whole pipeline over a few seconds of synthesised footage, as a user runs it. Rows are compared as sets by id, in
every column but unit_id, times and host; latents and embeddings byte for byte.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from vidpipe.store.dataset import Dataset

LEFT_OUT = {"unit_id", "seconds", "host", "finished_at"}
RECIPE = """
[analyze]
min_seconds = 0.5
max_seconds = 0.8
window = "fixed"
[split]
heldout = 0.3
[encode]
where = "motion_score > 0.001 and not is_duplicate"
buckets = ["5x32x48", "5x48x32"]
fps = "8"
[engine]
workers = 2
unit_minutes = 0.05
unit_mb = 0.002
commit_seconds = 0.01
[caption]
clips_per_unit = 3
[embed]
texts_per_unit = 2
"""
STEPS = [
    "write:done",
    "commit:outcomes-staged",
    "commit:opened",
    "commit:checked",
    "commit:committed",
    "commit:between-data-and-outcomes",
    "commit:after-outcomes",
    "create:published",
    "lease:recorded",
    "lease:fenced",
]


def write_video(path: Path, seed: int, num_frames: int, height: int = 48, width: int = 64) -> None:
    """Textured squares that move over a gradient."""
    rng = np.random.default_rng(seed)
    texture = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
    background = np.linspace(20, 200, height * width * 3).reshape(height, width, 3).astype(np.uint8)
    step_y, step_x = rng.integers(1, 4, 2)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=24)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for i in range(num_frames):
            frame = background.copy()
            y, x = (i * step_y + seed * 5) % (height - 16), (i * step_x + seed * 11) % (width - 16)
            frame[y : y + 16, x : x + 16] = texture
            for packet in stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Footage, recipe, and the uninterrupted run's dataset in `reference`."""
    folder = tmp_path_factory.mktemp("kill")
    footage = folder / "footage"
    footage.mkdir()
    for i in range(6):
        write_video(footage / f"v{i}.mp4", i, 50 + 6 * i, *((64, 48) if i % 2 else (48, 64)))
        (footage / f"v{i}.txt").write_text(f"textured square number {i}")
    (footage / "copy.mp4").write_bytes((footage / "v0.mp4").read_bytes())
    (footage / "broken.mp4").write_bytes((footage / "v1.mp4").read_bytes()[:200])
    (footage / "notes.md").write_text("not media")
    (folder / "recipe.toml").write_text(RECIPE)
    done = start(folder, folder / "reference").wait(timeout=240)
    assert done == 0
    return folder


def start(workplace: Path, output: Path, failpoint: str = "", scheduler: str = "sync") -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VIDPIPE_FAILPOINT": failpoint}
    command = [sys.executable, "-m", "vidpipe.cli", "run", str(workplace / "recipe.toml"), "--no-report"]
    command += ["--source", str(workplace / "footage"), "--output", str(output), "--set", "engine.lease_seconds=4"]
    return subprocess.Popen(
        [*command, *(["--scheduler", scheduler] if scheduler else [])],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def contents(root: Path) -> dict[str, Counter[Any]]:
    """Rows of every table as a multiset, without what may differ."""
    dataset = Dataset(root)
    found = {}
    for name in dataset.names():
        schema = dataset.table(name).schema
        rows = dataset.read(name, [c for c in schema.names if c not in LEFT_OUT]).to_pylist()
        found[name] = Counter(tuple(sorted((k, repr(v)) for k, v in row.items())) for row in rows)
    return found


def assert_same(workplace: Path, output: Path) -> None:
    expected, found = contents(workplace / "reference"), contents(output)
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name] == expected[name], f"{name}: {found[name] - expected[name]} / {expected[name] - found[name]}"


def resume(workplace: Path, output: Path) -> None:
    assert start(workplace, output).wait(timeout=240) == 0


def test_the_reference_is_worth_comparing_with(workplace: Path) -> None:
    found = contents(workplace / "reference")
    sizes = {name: sum(rows.values()) for name, rows in found.items()}
    assert sizes["videos"] == 14 and sizes["clips"] >= 10 and sizes["captions"] == sizes["clips"]
    assert sum(n for name, n in sizes.items() if name.startswith("latents/")) >= 10
    assert len([n for n in sizes if n.startswith("latents/")]) == 2
    copy = [r for r in Dataset(workplace / "reference").read("videos").to_pylist() if len(r["uris"]) == 2]
    assert [[Path(u).name for u in r["uris"]] for r in copy] == [["copy.mp4", "v0.mp4"]]


@pytest.mark.parametrize("step", ["commit:between-data-and-outcomes", "commit:checked"])
def test_killed_between_the_commits_of_every_stage_in_turn(workplace: Path, tmp_path: Path, step: str) -> None:
    """One dataset; the n-th run dies at the next pass of the step, which walks through the stages."""
    deaths = 0
    for _ in range(3):
        deaths += start(workplace, tmp_path / "d", f"{step}:2").wait(timeout=240) == -signal.SIGKILL
    assert deaths == 3
    resume(workplace, tmp_path / "d")
    assert_same(workplace, tmp_path / "d")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_every_pass_of_a_step(workplace: Path, tmp_path: Path, step: str) -> None:
    for number in (1, 2, 3, 5, 8, 13, 21):
        output = tmp_path / f"d{number}"
        start(workplace, output, f"{step}:{number}").wait(timeout=240)
        resume(workplace, output)
        assert_same(workplace, output)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_at_ten_random_moments_with_workers_alive(workplace: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    for number in range(10):
        output = tmp_path / f"d{number}"
        process = start(workplace, output, scheduler="")
        time.sleep(rng.uniform(2.0, 25.0))
        process.kill()
        process.wait()
        resume(workplace, output)
        assert_same(workplace, output)


@pytest.mark.parametrize(
    "step", ["commit:checked:4", pytest.param("commit:between-data-and-outcomes:2", marks=pytest.mark.long)]
)
def test_paused_past_its_lease_nothing_it_commits_afterwards_is_visible(
    workplace: Path, tmp_path: Path, step: str
) -> None:
    output = tmp_path / "d"
    paused = start(workplace, output, f"{step}:stop")
    try:
        until = time.monotonic() + 120
        while not stopped(paused.pid) and time.monotonic() < until:
            time.sleep(0.1)
        assert stopped(paused.pid)
        resume(workplace, output)
        versions = {name: Dataset(output).table(name).version for name in Dataset(output).names()}
        paused.send_signal(signal.SIGCONT)
        assert paused.wait(timeout=120) != 0
    finally:
        paused.kill()
    assert_same(workplace, output)
    assert versions == {name: Dataset(output).table(name).version for name in versions}


def stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return False


def test_interrupt_stops_cleanly_and_loses_nothing_committed(workplace: Path, tmp_path: Path) -> None:
    output = tmp_path / "d"
    process = start(workplace, output, scheduler="")
    until = time.monotonic() + 120
    while time.monotonic() < until and not (output / "outcomes/analyze.lance").exists():
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    resume(workplace, output)
    assert_same(workplace, output)
