"""Recall and precision of the shot detectors on real shots joined with known cuts and dissolves.

    python tests/bench/shots.py MEDIA [--side 64] [--parts 24]

MEDIA is the folder of real footage. Shots without a cut in them (whole files, and parts of three trailers that were
looked at frame by frame) are cut to random lengths and joined: by hard cuts to another shot (`other`), by jumps within
one shot (`same`), and by linear dissolves of 8 to 36 frames. A hard cut counts as found at its exact frame or inside a
transition; a dissolve if a transition overlaps it. What is found anywhere else is false, as is anything in the shots
themselves (`single`). Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from vidpipe.media.decode import open_video
from vidpipe.shots.colour import Adaptive, Content
from vidpipe.shots.detector import ShotDetector, Transition, merged
from vidpipe.shots.fades import Fades
from vidpipe.shots.frames import ShotFrames, shrink
from vidpipe.shots.pyscenedetect import Hash, Histogram
from vidpipe.shots.structure import Structure

HEIGHT, WIDTH = 128, 228
WHOLE = (
    "sam2_dog.mp4",
    "intel_car_detection.mp4",
    "mdn_rabbit320.mp4",
    "sk_bigbuckbunny.mp4",
    "vali_test.mp4",
    "mdn_frog.mp4",
    "moviepy_fire2.mp4",
    "intel_asl_book.mkv",
    "exo_bbb_800x640_768kbps_30fps_avc_pyramid_3b.mp4",
)
PARTS = {
    "cosmos_video_30s.mp4": [
        (10, 72),
        (84, 150),
        (250, 286),
        (286, 320),
        (400, 455),
        (490, 523),
        (523, 573),
        (573, 610),
    ],
    "webm_bbb_trailer.webm": [(227, 280), (280, 330), (347, 375), (375, 400), (415, 466), (623, 650), (690, 749)],
}
DISSOLVES = (8, 16, 24, 36)

Joined = tuple[np.ndarray, list[tuple[int, int]]]


class Union(ShotDetector):
    """Several detectors as one, as analyze unites them."""

    def __init__(self, *detectors: ShotDetector) -> None:
        self._detectors = detectors

    def push(self, frames: ShotFrames) -> None:
        for detector in self._detectors:
            detector.push(frames)

    def finish(self) -> list[Transition]:
        return [t for d in self._detectors for t in d.finish()]


CANDIDATES: dict[str, Callable[[], ShotDetector]] = {
    "adaptive, PySceneDetect's 3.0 and 15": lambda: Adaptive(Adaptive.Config(ratio=3.0, min_content=15.0)),
    "adaptive, ours 2.5 and 12": Adaptive,
    "content, 27": Content,
    "hash": Hash,
    "histogram": Histogram,
    "structure": Structure,
    "adaptive + structure + fades (default)": lambda: Union(Adaptive(), Structure(), Fades()),
}


def read(path: Path) -> np.ndarray:
    """All frames of a file at HEIGHT x WIDTH, whatever its aspect."""
    with open_video(str(path)) as reader:
        return np.concatenate([b.frames_THWC for b in reader.scan(size_hw=(HEIGHT, WIDTH))])


def load(folder: Path) -> list[np.ndarray]:
    """Shots without a cut."""
    shots = [read(folder / name) for name in WHOLE]
    for name, parts in PARTS.items():
        frames = read(folder / name)
        shots += [frames[a:b] for a, b in parts]
    return shots


def take(shot: np.ndarray, low: int, high: int, rng: np.random.Generator) -> np.ndarray:
    """A random stretch of a shot."""
    length = min(len(shot), int(rng.integers(low, high)))
    start = int(rng.integers(0, len(shot) - length + 1))
    return shot[start : start + length]


def difference(left: np.ndarray, right: np.ndarray) -> float:
    """Mean absolute difference of two pictures."""
    return float(cv2.mean(cv2.absdiff(left, right))[0])


def hard_cuts(shots: list[np.ndarray], parts: int, rng: np.random.Generator) -> Joined:
    """Stretches of these shots end to end; joins that nobody could see are not made."""
    joined, cuts, last = [take(shots[0], 20, 50, rng)], [], 0
    for _ in range(20 * parts):
        chosen = int(rng.integers(len(shots)))
        stretch = take(shots[chosen], 12, 50, rng)
        if (chosen == last and len(shots) > 1) or difference(joined[-1][-1], stretch[0]) < 4:
            continue
        at = sum(map(len, joined))
        cuts.append((at, at))
        joined.append(stretch)
        last = chosen
        if len(cuts) == parts:
            break
    return np.concatenate(joined), cuts


def dissolves(shots: list[np.ndarray], parts: int, length: int, rng: np.random.Generator) -> Joined:
    """Stretches joined by linear dissolves of that many frames."""
    long_enough = [s for s in shots if len(s) >= 2 * length + 10]
    whole = take(long_enough[0], 2 * length + 10, 2 * length + 60, rng)
    spans: list[tuple[int, int]] = []
    weights = ((np.arange(length) + 1) / (length + 1)).reshape(-1, 1, 1, 1)
    for _ in range(20 * parts):
        stretch = take(long_enough[rng.integers(len(long_enough))], 2 * length + 10, 2 * length + 60, rng)
        if difference(whole[-1], stretch[0]) < 12:
            continue
        mixed = whole[-length:] * (1 - weights) + stretch[:length] * weights
        spans.append((len(whole) - length, len(whole)))
        whole = np.concatenate([whole[:-length], mixed.round().astype(np.uint8), stretch[length:]])
        if len(spans) == parts:
            break
    return whole, spans


def score(detector: ShotDetector, footage: Joined, side: int) -> tuple[int, int, int]:
    """Found, false, and all."""
    frames, truth = footage
    for start in range(0, len(frames), 256):
        detector.push(ShotFrames(shrink(frames[start : start + 256], side)))
    found = merged(detector.finish(), len(frames))
    hits = sum(any(t.start <= b and t.end >= a and (a == b or t.end > t.start) for t in found) for a, b in truth)
    false = sum(not any(t.start <= b + 2 * (b > a) and t.end >= a - 2 * (b > a) for a, b in truth) for t in found)
    return hits, false, len(truth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("media", type=Path)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--parts", type=int, default=24)
    args = parser.parse_args()
    cv2.setNumThreads(1)
    rng = np.random.default_rng(0)
    shots = load(args.media)
    sets: dict[str, list[Joined]] = {
        "other": [hard_cuts(shots, args.parts, rng) for _ in range(4)],
        "same": [hard_cuts([s], args.parts // 2, rng) for s in shots if len(s) >= 90],
        "single": [(s, []) for s in shots],
    }
    sets |= {f"dissolve {n}": [dissolves(shots, args.parts // 2, n, rng)] for n in DISSOLVES}
    print("| detector | " + " | ".join(f"{name}: found, false" for name in sets) + " |")
    print("|-" * (len(sets) + 1) + "|")
    for name, make in CANDIDATES.items():
        cells = []
        for footage in sets.values():
            hits, false, total = np.sum([score(make(), one, args.side) for one in footage], axis=0)
            cells.append(f"{hits}/{total}, {false}" if total else f"{false} false")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
