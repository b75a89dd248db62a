"""Shots of known content for detectors."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from vidpipe.shots.detector import ShotDetector, merged
from vidpipe.shots.frames import ShotFrames

HEIGHT, WIDTH = 128, 228


@cache
def scene(seed: int, brightness: float = 110.0, contrast: float = 1.0) -> np.ndarray:
    """uint8 RGB picture, larger than a frame so that a camera can move over it."""
    rng = np.random.default_rng(seed)
    size = (HEIGHT * 2, WIDTH * 2)
    picture = np.zeros((*size, 3), np.float32)
    tint = rng.normal(0, 25, 3)
    for cells in (3, 6, 12, 24, 48):
        noise = rng.normal(0, 1, (cells, cells * 16 // 9, 3)).astype(np.float32)
        picture += cv2.resize(noise, size[::-1], interpolation=cv2.INTER_CUBIC) * 90 / cells**0.5
    return np.clip((picture + tint) * contrast + brightness, 0, 255).astype(np.uint8)


def shot(seed: int, num_frames: int, speed: float = 1.0, **look: float) -> list[np.ndarray]:
    """A shot with a camera that moves `speed` pixels a frame."""
    picture = scene(seed, **look)
    starts = [min(int(i * speed), WIDTH - 1) for i in range(num_frames)]
    return [picture[HEIGHT // 4 : HEIGHT // 4 + HEIGHT, x : x + WIDTH] for x in starts]


def blend(left: list[np.ndarray], right: list[np.ndarray]) -> list[np.ndarray]:
    """A linear dissolve between two takes of equal length; neither end is pure."""
    steps = len(left) + 1
    return [cv2.addWeighted(a, 1 - (i + 1) / steps, b, (i + 1) / steps, 0) for i, (a, b) in enumerate(zip(left, right))]


def detect(detector: ShotDetector, frames: list[np.ndarray], batch: int = 32) -> list[tuple[int, int]]:
    """Transitions of a video, pushed in batches."""
    for i in range(0, len(frames), batch):
        detector.push(ShotFrames(np.stack(frames[i : i + batch])))
    return [tuple(t) for t in merged(detector.finish(), len(frames))]


@pytest.fixture(scope="session")
def takes() -> SimpleNamespace:
    """Makers of shots, and `detect`."""
    return SimpleNamespace(scene=scene, shot=shot, blend=blend, detect=detect, height=HEIGHT, width=WIDTH)
