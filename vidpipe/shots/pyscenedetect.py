"""PySceneDetect's detectors (0.7), driven with the frames that we decode anyway.

Their minimum scene length is 0, see `vidpipe.shots.detector`. Content and adaptive detection compute the same scores
as PySceneDetect's own, bit for bit, without its int32 copies: a third of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from scenedetect import (
    AdaptiveDetector,
    ContentDetector,
    FrameTimecode,
    HashDetector,
    HistogramDetector,
    ThresholdDetector,
)

from schemas.errors import UserError
from vidpipe.shots.detector import DetectorConfig, ShotDetector, ascending

RATE = 25.0  # any rate will do: only frame numbers are used


class _FastScore:
    """ContentDetector's frame score from RGB by OpenCV's own reductions."""

    _weights: Any
    _last_hsv: np.ndarray | None = None

    def _calculate_frame_score(self, timecode: FrameTimecode, frame_img: np.ndarray) -> float:
        hsv = cv2.cvtColor(frame_img, cv2.COLOR_RGB2HSV)
        last, self._last_hsv = self._last_hsv, hsv
        if last is None:
            return 0.0
        means = cv2.mean(cv2.absdiff(hsv, last))[:3]
        weights = self._weights[:3]
        return sum(m * w for m, w in zip(means, weights)) / sum(abs(w) for w in weights)


class _FastContent(_FastScore, ContentDetector):
    pass


class _FastAdaptive(_FastScore, AdaptiveDetector):
    pass


class SceneDetectShots(ShotDetector):
    """Drives one PySceneDetect detector."""

    version = 1
    wants_bgr = True

    def __init__(self, config: DetectorConfig | None = None) -> None:
        self.config: Any = config or self.Config()
        self._detector = self.make()
        self._cuts: list[int] = []
        self._num_frames = 0

    def make(self) -> Any:
        """The PySceneDetect detector."""
        raise NotImplementedError

    def push(self, frames_THWC: np.ndarray) -> None:
        for frame_HWC in frames_THWC:
            image = cv2.cvtColor(frame_HWC, cv2.COLOR_RGB2BGR) if self.wants_bgr else frame_HWC
            cuts = self._detector.process_frame(FrameTimecode(self._num_frames, RATE), image)
            self._cuts += [c.frame_num for c in cuts]
            self._num_frames += 1

    def finish(self) -> list[int]:
        if self._num_frames:
            cuts = self._detector.post_process(FrameTimecode(self._num_frames - 1, RATE))
            self._cuts += [c.frame_num for c in cuts]
        return ascending(self._cuts, self._num_frames)


@dataclass(frozen=True, kw_only=True)
class _Weights(DetectorConfig):
    weight_hue: float = 1.0
    weight_saturation: float = 1.0
    weight_luma: float = 1.0

    def __post_init__(self) -> None:
        if not abs(self.weight_hue) + abs(self.weight_saturation) + abs(self.weight_luma) > 0:
            raise UserError("of weight_hue, weight_saturation and weight_luma one must not be 0")

    def components(self) -> Any:
        return ContentDetector.Components(self.weight_hue, self.weight_saturation, self.weight_luma, 0.0)


class Content(SceneDetectShots):
    """Cut where the mean change of hue, saturation and brightness reaches a threshold."""

    name = "content"
    wants_bgr = False

    @dataclass(frozen=True, kw_only=True)
    class Config(_Weights):
        """`threshold`: mean change, in [0, 255]."""

        threshold: float = 27.0

    def make(self) -> Any:
        return _FastContent(threshold=self.config.threshold, min_scene_len=0, weights=self.config.components())


class Adaptive(SceneDetectShots):
    """Cut where that change stands out from its neighbours', which camera motion does not."""

    name = "adaptive"
    wants_bgr = False

    @dataclass(frozen=True, kw_only=True)
    class Config(_Weights):
        """Parameters.

        Attributes:
            ratio: change over the mean change of the frames around it.
            window_frames: of these on either side.
            min_content: least change, in [0, 255].
        """

        ratio: float = 3.0
        window_frames: int = 2
        min_content: float = 15.0

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.window_frames < 1:
                raise UserError(f"window_frames must be at least 1, found {self.window_frames}")

    def make(self) -> Any:
        return _FastAdaptive(
            adaptive_threshold=self.config.ratio,
            window_width=self.config.window_frames,
            min_content_val=self.config.min_content,
            min_scene_len=0,
            weights=self.config.components(),
        )


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
