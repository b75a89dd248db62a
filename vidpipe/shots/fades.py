"""Black runs become shots of their own: cuts where the picture has gone and where it comes back."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from schemas.errors import UserError
from vidpipe.shots.detector import DetectorConfig, ShotDetector, ascending


class Fades(ShotDetector):
    """A run of black frames, be it a fade or a hard cut to black, is cut off at both ends.

    PySceneDetect's `threshold` detector cuts once, in the middle of the black: each clip then keeps half of it.
    """

    name = "fades"
    version = 1

    @dataclass(frozen=True, kw_only=True)
    class Config(DetectorConfig):
        """Parameters.

        Attributes:
            threshold: a frame is black if the mean of its RGB is below, in [0, 255].
            min_frames: shorter runs are left alone.
        """

        threshold: float = 4.0
        min_frames: int = 2

        def __post_init__(self) -> None:
            if self.min_frames < 1:
                raise UserError(f"min_frames must be at least 1, found {self.min_frames}")

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        self._cuts: list[int] = []
        self._num_frames = 0
        self._black_since: int | None = None

    def push(self, frames_THWC: np.ndarray) -> None:
        for frame_HWC in frames_THWC:
            black = sum(cv2.mean(frame_HWC)[:3]) < 3 * self.config.threshold
            if black and self._black_since is None:
                self._black_since = self._num_frames
            elif not black:
                self._end_run()
            self._num_frames += 1

    def _end_run(self) -> None:
        start, self._black_since = self._black_since, None
        if start is not None and self._num_frames - start >= self.config.min_frames:
            self._cuts += [start, self._num_frames]

    def finish(self) -> list[int]:
        self._end_run()
        return ascending(self._cuts, self._num_frames)
