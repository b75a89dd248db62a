"""From a decoder's frame to RGB: swscale, the same arithmetic as torchcodec's CPU path, and tone mapping for HDR.

A full-size 8-bit conversion is FFmpeg's unscaled converter, bit for bit what torchcodec gives. A scaled one averages
areas in the stream's own planes first and converts the small picture, which is cheaper than converting first.
More than 8 bits have no unscaled converter; their chroma is replicated, as that converter and NVDEC do: of hard edges
in PQ, bicubic interpolation made something else (27 dB instead of 56 against NVDEC's arithmetic).
Alpha is dropped, as FFmpeg does. A matrix that the stream does not name is BT.601, as FFmpeg takes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FULL_RANGE = 2  # AVCOL_RANGE_JPEG
AREA = 0x20  # SWS_AREA
BICUBIC = 4  # SWS_BICUBIC
POINT = 0x10  # SWS_POINT
FULL_CHROMA = 0x2000  # SWS_FULL_CHR_H_INT, which rounds where the other path to 8 bits is 1.8 too dark
SCALES_AS_IT_IS = ("yuv", "yuvj", "gray", "nv12", "nv21", "p010", "p012", "p016", "gbr")
"""Families of pixel formats that are scaled before conversion; others (packed RGB, palettes) are converted at once."""


class Converter:
    """Converts frames to one size, as stored (before rotation).

    Args:
        size_hw: height and width of the result, square pixels.
        hdr_transfer: `smpte2084` or `arib-std-b67` to map to SDR; None for SDR.
    """

    def __init__(self, size_hw: tuple[int, int], hdr_transfer: str | None = None, primaries: str | None = None) -> None:
        from av.video.reformatter import VideoReformatter

        self._height, self._width = size_hw
        self._scale, self._convert = VideoReformatter(), VideoReformatter()
        self._tone_map = None
        if hdr_transfer:
            from vidpipe.media.tone_map import ToneMap

            self._tone_map = ToneMap(transfer=hdr_transfer, primaries=primaries)

    def to_rgb(self, frame: Any, out_HWC: np.ndarray) -> None:
        """Write a frame as uint8 RGB into `out_HWC` [H, W, 3]."""
        how = BICUBIC
        if frame.format.components[0].bits > 8:
            how = POINT | FULL_CHROMA if self._tone_map is None else POINT
        if (frame.height, frame.width) != (self._height, self._width):
            frame, how = self._scaled(frame), BICUBIC
        target = "rgb24" if self._tone_map is None else "rgb48le"
        rgb = self._convert.reformat(
            frame, self._width, self._height, target, interpolation=how, dst_color_range=FULL_RANGE, threads=1
        )
        if self._tone_map is None:
            out_HWC[...] = plane(rgb, np.uint8)
        else:
            out_HWC[...] = self._tone_map.to_sdr(plane(rgb, np.uint16))

    def _scaled(self, frame: Any) -> Any:
        shrinks = self._height <= frame.height and self._width <= frame.width
        how = AREA if shrinks else BICUBIC
        name = frame.format.name
        if name.startswith(SCALES_AS_IT_IS) and "a" not in name.removeprefix("gray"):
            return self._scale.reformat(frame, self._width, self._height, interpolation=how, threads=1)
        return self._scale.reformat(
            frame, self._width, self._height, "rgb24", interpolation=how, dst_color_range=FULL_RANGE, threads=1
        )


def plane(frame: Any, dtype: Any) -> np.ndarray:
    """A packed RGB frame's pixels [H, W, 3], a view without the padding of its lines."""
    first = frame.planes[0]
    lines = np.frombuffer(first, dtype).reshape(frame.height, first.line_size // np.dtype(dtype).itemsize)
    return lines[:, : frame.width * 3].reshape(frame.height, frame.width, 3)
