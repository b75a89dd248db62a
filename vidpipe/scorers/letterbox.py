"""Letterbox: the crop box that leaves black bars out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.columns import Column
from vidpipe.scorers.base import Scorer, Span
from vidpipe.scorers.sample import Sample

SLACK_PX = 0.3
AGREE_PX = 1.0
MIN_VOTES = 0.1


class Letterbox(Scorer):
    """Bars by the votes of a clip's frames (`vidpipe.scorers.bars` says how a frame votes).

    A side of the clip takes the least margin that a tenth of its voting frames agree on: a bright frame shows what is
    picture, a dark one may hide it. Where none votes (too dark to tell), it takes what the whole video says. The box is
    rounded inwards to whole displayed pixels, so that no bar remains: on a side with a bar it may cut about 0.3 px of
    the analysed frame, and one pixel, off the picture.
    """

    name = "letterbox"
    version = 1
    num_features = 4
    columns = tuple(
        Column(
            name=name,
            type=pa.int32(),
            unit="px",
            meaning=f"{what} of the picture without black bars, in displayed pixels of the clip (after the user's "
            "crop, where there is one); null if there are no bars",
        )
        for name, what in (
            ("crop_x", "left edge"),
            ("crop_y", "top edge"),
            ("crop_width", "width"),
            ("crop_height", "height"),
        )
    )

    def measure(self, sample: Sample) -> Sequence[float]:
        return sample.margins

    @cached_property
    def _of_video(self) -> list[float]:
        """The same over all frames of the video; read when all were pushed."""
        return [least_margin(votes) for votes in self.features.values.T]

    def summarise(self, span: Span) -> dict[str, Any]:
        _, votes = self.features.within(span)
        height, width = span.analysed_height, span.analysed_width
        scales = (span.height / height, span.height / height, span.width / width, span.width / width)
        sides = []
        for side, scale in enumerate(scales):
            margin = least_margin(votes[:, side])
            if math.isnan(margin):
                margin = self._of_video[side]
            sides.append(0 if math.isnan(margin) or margin == 0 else math.ceil((margin + SLACK_PX) * scale - 1e-6))
        top, bottom, left, right = sides
        box = (left, top, span.width - left - right, span.height - top - bottom)
        if not any(sides) or box[2] <= 0 or box[3] <= 0:
            return dict.fromkeys(c.name for c in self.columns)
        return dict(zip((c.name for c in self.columns), box))


def least_margin(margins_N: np.ndarray) -> float:
    """Median of the first group of margins, from the least on, within a pixel of each other and with enough votes.

    NaN if no frame votes.
    """
    votes = np.sort(margins_N[~np.isnan(margins_N)])
    if not len(votes):
        return math.nan
    ends = np.searchsorted(votes, votes + AGREE_PX, "right")
    start = int((ends - np.arange(len(votes)) >= MIN_VOTES * len(votes)).argmax())
    return float(np.median(votes[start : ends[start]]))
