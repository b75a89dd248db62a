"""Runs of blank frames, black or flat: the shots before and after end there, and the run is a shot of its own."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from schemas.errors import UserError
from vidpipe.shots.detector import DetectorConfig, ShotDetector, Transition
from vidpipe.shots.frames import ShotFrames

LEAVE = 1.5  # a run ends with a frame this many times as bright as what began it, so that flicker does not end it


class Fades(ShotDetector):
    """Cut before and after a run of blank frames, be it a fade, a dip to white or a hard cut to black.

    PySceneDetect's `threshold` detector cuts once, in the middle of the black: each clip then keeps half of it.
    """

    name = "fades"
    version = 1

    @dataclass(frozen=True, kw_only=True)
    class Config(DetectorConfig):
        """Parameters.

        Attributes:
            black: a frame is black if its mean grey is below, in [0, 255].
            flat: a frame is flat if the grey of its middle half, each way, has a lower standard deviation.
            min_frames: shorter runs are left alone.
        """

        black: float = 4.0
        flat: float = 1.5
        min_frames: int = 2

        def __post_init__(self) -> None:
            if self.min_frames < 1:
                raise UserError(f"min_frames must be at least 1, found {self.min_frames}")

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        self._found: list[Transition] = []
        self._num_frames = 0
        self._blank_since: int | None = None

    def push(self, frames: ShotFrames) -> None:
        _, height, width = frames.gray_THW.shape
        rows = slice(height // 4, max(height // 4 + 1, height - height // 4))
        columns = slice(width // 4, max(width // 4 + 1, width - width // 4))
        for gray_HW in frames.gray_THW:
            if not self._blank(gray_HW, gray_HW[rows, columns]):
                self._end_run()
            elif self._blank_since is None:
                self._blank_since = self._num_frames
            self._num_frames += 1

    def _blank(self, gray_HW: np.ndarray, middle_HW: np.ndarray) -> bool:
        slack = 1.0 if self._blank_since is None else LEAVE
        if cv2.mean(gray_HW)[0] < self.config.black * slack:
            return True
        _, deviation = cv2.meanStdDev(middle_HW)
        return float(deviation.max()) < self.config.flat * slack

    def _end_run(self) -> None:
        start, self._blank_since = self._blank_since, None
        if start is not None and self._num_frames - start >= self.config.min_frames:
            self._found += [Transition(start, start), Transition(self._num_frames, self._num_frames)]

    def finish(self) -> list[Transition]:
        self._end_run()
        return self._found
