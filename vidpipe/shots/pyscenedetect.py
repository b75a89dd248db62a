"""PySceneDetect's other detectors (0.7), driven with the frames that we decode anyway.

Their minimum scene length is 0, see `vidpipe.shots.detector`. Its content and adaptive detectors are in
`vidpipe.shots.colour`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import cv2
from scenedetect import FrameTimecode, HashDetector, HistogramDetector, ThresholdDetector

from schemas.errors import UserError
from vidpipe.shots.detector import DetectorConfig, ShotDetector, Transition
from vidpipe.shots.frames import ShotFrames

RATE = Fraction(25)  # any rate will do: only frame numbers are used


class SceneDetectShots(ShotDetector):
    """Drives one PySceneDetect detector."""

    version = 1

    def __init__(self, config: DetectorConfig | None = None) -> None:
        self.config: Any = config or self.Config()
        self._detector = self.make()
        self._cuts: list[int] = []
        self._num_frames = 0

    def make(self) -> Any:
        """The PySceneDetect detector."""
        raise NotImplementedError

    def push(self, frames: ShotFrames) -> None:
        for frame_HWC in frames.rgb_THWC:
            bgr_HWC = cv2.cvtColor(frame_HWC, cv2.COLOR_RGB2BGR)
            cuts = self._detector.process_frame(FrameTimecode(self._num_frames, RATE), bgr_HWC)
            self._cuts += [c.frame_num for c in cuts]
            self._num_frames += 1

    def finish(self) -> list[Transition]:
        if self._num_frames:
            cuts = self._detector.post_process(FrameTimecode(self._num_frames - 1, RATE))
            self._cuts += [c.frame_num for c in cuts]
        return [Transition(c, c) for c in self._cuts]


class Threshold(SceneDetectShots):
    """Cut in the middle of a fade through black, or where `bias` puts it: -1 at its start, 1 at its end."""

    name = "threshold"

    @dataclass(frozen=True, kw_only=True)
    class Config(DetectorConfig):
        """`threshold`: mean of RGB below which a frame counts as black, in [0, 255]."""

        threshold: int = 12
        bias: float = 0.0

        def __post_init__(self) -> None:
            if not -1 <= self.bias <= 1:
                raise UserError(f"bias must be in [-1, 1], found {self.bias}")

    def make(self) -> Any:
        return ThresholdDetector(threshold=self.config.threshold, fade_bias=self.config.bias, min_scene_len=0)


class Hash(SceneDetectShots):
    """Cut where the perceptual hash changes."""

    name = "hash"

    @dataclass(frozen=True, kw_only=True)
    class Config(DetectorConfig):
        """`threshold`: share of bits that change; `size`: side of the hash; `lowpass`: frequencies left out, as 1/n."""

        threshold: float = 0.35
        size: int = 8
        lowpass: int = 2

    def make(self) -> Any:
        config = self.config
        return HashDetector(threshold=config.threshold, size=config.size, lowpass=config.lowpass, min_scene_len=0)


class Histogram(SceneDetectShots):
    """Cut where the histogram of luma changes."""

    name = "histogram"

    @dataclass(frozen=True, kw_only=True)
    class Config(DetectorConfig):
        """`threshold`: one minus the correlation of neighbouring histograms; `bins`: of a histogram."""

        threshold: float = 0.2
        bins: int = 128

    def make(self) -> Any:
        return HistogramDetector(threshold=self.config.threshold, bins=self.config.bins, min_scene_len=0)
