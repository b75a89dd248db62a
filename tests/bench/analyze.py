"""Analyze against PySceneDetect with the same scores in its one pass over OpenCV's VideoCapture, on one core.

    python tests/bench/analyze.py FILE... [--heights 1080 720 480] [--rounds 7] [--seconds 10] [--profile]

Each file is brought to each height (H.264, x264's medium preset at crf 23) and analysed by turns, so that a busy
machine slows all alike; times are CPU time of the process (user and system, all threads) pinned to one core, the
median of the rounds. What is compared:

- `grab`: VideoCapture.grab, which decodes and gives no pixels: the floor.
- `analyze`: vidpipe.analyze, all detectors and all scores of `--recipe` (pipelines/data/quickstart.toml), given the row
  that ingest made.
- `probed`: the same with the probe that ingest makes, which decodes the first frame: it counts in short files.
- `default`: the same with all detectors and scores of the default config, dissolves among them.
- `scenedetect`: SceneManager over VideoCapture with its AdaptiveDetector, and a detector beside it that feeds the same
  scorers at the same sampling. Both see frames of the same size (SceneManager's own resize, to a short side of 256).
  It finds no fades and no dissolves.
- `reduced`: the same, with frames reduced by four before AdaptiveDetector, as ours are: not what PySceneDetect does,
  but it tells what of the difference that idea is.

Prints a table in Markdown; `--profile` adds a profile of analyze by function, in milliseconds a frame.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import scenedetect.scene_manager
from scenedetect import AdaptiveDetector, SceneDetector, SceneManager
from scenedetect.backends.opencv import VideoCaptureAdapter

from schemas.config import build
from vidpipe.analyze import AnalyzeConfig, analyze_video, make_scorers
from vidpipe.media.probe import probe
from vidpipe.scorers.track import Track
from vidpipe.shots.frames import reduce

SHORT_SIDE = AnalyzeConfig().short_side


def capture(path: str) -> cv2.VideoCapture:
    """VideoCapture with one decoding thread."""
    return cv2.VideoCapture(path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])


def grab(path: str) -> int:
    """Decode all frames and look at none."""
    video, count = capture(path), 0
    while video.grab():
        count += 1
    return count


@lru_cache
def row_of(path: str) -> dict[str, Any]:
    """The file's row of `videos`."""
    return {**probe(path).to_row(), "video_id": b"v" * 16}


def analyze(path: str, config: AnalyzeConfig) -> int:
    """All that the analyze stage does for a video."""
    return analyze_video(path, row_of(path), config).num_frames


def recipe_config(path: str) -> AnalyzeConfig:
    """`[analyze]` of a recipe."""
    return build(AnalyzeConfig, tomllib.loads(Path(path).read_text())["analyze"], "analyze")


class ReducedAdaptive(AdaptiveDetector):
    """AdaptiveDetector on frames reduced by four, as ours are."""

    def process_frame(self, timecode: Any, frame_img: np.ndarray) -> Any:
        return super().process_frame(timecode, reduce(frame_img, 4))


class Scores(SceneDetector):
    """Feeds our scorers from PySceneDetect's pass; BGR is taken for RGB, which costs nothing and changes no time."""

    def __init__(self, config: AnalyzeConfig) -> None:
        super().__init__()
        self.track = Track(make_scorers(config))
        self._count = 0

    def process_frame(self, timecode: Any, frame_img: np.ndarray) -> Any:
        self.track.push(self._count, timecode.seconds, frame_img)
        self._count += 1
        return []


def with_scenedetect(path: str, config: AnalyzeConfig, detector: type[AdaptiveDetector] = AdaptiveDetector) -> int:
    """PySceneDetect with our scores in its pass."""
    manager = SceneManager()
    manager.add_detector(detector())
    manager.add_detector(Scores(config))
    video = VideoCaptureAdapter(capture(path))
    height, width = video.frame_size[1], video.frame_size[0]
    kept = scenedetect.scene_manager.compute_downscale_factor
    scenedetect.scene_manager.compute_downscale_factor = lambda *_: min(height, width) / SHORT_SIDE
    try:
        manager.detect_scenes(video)
    finally:
        scenedetect.scene_manager.compute_downscale_factor = kept
    return grab_count(manager)


