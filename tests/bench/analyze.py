"""Analyze against PySceneDetect with the same scores in its one pass over OpenCV's VideoCapture, on one core.

    python tests/bench/analyze.py FILE... [--heights 1080 720 480] [--rounds 5] [--seconds 10] [--profile]

Each file is brought to each height (H.264, x264's medium preset at crf 23) and analysed by turns, so that a busy
machine slows all alike; times are CPU time of the process (user and system, all threads) pinned to one core, the least
of the rounds. What is compared:

- `grab`: VideoCapture.grab, which decodes and gives no pixels: the floor.
- `scan`: our reader, every frame at a short side of 256.
- `analyze`: vidpipe.analyze, all detectors and all scores of the default recipe.
- `scenedetect`: SceneManager over VideoCapture with its AdaptiveDetector, and a detector beside it that feeds the same
  scorers at the same sampling. Both see frames of the same size (SceneManager's own resize, to a short side of 256).
  It finds no fades and no dissolves.
- `reduced`: the same, with frames reduced by four before AdaptiveDetector, as ours are: not what PySceneDetect does,
  but it tells what of the difference that idea is.

Prints a table in Markdown; `--profile` adds where analyze spends what it needs beyond `grab`.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import scenedetect.scene_manager
from scenedetect import AdaptiveDetector, SceneDetector, SceneManager
from scenedetect.backends.opencv import VideoCaptureAdapter

from vidpipe.analyze import AnalyzeConfig, analyze_video, make_scorers
from vidpipe.media.decode import open_video
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


def scan(path: str) -> int:
    """Our reader alone."""
    with open_video(path) as reader:
        return sum(len(batch) for batch in reader.scan(max_short_side=SHORT_SIDE))


def analyze(path: str) -> int:
    """All that the analyze stage does for a video, probing included."""
    row = {**probe(path).to_row(), "video_id": b"v" * 16}
    return analyze_video(path, row, AnalyzeConfig()).num_frames


class ReducedAdaptive(AdaptiveDetector):
    """AdaptiveDetector on frames reduced by four, as ours are."""

    def process_frame(self, timecode: Any, frame_img: np.ndarray) -> Any:
        return super().process_frame(timecode, reduce(frame_img, 4))


class Scores(SceneDetector):
    """Feeds our scorers from PySceneDetect's pass; BGR is taken for RGB, which costs nothing and changes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.track = Track(make_scorers(AnalyzeConfig()))
        self._count = 0

    def process_frame(self, timecode: Any, frame_img: np.ndarray) -> Any:
        self.track.push(self._count, timecode.seconds, frame_img)
        self._count += 1
        return []


def with_scenedetect(path: str, detector: type[AdaptiveDetector] = AdaptiveDetector) -> int:
    """PySceneDetect with our scores in its pass."""
    manager = SceneManager()
    manager.add_detector(detector())
    manager.add_detector(Scores())
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


WAYS: dict[str, Callable[[str], int]] = {
    "grab": grab,
    "scan": scan,
    "analyze": analyze,
    "scenedetect": with_scenedetect,
    "reduced": lambda path: with_scenedetect(path, ReducedAdaptive),
}


def encoded(source: str, height: int, seconds: float, folder: Path) -> str:
    """The source at a height, as H.264."""
    path = folder / f"{Path(source).stem}-{height}.mp4"
    command = ["ffmpeg", "-v", "error", "-y", "-t", str(seconds), "-i", source, "-an", "-vf", f"scale=-2:{height}"]
    command += ["-c:v", "libx264", "-crf", "23", "-pix_fmt", "yuv420p", "-threads", "1", str(path)]
    subprocess.run(command, check=True)
    return str(path)


def measure(path: str, rounds: int) -> tuple[dict[str, float], int]:
    """Milliseconds of CPU a frame of each way, the least of the rounds, taken by turns; and the frames."""
    best = dict.fromkeys(WAYS, float("inf"))
    counts = {}
    for _ in range(rounds):
        for name, way in WAYS.items():
            start = time.process_time()
            counts[name] = way(path)
            best[name] = min(best[name], (time.process_time() - start) * 1e3 / counts[name])
    assert len(set(counts.values())) == 1, f"{path}: frames differ: {counts}"
    return best, counts["grab"]


def profile(path: str) -> None:
    """Where analyze spends its time, by function; the profiler's own cost is in the Python parts."""
    profiler = cProfile.Profile()
    profiler.runcall(analyze, path)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--heights", type=int, nargs="+", default=[1080, 720, 480])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    cv2.setNumThreads(1)
    columns = [f"{name}, ms" for name in WAYS]
    columns += ["scenedetect / analyze", "reduced / analyze", "analyze / grab"]
    print(f"| footage | height | {' | '.join(columns)} |")
    print("|-" * (len(WAYS) + 5) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for height in args.heights:
            for source in args.files:
                path = encoded(source, height, args.seconds, Path(folder))
                best, count = measure(path, args.rounds)
                row = [f"{Path(source).name}, {count} frames", str(height), *(f"{best[n]:.2f}" for n in WAYS)]
                pairs = (("scenedetect", "analyze"), ("reduced", "analyze"), ("analyze", "grab"))
                row += [f"{best[a] / best[b]:.2f}" for a, b in pairs]
                print("| " + " | ".join(row) + " |", flush=True)
                if args.profile:
                    profile(path)


if __name__ == "__main__":
    main()
