"""A sampled frame as all scorers share it: grey, sizes and picture area are computed once, on first use.

H, W: height and width of the analysed frame, which is the displayed frame scaled to a small short side.
"""

from __future__ import annotations

from functools import cached_property

import cv2
import numpy as np

from vidpipe.scorers.bars import FULL, Box, Margins, find_margins
from vidpipe.shots.frames import reduce

SMALL_SHORT_SIDE = 128


class Sample:
    """One sampled frame.

    Attributes:
        index: frame number in the decoded stream, from 0.
        seconds: presentation time.
        box: the picture without black bars, as fractions of the frame, as last seen up to this frame.
    """

    def __init__(
        self,
        *,
        index: int,
        seconds: float,
        rgb_HWC: np.ndarray | None = None,
        small_HW: np.ndarray | None = None,
        box: Box = FULL,
    ) -> None:
        """Take the frame's uint8 RGB, or its `small_HW` where scorers need no more; views, not to be kept."""
        self.index = index
        self.seconds = seconds
        self.box = box
        self._rgb_HWC = rgb_HWC
        if small_HW is not None:
            self.small_HW = small_HW

    @property
    def rgb_HWC(self) -> np.ndarray:
        """uint8 RGB at the analysed size; only for scorers that are not `small`."""
        assert self._rgb_HWC is not None, "a scorer that uses more than small_HW must not be marked small"
        return self._rgb_HWC

    @cached_property
    def gray_HW(self) -> np.ndarray:
        """uint8 luma (BT.601 weights on RGB) of the whole frame; only for scorers that are not `small`."""
        return cv2.cvtColor(self.rgb_HWC, cv2.COLOR_RGB2GRAY)

    @cached_property
    def small_HW(self) -> np.ndarray:
        """uint8 luma at a short side near SMALL_SHORT_SIDE: the decoder's, else `gray_HW` reduced by an integer."""
        factor = round(min(self.gray_HW.shape) / SMALL_SHORT_SIDE)
        return self.gray_HW if factor <= 1 else reduce(self.gray_HW, factor)

    @cached_property
    def margins(self) -> Margins:
        """What this frame alone says about black bars."""
        return find_margins(self.gray_HW)

    def picture(self, image: np.ndarray) -> np.ndarray:
        """View of the part of `image` (this frame at any size) that is inside `box`."""
        if self.box == FULL:
            return image
        top, bottom, left, right = self.box.pixels(image.shape[0], image.shape[1])
        return image[top:bottom, left:right]