def grab_count(manager: SceneManager) -> int:
    """Frames that the pass saw."""
    return next(d._count for d in manager._detector_list if isinstance(d, Scores))


def ways(config: AnalyzeConfig) -> dict[str, Callable[[str], int]]:
    """What is compared: name -> function of a path that gives the number of frames."""
    return {
        "grab": grab,
        "analyze": lambda path: analyze(path, config),
        "probed": lambda path: analyze(path, config) if probe(path) else 0,
        "default": lambda path: analyze(path, AnalyzeConfig()),
        "scenedetect": lambda path: with_scenedetect(path, config),
        "reduced": lambda path: with_scenedetect(path, config, ReducedAdaptive),
    }


def encoded(source: str, height: int, seconds: float, folder: Path) -> str:
    """The source at a height, as H.264."""
    path = folder / f"{Path(source).stem}-{height}.mp4"
    command = ["ffmpeg", "-v", "error", "-y", "-t", str(seconds), "-i", source, "-an", "-vf", f"scale=-2:{height}"]
    command += ["-c:v", "libx264", "-crf", "23", "-pix_fmt", "yuv420p", "-threads", "1", str(path)]
    subprocess.run(command, check=True)
    return str(path)


def measure(path: str, rounds: int, works: dict[str, Callable[[str], int]]) -> tuple[dict[str, float], int]:
    """Milliseconds of CPU a frame of each way, the median of the rounds, taken by turns; and the frames."""
    row_of(path)
    found: dict[str, list[float]] = {name: [] for name in works}
    counts = {}
    for _ in range(rounds):
        for name, way in works.items():
            start = time.process_time()
            counts[name] = way(path)
            found[name].append((time.process_time() - start) * 1e3 / counts[name])
    assert len(set(counts.values())) == 1, f"{path}: frames differ: {counts}"
    return {name: statistics.median(times) for name, times in found.items()}, counts["grab"]


def profile(path: str, config: AnalyzeConfig) -> None:
    """Where analyze spends its time, by function; the profiler's own cost is in the Python parts."""
    profiler = cProfile.Profile()
    num_frames = profiler.runcall(analyze, path, config)
    print("\n| calls a frame | ms a frame | function |\n|-|-|-|")
    rows = pstats.Stats(profiler).get_stats_profile().func_profiles.items()
    for name, row in sorted(rows, key=lambda item: -item[1].tottime)[:16]:
        calls = int(str(row.ncalls).partition("/")[0]) / num_frames
        print(f"| {calls:.2f} | {row.tottime * 1e3 / num_frames:.3f} | {name} |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--recipe", default="pipelines/data/quickstart.toml")
    parser.add_argument("--heights", type=int, nargs="+", default=[1080, 720, 480])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    cv2.setNumThreads(1)
    config = recipe_config(args.recipe)
    works = ways(config)
    columns = [f"{name}, ms" for name in works]
    columns += ["scenedetect / analyze", "reduced / analyze", "analyze / grab"]
    print(f"| footage | height | {' | '.join(columns)} |")
    print("|-" * (len(works) + 5) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for height in args.heights:
            for source in args.files:
                path = encoded(source, height, args.seconds, Path(folder))
                best, count = measure(path, args.rounds, works)
                row = [f"{Path(source).name}, {count} frames", str(height), *(f"{best[n]:.2f}" for n in works)]
                pairs = (("scenedetect", "analyze"), ("reduced", "analyze"), ("analyze", "grab"))
                row += [f"{best[a] / best[b]:.2f}" for a, b in pairs]
                print("| " + " | ".join(row) + " |", flush=True)
                if args.profile:
                    profile(path, config)


if __name__ == "__main__":
    main()
