"""From stored to displayed pixels: pixel aspect, then rotation, then reflection."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_PIXEL_ASPECT = 8.0
"""A pixel aspect beyond this, either way, is taken for a broken header and ignored."""


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """How stored pixels are shown.

    Attributes:
        coded_hw: stored height and width.
        sar: pixel aspect, width over height, as (numerator, denominator).
        rotation: clockwise degrees, 0, 90, 180 or 270, applied after the pixel aspect.
        hflip: mirror left to right, after the rotation.
    """

    coded_hw: tuple[int, int]
    sar: tuple[int, int] = (1, 1)
    rotation: int = 0
    hflip: bool = False

    @property
    def square_hw(self) -> tuple[int, int]:
        """Size with square pixels, before rotation: the height stays, the width is scaled."""
        height, width = self.coded_hw
        return height, max(1, round(width * self.sar[0] / self.sar[1]))

    @property
    def display_hw(self) -> tuple[int, int]:
        """Size as displayed."""
        height, width = self.square_hw
        return (width, height) if self.rotation % 180 else (height, width)

    def before_rotation(self, size_hw: tuple[int, int]) -> tuple[int, int]:
        """Size that becomes `size_hw` once rotated."""
        return (size_hw[1], size_hw[0]) if self.rotation % 180 else size_hw

    def orient(self, frames_THWC: np.ndarray) -> np.ndarray:
        """Rotate and mirror; a view where numpy can."""
        if self.rotation:
            frames_THWC = np.rot90(frames_THWC, k=-(self.rotation // 90), axes=(1, 2))
        return frames_THWC[:, :, ::-1] if self.hflip else frames_THWC

    def orient_torch(self, frames_TCHW: Any) -> Any:
        """`orient` for a torch tensor [T, C, H, W]."""
        import torch

        if self.rotation:
            frames_TCHW = torch.rot90(frames_TCHW, k=-(self.rotation // 90), dims=(2, 3))
        return frames_TCHW.flip(3) if self.hflip else frames_TCHW


def fit_short_side(display_hw: tuple[int, int], short_side: int) -> tuple[int, int]:
    """Scale a size down so that its short side is at most `short_side`; even numbers, at least 2. Never scales up."""
    height, width = display_hw
    short = min(height, width)
    if short <= short_side:
        return display_hw
    scale = short_side / short
    return max(2, round(height * scale / 2) * 2), max(2, round(width * scale / 2) * 2)


def clean_sar(num: int, den: int) -> tuple[int, int]:
    """Pixel aspect with nonsense (zero, negative, beyond MAX_PIXEL_ASPECT) replaced by 1:1."""
    if num <= 0 or den <= 0 or not 1 / MAX_PIXEL_ASPECT <= num / den <= MAX_PIXEL_ASPECT:
        return 1, 1
    divisor = math.gcd(num, den)
    return num // divisor, den // divisor


def orientation(matrix: Sequence[int]) -> tuple[int, bool]:
    """Rotation and reflection of an FFmpeg display matrix (9 integers, 16.16 fixed point, row vectors, y down).

    Returns:
        clockwise rotation as 0, 90, 180 or 270 (the nearest; 0 for a degenerate matrix), and whether to mirror left to
        right afterwards.
    """
    a, b, c, d = matrix[0], matrix[1], matrix[3], matrix[4]
    determinant = a * d - b * c
    if not determinant:
        return 0, False
    hflip = determinant < 0
    if hflip:  # undo the mirror, which negates x' = a x + c y, to see the rotation
        a = -a
    rotation = round(math.degrees(math.atan2(b, a)) / 90) % 4 * 90
    return rotation, hflip


def orientation_of(side_data: bytes) -> tuple[int, bool]:
    """`orientation` of the bytes of AV_FRAME_DATA_DISPLAYMATRIX."""
    return orientation(struct.unpack("=9i", side_data[:36]))
