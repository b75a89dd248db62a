"""Tiny pictures of frames straight from the decoder's planes, for a fraction of what exact scaling costs.

Rows are thinned out until four of luma, or two of chroma, are left to each of the thumbnail's; planes are halved by
averages over 2 x 2 pixels (OpenCV's fast case) while they are twice as large as it, and brought to its size by bilinear
interpolation; then the stream's matrix is applied. Only planar 8-bit YUV and grey go this way, other formats through
`Converter`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from vidpipe.media.convert import FULL_RANGE, Converter

PLANAR = frozenset(
    ("yuv420p", "yuvj420p", "yuv422p", "yuvj422p", "yuv444p", "yuvj444p", "yuv440p", "yuvj440p", "yuv411p", "gray")
)
LUMA_ROWS, CHROMA_ROWS = 4, 2
"""Rows of a plane that are averaged, at least, for a row of the thumbnail."""
LUMA = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 7: (0.212, 0.087), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}
"""Weights of red and blue by FFmpeg's number of the matrix; BT.601's for all others, as in FFmpeg."""
BT601 = (0.299, 0.114)
STRETCH = ((np.arange(256) - 16.0) * (255 / 219)).round().clip(0, 255).astype(np.uint8)
"""Limited to full range."""


class Thumbnailer:
    """Makes small pictures of frames as stored (before rotation), with square pixels.

    Args:
        hdr_transfer, primaries: as for `Converter`, which does what cannot be done directly.
    """

    def __init__(self, hdr_transfer: str | None = None, primaries: str | None = None) -> None:
        self._hdr = hdr_transfer, primaries
        self._converters: dict[tuple[int, int], Converter] = {}

    def to_rgb(self, frame: Any, out_HWC: np.ndarray) -> None:
        """Write a frame as uint8 RGB into `out_HWC` [H, W, 3], at its size."""
        import cv2

        size_hw = out_HWC.shape[0], out_HWC.shape[1]
        if not self._is_direct(frame):
            self._converter(size_hw).to_rgb(frame, out_HWC)
            return
        luma, *chroma = frame.planes
        planes = [shrunk(_view(luma), size_hw), *(shrunk(_view(plane), size_hw, CHROMA_ROWS) for plane in chroma)]
        if not chroma:
            planes += [np.full(size_hw, 128, np.uint8)] * 2
        cv2.transform(cv2.merge(planes), matrix(int(frame.colorspace), is_full_range(frame)), dst=out_HWC)

    def to_grey(self, frame: Any, size_hw: tuple[int, int]) -> np.ndarray:
        """Luma of a frame at that size, uint8 [H, W], stretched to [0, 255]."""
        import cv2

        if not self._is_direct(frame):
            rgb_HWC = np.empty((*size_hw, 3), np.uint8)
            self._converter(size_hw).to_rgb(frame, rgb_HWC)
            return cv2.cvtColor(rgb_HWC, cv2.COLOR_RGB2GRAY)
        luma = shrunk(_view(frame.planes[0]), size_hw)
        return luma if is_full_range(frame) else cv2.LUT(luma, STRETCH)

    def _is_direct(self, frame: Any) -> bool:
        return self._hdr[0] is None and frame.format.name in PLANAR

    def _converter(self, size_hw: tuple[int, int]) -> Converter:
        if size_hw not in self._converters:
            self._converters[size_hw] = Converter(size_hw, *self._hdr)
        return self._converters[size_hw]


def is_full_range(frame: Any) -> bool:
    """Whether a frame's code values span [0, 255]; grey does, as FFmpeg takes it."""
    return frame.color_range == FULL_RANGE or frame.format.name.startswith(("yuvj", "gray"))


def _view(plane: Any) -> np.ndarray:
    return np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height, : plane.width]


def shrunk(plane_HW: np.ndarray, size_hw: tuple[int, int], rows_each: int = LUMA_ROWS) -> np.ndarray:
    """One plane of uint8 at another size; see the module's docstring."""
    import cv2

    height, width = size_hw
    plane_HW = plane_HW[:: max(1, plane_HW.shape[0] // (rows_each * height))]
    rows, columns = plane_HW.shape
    while rows >= 2 * height and columns >= 2 * width:
        rows, columns = rows // 2, columns // 2
        plane_HW = cv2.resize(plane_HW[: 2 * rows, : 2 * columns], (columns, rows), interpolation=cv2.INTER_AREA)
    return cv2.resize(plane_HW, (width, height), interpolation=cv2.INTER_LINEAR)


@lru_cache(maxsize=32)
def matrix(colorspace: int, full: bool) -> np.ndarray:
    """float64 [3, 4]: Y, Cb, Cr and 1, in code values, to R, G, B in [0, 255]."""
    red, blue = LUMA.get(colorspace, BT601)
    green = 1 - red - blue
    luma, chroma, black = (1.0, 1.0, 0.0) if full else (255 / 219, 255 / 224, 16.0)
    cr, cb = 2 * (1 - red) * chroma, 2 * (1 - blue) * chroma
    rows = np.array([[luma, 0, cr], [luma, -cb * blue / green, -cr * red / green], [luma, cb, 0]])
    return np.hstack([rows, -rows @ np.array([[black], [128.0], [128.0]])])
