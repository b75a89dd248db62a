"""Golden output of every scorer and shot detector: who changes the output must raise the version.

After raising a version: `python tests/vidpipe/test_golden_analyze.py` records the new output.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vidpipe import registry
from vidpipe.analyze import AnalyzeConfig, analyze_batches
from vidpipe.media.decode import FrameBatch
from vidpipe.shots.detector import merged
from vidpipe.shots.frames import ShotFrames, shrink

GOLDEN = Path(__file__).parent / "golden" / "analyze.json"
HEIGHT, WIDTH = 256, 456
DETECTORS = sorted(set(registry.SHOT_DETECTORS) - {"transnetv2"})  # its output is its package's
TOLERANCE = 1e-3


def frames() -> np.ndarray:
    """uint8 RGB of four shots, by integer arithmetic alone: a pan, a dissolve, a letterboxed one, black."""
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.int64)

    def look(seed: int, i: int) -> np.ndarray:
        u, v = x + i * (seed % 2), y + i // 2 * (seed % 3)
        cells = (u // 48 * 37 + v // 40 * 61) * (2 * seed + 5) * 29 % 150
        texture = [u * (seed + 3 + c) // 5 % 29 + u * v // (40 + 9 * seed) % 23 for c in range(3)]
        return np.stack([cells + 20 * c + t for c, t in enumerate(texture)], axis=2)

    first = [look(1, i) for i in range(40)]
    second = [look(2, i) for i in range(40)]
    mixed = [(a * (12 - i) + b * i) // 12 for i, (a, b) in enumerate(zip(first[-11:], second[:11]), 1)]
    third = [look(5, i) for i in range(40)]
    for frame in third:
        frame[:30] = frame[-30:] = 0
    black = [np.zeros((HEIGHT, WIDTH, 3), np.int64)] * 8
    return np.stack([*first[:-11], *mixed, *second[11:], *third, *black]).astype(np.uint8)


def measured() -> dict[str, dict[str, Any]]:
    """Version and output of each scorer and detector on those frames."""
    frames_THWC = frames()
    count = len(frames_THWC)
    batch = FrameBatch(
        frames_THWC=frames_THWC, pts=np.arange(count), durations=np.ones(count, int), damaged=np.zeros(count, bool)
    )
    base = Fraction(1, 24)
    row = {
        "video_id": b"v" * 16,
        "kind": "video",
        "stream_index": 0,
        "time_base_num": base.numerator,
        "time_base_den": base.denominator,
        "width": 3 * WIDTH,
        "height": 3 * HEIGHT,
    }
    spans = [{"start_seconds": a / 24, "end_seconds": b / 24} for a, b in ((0, 29), (41, 69), (69, 109), (0, 117))]
    config = AnalyzeConfig(scorers=tuple(sorted(registry.SCORERS)))
    clips = analyze_batches([batch], row, config, spans).clips
    found: dict[str, dict[str, Any]] = {}
    for name in registry.SCORERS:
        scorer = registry.load_scorer(name)
        output = [[clip[c.name] for c in scorer.columns] for clip in clips]
        found[f"scorer {name}"] = {"version": scorer.version, "output": output}
    for name in DETECTORS:
        detector = registry.load_shot_detector(name)()
        detector.push(ShotFrames(shrink(frames_THWC, 64)))
        output = [[int(t.start), int(t.end)] for t in merged(detector.finish(), count)]
        found[f"detector {name}"] = {"version": detector.version, "output": output}
    return found


def differs(name: str, now: Any, before: Any) -> bool:
    """Whether an output changed by more than another processor's arithmetic would change it."""
    if name == "scorer phash":
        pairs = zip(np.ravel(now), np.ravel(before))
        return any((a is None) != (b is None) or (int(a or 0) ^ int(b or 0)).bit_count() > 2 for a, b in pairs)
    if name.startswith("detector"):
        return now != before
    flat = [[np.nan if v is None else float(v) for v in np.ravel(side)] for side in (now, before)]
    return not np.allclose(*flat, rtol=TOLERANCE, atol=TOLERANCE / 10, equal_nan=True)


@pytest.fixture(scope="module")
def outputs() -> dict[str, dict[str, Any]]:
    return measured()


def check(name: str, now: dict[str, Any], golden: dict[str, Any] | None) -> None:
    record = f"record it: python {Path(__file__).name}"
    assert golden is not None, f"{name} has no golden output; {record}"
    changed = differs(name, now["output"], golden["output"])
    if now["version"] == golden["version"]:
        assert not changed, f"the output of {name} changed and its version did not: raise it, then {record}"
    assert now["version"] == golden["version"], f"{name} is now version {now['version']}; {record}"


NAMES = [*(f"scorer {n}" for n in registry.SCORERS), *(f"detector {n}" for n in DETECTORS)]


@pytest.mark.parametrize("name", NAMES)
def test_output_changes_with_the_version_alone(name, outputs):
    check(name, outputs[name], json.loads(GOLDEN.read_text()).get(name))


@pytest.mark.parametrize("name", NAMES)
def test_golden_output_is_worth_keeping(name, outputs):
    values = {str(v) for v in np.ravel(np.array(outputs[name]["output"], object)) if v is not None}
    if name == "detector threshold":  # black runs to the end here, and this one waits for a fade in
        assert not values
    else:
        assert len(values) > (0 if name.startswith("detector") else 1)


def test_a_changed_output_is_noticed():
    golden = {"version": 3, "output": [[0.5, None]]}
    check("scorer x", {"version": 3, "output": [[0.50001, None]]}, golden)
    with pytest.raises(AssertionError, match="its version did not"):
        check("scorer x", {"version": 3, "output": [[0.51, None]]}, golden)
    with pytest.raises(AssertionError, match="its version did not"):
        check("scorer x", {"version": 3, "output": [[0.5, 0.1]]}, golden)
    with pytest.raises(AssertionError, match="now version 4"):
        check("scorer x", {"version": 4, "output": [[0.51, None]]}, golden)
    with pytest.raises(AssertionError, match="its version did not"):
        check("detector x", {"version": 1, "output": [[4, 4]]}, {"version": 1, "output": [[5, 5]]})


if __name__ == "__main__":
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(measured().items())]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
