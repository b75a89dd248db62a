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
        rgb_HWC: uint8 RGB; a view into the decoder's batch, not to be kept.
        box: the picture without black bars, as fractions of the frame, as last seen up to this frame.
    """

    def __init__(self, *, index: int, seconds: float, rgb_HWC: np.ndarray, box: Box = FULL) -> None:
        self.index = index
        self.seconds = seconds
        self.rgb_HWC = rgb_HWC
        self.box = box

    @cached_property
    def gray_HW(self) -> np.ndarray:
        """uint8 luma (BT.601 weights on RGB) of the whole frame."""
        return cv2.cvtColor(self.rgb_HWC, cv2.COLOR_RGB2GRAY)

    @cached_property
    def small_HW(self) -> np.ndarray:
        """`gray_HW` reduced by the integer that brings its short side nearest to SMALL_SHORT_SIDE."""
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
