"""Luminance: mean brightness, and the share clipped at either end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import pyarrow as pa

from schemas.columns import Column
from vidpipe.scorers.base import Scorer, Span
from vidpipe.scorers.sample import Sample

LOW, HIGH = 2, 253


class Luminance(Scorer):
    """Grey of the analysed frame, black bars left out; bars do not make a picture dark."""

    name = "luminance"
    version = 1
    num_features = 3
    columns = (
        Column(
            name="luminance_mean",
            type=pa.float32(),
            unit="fraction",
            meaning="mean grey (BT.601 weights on displayed RGB) over 255, over picture and time, black bars left out; "
            "in [0, 1]",
        ),
        Column(
            name="luminance_clipped_low",
            type=pa.float32(),
            unit="fraction",
            meaning=f"share of the picture, bars left out, with grey at most {LOW} of 255, mean over time; in [0, 1]",
        ),
        Column(
            name="luminance_clipped_high",
            type=pa.float32(),
            unit="fraction",
            meaning=f"share of the picture, bars left out, with grey at least {HIGH} of 255, mean over time; in [0, 1]",
        ),
    )

    def measure(self, sample: Sample) -> Sequence[float]:
        gray = sample.picture(sample.gray_HW)
        counts = cv2.calcHist([gray], [0], None, [256], [0, 256]).ravel()
        total = float(gray.size)
        mean = float(cv2.mean(gray)[0]) / 255
        return mean, float(counts[: LOW + 1].sum()) / total, float(counts[HIGH:].sum()) / total

    def summarise(self, span: Span) -> dict[str, Any]:
        _, values = self.features.within(span)
        names = [c.name for c in self.columns]
        return dict.fromkeys(names) if not len(values) else dict(zip(names, values.mean(axis=0).tolist()))
