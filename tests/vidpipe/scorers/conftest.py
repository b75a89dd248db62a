"""Footage of known content for scorers, and how a scorer is run over frames."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from vidpipe.scorers.base import Scorer, Span
from vidpipe.scorers.track import Track

FPS = 24.0


@cache
def scene(seed: int = 0, height: int = 720, width: int = 1280) -> np.ndarray:
    """uint8 RGB picture with edges and texture at all scales that a lens would give."""
    rng = np.random.default_rng(seed)
    picture = np.zeros((height, width, 3), np.float32)
    for size in (4, 8, 16, 32, 64, 128, 256):
        noise = rng.normal(0, 1, (size, size * 16 // 9, 3)).astype(np.float32)
        picture += cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC) * 70 / size**0.5
    for _ in range(30):
        x, y, r = rng.integers(0, width), rng.integers(0, height), rng.integers(height // 40, height // 8)
        colour = tuple(float(c) for c in rng.normal(0, 60, 3))
        cv2.circle(picture, (int(x), int(y)), int(r), colour, -1, cv2.LINE_AA)
    return np.clip(picture + 110, 30, 240).astype(np.uint8)


def pan(picture: np.ndarray, seconds: float, velocity: tuple[float, float], fps: float = FPS) -> list[np.ndarray]:
    """A view of two thirds of the picture that moves by `velocity` (x, y) of its diagonal per second."""
    picture = scaled([picture], 540)[0]
    height, width = picture.shape[0] * 2 // 3, picture.shape[1] * 2 // 3
    diagonal = float(np.hypot(height, width))
    middle = ((picture.shape[1] - width) / 2, (picture.shape[0] - height) / 2)
    frames = []
    for i in range(round(seconds * fps)):
        t = i / fps - seconds / 2
        shift = [m + v * diagonal * t for m, v in zip(middle, velocity)]
        matrix = np.float32([[1, 0, -shift[0]], [0, 1, -shift[1]]])
        frames.append(cv2.warpAffine(picture, matrix, (width, height), flags=cv2.INTER_LINEAR))
    return frames


def scaled(frames: Iterable[np.ndarray], height: int) -> list[np.ndarray]:
    """Frames brought to a height, as a camera of that resolution would see them."""
    return [
        cv2.resize(f, (round(f.shape[1] * height / f.shape[0]), height), interpolation=cv2.INTER_AREA) for f in frames
    ]


def boxed(frames: Iterable[np.ndarray], top: int, bottom: int, left: int = 0, right: int = 0) -> list[np.ndarray]:
    """Frames with black bars around them, in pixels."""
    return [cv2.copyMakeBorder(f, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(0, 0, 0)) for f in frames]


def score(
    scorer: Scorer,
    frames: list[np.ndarray],
    fps: float = FPS,
    *,
    times: list[float] | None = None,
    spans: list[tuple[int, int]] | None = None,
    short_side: int = 256,
) -> Any:
    """Columns of the scorer for all frames, or a list of them for spans (first and last frame, inclusive)."""
    seconds = times or [i / fps for i in range(len(frames))]
    track = Track([scorer])
    for i, frame in enumerate(frames):
        if i == 0 or frame is not frames[i - 1]:
            small = scaled([frame], short_side)[0] if min(frame.shape[:2]) > short_side else np.ascontiguousarray(frame)
        track.push(i, seconds[i], small)
    height, width = frames[0].shape[:2]
    found = [
        track.summarise(
            Span(
                first=first,
                last=last,
                start_seconds=seconds[first],
                end_seconds=seconds[last] + 1 / fps,
                width=width,
                height=height,
                analysed_width=track.analysed_hw[1],
                analysed_height=track.analysed_hw[0],
            )
        )
        for first, last in spans or [(0, len(frames) - 1)]
    ]
    return found if spans else found[0]


@pytest.fixture(scope="session")
def footage() -> SimpleNamespace:
    """Makers of footage, and `score`."""
    return SimpleNamespace(scene=scene, pan=pan, scaled=scaled, boxed=boxed, score=score, fps=FPS)
