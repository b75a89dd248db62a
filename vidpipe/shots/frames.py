"""Frames at the size that shot detectors see, with what several of them need computed once.

They are an exact integer reduction of the decoded frames, by halving where that is possible: OpenCV's area average over
2 x 2 pixels costs a tenth of one over a fractional number of pixels, and two of them a third of one over 4 x 4.
"""

from __future__ import annotations

from functools import cached_property

import cv2
import numpy as np


class ShotFrames:
    """Consecutive frames at small size.

    Attributes:
        rgb_THWC: uint8 RGB.
    """

    def __init__(self, rgb_THWC: np.ndarray) -> None:
        self.rgb_THWC = rgb_THWC

    def __len__(self) -> int:
        return len(self.rgb_THWC)

    @cached_property
    def gray_THW(self) -> np.ndarray:
        """uint8 luma, BT.601 weights."""
        gray_THW = np.empty(self.rgb_THWC.shape[:3], np.uint8)
        for rgb_HWC, gray_HW in zip(self.rgb_THWC, gray_THW):
            cv2.cvtColor(rgb_HWC, cv2.COLOR_RGB2GRAY, dst=gray_HW)
        return gray_THW


def shrink(frames_THWC: np.ndarray, short_side: int) -> np.ndarray:
    """Reduce frames by the integer that brings their short side nearest to `short_side`.

    Columns and rows that do not fill a block, fewer than that integer, are left out at the right and at the bottom.
    """
    num_frames, height, width, channels = frames_THWC.shape
    factor = max(1, round(min(height, width) / short_side))
    if factor == 1:
        return frames_THWC
    small_THWC = np.empty((num_frames, height // factor, width // factor, channels), np.uint8)
    for frame_HWC, small_HWC in zip(frames_THWC, small_THWC):
        reduce(frame_HWC, factor, small_HWC)
    return small_THWC


def reduce(image: np.ndarray, factor: int, out: np.ndarray | None = None) -> np.ndarray:
    """Mean over blocks of factor x factor pixels, rounded at each halving; incomplete blocks are left out."""
    height, width = image.shape[0] // factor, image.shape[1] // factor
    image = image[: height * factor, : width * factor]
    while factor % 2 == 0 and factor > 2:
        factor //= 2
        image = cv2.resize(image, (width * factor, height * factor), interpolation=cv2.INTER_AREA)
    return cv2.resize(image, (width, height), dst=out, interpolation=cv2.INTER_AREA)
