"""Black bars: what one frame says about them, and the picture area as last seen.

On each side, the first lit pixel of every column (or row) is found. A bar's inner edge is straight, so most of these
agree; the margin is their mode, and its support is the share within one pixel of it. So a title over a bar (a minority
of columns lit early) and a dark part of the picture (columns lit late) leave the margin alone, while a skyline or a
nearly black frame has no support and counts as no evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

MAX_BAR_LEVEL = 24
LIT_ABOVE_BAR = 8
MIN_SUPPORT = 0.5
MIN_MARGIN_PX = 2
MIN_PICTURE = 0.2


class Box(NamedTuple):
    """The picture as fractions of the frame: y in [top, bottom), x in [left, right)."""

    top: float
    bottom: float
    left: float
    right: float

    def pixels(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Whole pixels inside the box: top, bottom, left, right; at least one pixel each way."""
        top, left = math.ceil(self.top * height - 1e-6), math.ceil(self.left * width - 1e-6)
        bottom, right = math.floor(self.bottom * height + 1e-6), math.floor(self.right * width + 1e-6)
        return min(top, height - 1), max(bottom, top + 1), min(left, width - 1), max(right, left + 1)


FULL = Box(0.0, 1.0, 0.0, 1.0)


class Margins(NamedTuple):
    """Widths of the bars in pixels of the analysed frame, fractions of a pixel included; NaN without evidence."""

    top: float
    bottom: float
    left: float
    right: float


NO_BARS = Margins(0.0, 0.0, 0.0, 0.0)
NO_EVIDENCE = Margins(math.nan, math.nan, math.nan, math.nan)


def find_margins(gray_HW: np.ndarray) -> Margins:
    """What one frame says about its bars.

    Args:
        gray_HW: uint8.
    Returns:
        a margin for each side: 0 where there is evidence of no bar. All NaN where the bars would leave less than
        MIN_PICTURE of the frame each way: that is a dark frame.
    """
    height, width = gray_HW.shape
    top, bottom = _side(gray_HW), _side(gray_HW[::-1])
    rows = gray_HW[_whole(top) : height - _whole(bottom)]
    if rows.shape[0] < MIN_PICTURE * height:
        return NO_EVIDENCE
    left, right = _side(rows.T), _side(rows.T[::-1])
    if width - _whole(left) - _whole(right) < MIN_PICTURE * width:
        return NO_EVIDENCE
    return Margins(top, bottom, left, right)


def _whole(margin: float) -> int:
    return 0 if math.isnan(margin) else math.ceil(margin)


def _side(lines: np.ndarray) -> float:
    """Margin before the first row of `lines`; NaN without evidence."""
    level = float(np.median(lines[0]))
    if level > MAX_BAR_LEVEL:
        return 0.0
    lit = lines > level + LIT_ABOVE_BAR
    first = lit.argmax(axis=0)
    first = np.where(lit.any(axis=0), first, len(lines))
    counts = np.bincount(first, minlength=len(lines) + 1)[: len(lines)]
    if not counts.any():
        return math.nan
    near = np.convolve(counts, (1, 1, 1), "same")
    mode = int(near.argmax())
    if near[mode] < MIN_SUPPORT * lines.shape[1]:
        return math.nan
    if mode < MIN_MARGIN_PX:
        return 0.0
    return _edge(lines, first, mode, level)


def _edge(lines: np.ndarray, first: np.ndarray, mode: int, level: float) -> float:
    """Where the bar ends between pixels: the first lit row is as bright as the picture covers it."""
    agree = np.abs(first - mode) <= 1
    rows = lines[max(0, mode - 1) : mode + 4][:, agree].mean(axis=1) - level
    picture = rows[-1]
    if picture <= 0:
        return float(mode + 1)
    covered = np.clip(rows[:-1] / picture, 0.0, 1.0).sum()
    return float(max(0, mode - 1) + len(rows) - 1 - covered)


@dataclass(kw_only=True)
class PictureArea:
    """The picture's box as last seen: a side keeps its margin until a frame has evidence of another."""

    margins: Margins = NO_BARS

    def update(self, found: Margins, height: int, width: int) -> Box:
        """Take a frame's evidence in; return the box, rounded inwards to whole pixels of that frame."""
        kept = [new if not math.isnan(new) else old for new, old in zip(found, self.margins)]
        self.margins = Margins(*kept)
        top, bottom, left, right = (math.ceil(m) for m in self.margins)
        if top + bottom >= height or left + right >= width:
            return FULL
        return Box(top / height, 1 - bottom / height, left / width, 1 - right / width)
