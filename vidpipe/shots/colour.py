"""PySceneDetect's content and adaptive detection: the mean change of hue, saturation and brightness between frames.

Scores and cuts are those of PySceneDetect 0.7's ContentDetector and AdaptiveDetector with a minimum scene length of 0
(a test holds them equal), without their int32 copies and time arithmetic, which cost three times the rest.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import cv2
import numpy as np

from schemas.errors import UserError
from vidpipe.shots.detector import DetectorConfig, ShotDetector, Transition
from vidpipe.shots.frames import ShotFrames

MAX_RATIO = 255.0
TINY = 1e-5


@dataclass(frozen=True, kw_only=True)
class ColourConfig(DetectorConfig):
    """Weights of the three changes in their mean."""

    weight_hue: float = 1.0
    weight_saturation: float = 1.0
    weight_luma: float = 1.0

    def __post_init__(self) -> None:
        if not abs(self.weight_hue) + abs(self.weight_saturation) + abs(self.weight_luma) > 0:
            raise UserError("one of weight_hue, weight_saturation and weight_luma must not be 0")

    @property
    def weights(self) -> tuple[float, float, float]:
        """Hue, saturation, brightness."""
        return self.weight_hue, self.weight_saturation, self.weight_luma


class ColourChange(ShotDetector):
    """Scores frames; subclasses decide on cuts."""

    version = 1
    Config = ColourConfig

    def __init__(self, config: ColourConfig | None = None) -> None:
        self.config = config or self.Config()
        self.scores = array("d")
        self._last_HWC: np.ndarray | None = None

    def push(self, frames: ShotFrames) -> None:
        weights = self.config.weights  # type: ignore[attr-defined]
        total = sum(abs(w) for w in weights)
        for frame_HWC in frames.rgb_THWC:
            hsv_HWC = cv2.cvtColor(frame_HWC, cv2.COLOR_RGB2HSV)
            if self._last_HWC is None:
                self.scores.append(0.0)
            else:
                means = cv2.mean(cv2.absdiff(hsv_HWC, self._last_HWC))
                self.scores.append(sum(m * w for m, w in zip(means, weights)) / total)
            self._last_HWC = hsv_HWC

    def finish(self) -> list[Transition]:
        return [Transition(c, c) for c in self.cuts(np.array(self.scores))]

    def cuts(self, scores_T: np.ndarray) -> list[int]:
        """First frames of new shots."""
        raise NotImplementedError


class Content(ColourChange):
    """Cut where the change reaches a threshold."""

    name = "content"

    @dataclass(frozen=True, kw_only=True)
    class Config(ColourConfig):
        """`threshold`: mean change, in [0, 255]."""

        threshold: float = 27.0

    def cuts(self, scores_T: np.ndarray) -> list[int]:
        return np.flatnonzero(scores_T >= self.config.threshold).tolist()  # type: ignore[attr-defined]


class Adaptive(ColourChange):
    """Cut where the change stands out from that of the frames around it, which camera motion does not."""

    name = "adaptive"

    @dataclass(frozen=True, kw_only=True)
    class Config(ColourConfig):
        """Parameters. PySceneDetect's own defaults are 3.0, 2 and 15; see docs/shots.md for why ours differ.

        Attributes:
            ratio: change over the mean change of the frames around it.
            window_frames: of these on either side.
            min_content: least change, in [0, 255].
        """

        ratio: float = 2.5
        window_frames: int = 2
        min_content: float = 12.0

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.window_frames < 1:
                raise UserError(f"window_frames must be at least 1, found {self.window_frames}")

    def cuts(self, scores_T: np.ndarray) -> list[int]:
        config: Adaptive.Config = self.config  # type: ignore[assignment]
        width = config.window_frames
        if len(scores_T) < 2 * width + 1:
            return []
        windows = np.lib.stride_tricks.sliding_window_view(scores_T, 2 * width + 1)
        middle = windows[:, width]
        mean = (windows.sum(axis=1) - middle) / (2 * width)
        still = np.abs(mean) < TINY
        ratio = np.minimum(middle / np.where(still, 1.0, mean), MAX_RATIO)
        ratio[still] = np.where(middle[still] >= config.min_content, MAX_RATIO, 0.0)
        return (np.flatnonzero((ratio >= config.ratio) & (middle >= config.min_content)) + width).tolist()
