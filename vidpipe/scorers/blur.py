"""Blur: how much a picture loses when it is blurred once more, which a sharp one does and a blurred one does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import pyarrow as pa

from schemas.columns import Column
from vidpipe.scorers.base import Scorer, Span
from vidpipe.scorers.sample import Sample

SHORT_SIDE = 256
WINDOW_PX = 11
MIN_DIFFERENCE = 0.05  # mean over the picture, in grey values: less is flat
QUANTUM = 1  # a difference of one grey value is rounding


class Blur(Scorer):
    """One minus the blur metric of Crete et al. 2007 (the one of scikit-image's `blur_effect`), at a fixed size.

    Deviations: the frame is first brought to a short side of 256 px, so that 4K, 1080p and 480p of one picture score
    alike; a source with fewer rows is enlarged to it and scores as blurred as it is. And one grey value is taken off
    each difference before it counts as removed: without it the rounding steps of a much blurred picture look sharp
    (0.47 instead of 0.0 at a blur of 6% of the height). Both axes are measured and the more blurred one counts, as in
    the paper. Grain and coding noise look like sharpness, as to every measure without a reference.
    """

    name = "blur"
    version = 1
    columns = (
        Column(
            name="blur_score",
            type=pa.float32(),
            unit="fraction",
            meaning="sharpness: share of the differences between neighbouring pixels, at a short side of 256, that an "
            "11-pixel box blur removes (1 minus the blur metric of Crete et al. 2007, rounding left out); the lower of "
            "both axes, median over samples, black bars left out; in [0, 1], low is blurred; null where the picture is "
            "flat",
        ),
    )

    def measure(self, sample: Sample) -> Sequence[float] | None:
        gray = sample.picture(sample.gray_HW)
        frame = sample.gray_HW.shape
        if min(frame) != SHORT_SIDE:
            scale = SHORT_SIDE / min(frame)
            size = (max(2, round(gray.shape[1] * scale)), max(2, round(gray.shape[0] * scale)))
            gray = cv2.resize(gray, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
        if min(gray.shape) < WINDOW_PX + 1:
            return None
        vertical, horizontal = sharpness(gray, vertical=True), sharpness(gray, vertical=False)
        if vertical is None or horizontal is None:
            return None
        return (min(vertical, horizontal),)

    def summarise(self, span: Span) -> dict[str, Any]:
        _, values = self.features.within(span)
        return {"blur_score": float(np.median(values)) if len(values) else None}


def sharpness(gray_HW: np.ndarray, *, vertical: bool) -> float | None:
    """Share of neighbour differences along one axis that a box blur along it removes, in [0, 1]; None if it is flat.

    Neighbours in the blurred picture differ by what enters the window less what leaves it, over the window's length: so
    no blurred picture is made, and all is exact in 16 bits. Pixels nearer than a window to the edges are left out.
    """
    half = WINDOW_PX // 2
    before = _differences(gray_HW, vertical, 1, half)
    after = _differences(gray_HW, vertical, WINDOW_PX, 0)
    total = WINDOW_PX * cv2.sumElems(before)[0]
    if total < WINDOW_PX * MIN_DIFFERENCE * before.size:
        return None
    steps = cv2.subtract(before, np.array([QUANTUM], np.float64)).astype(np.uint16) * WINDOW_PX
    lost = cv2.subtract(steps, after, dtype=cv2.CV_16U)  # 0 where it would be less
    return cv2.sumElems(lost)[0] / total


def _differences(image: np.ndarray, vertical: bool, distance: int, margin: int) -> np.ndarray:
    """Absolute differences of pixels that far apart along an axis, `margin` left out at either end of it."""
    end = image.shape[0 if vertical else 1] - margin
    left, right = slice(margin, end - distance), slice(margin + distance, end)
    return cv2.absdiff(image[left], image[right]) if vertical else cv2.absdiff(image[:, left], image[:, right])
