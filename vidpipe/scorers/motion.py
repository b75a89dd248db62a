"""Motion: dense optical flow as a fraction of the picture's diagonal per second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cv2
import numpy as np
import pyarrow as pa

from schemas.columns import Column
from vidpipe.scorers.base import Scorer, ScorerConfig, Span
from vidpipe.scorers.sample import Sample

UNIT = "diagonals/s"
MIN_SIDE = 16
FLOW_GRID = 4  # the preset computes flow at a quarter of the size and enlarges it


class Motion(Scorer):
    """DIS optical flow (Kroeger et al., ECCV 2016; OpenCV's ultrafast preset) at a short side of 128 px.

    Flow is taken between neighbouring samples, an eighth of a second apart, and divided by their distance in time:
    so frame rate does not matter, and repeated frames (24 in 30 frames/s) do not look like standstill.
    """

    name = "motion"
    version = 1
    small = True
    pairs = True
    num_features = 2
    columns = (
        Column(
            name="motion_score",
            type=pa.float32(),
            unit=UNIT,
            meaning="mean length of optical flow over the picture (black bars left out), as a fraction of its "
            "diagonal per second, mean over pairs of frames 1/8 s apart; >= 0, 0 is standstill; null with fewer than "
            "two samples",
        ),
        Column(
            name="motion_median",
            type=pa.float32(),
            unit=UNIT,
            meaning="the same with the median over the picture, mean over pairs: motion of most of the picture, such "
            "as the camera's; >= 0; null with fewer than two samples",
        ),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(ScorerConfig):
        """`samples_per_second`: pairs of neighbouring samples; flow saturates near a tenth of a diagonal a pair."""

        samples_per_second: float = 8.0

    @cached_property
    def _flow(self) -> Any:
        return cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)

    def measure_pair(self, previous: Sample, sample: Sample) -> Sequence[float] | None:
        before, now = sample.picture(previous.small_HW), sample.picture(sample.small_HW)
        seconds = sample.seconds - previous.seconds
        if before.shape != now.shape or min(now.shape) < MIN_SIDE or seconds <= 0:
            return None
        flow_HWC = self._flow.calc(np.ascontiguousarray(before), np.ascontiguousarray(now), None)
        coarse_HWC = flow_HWC[::FLOW_GRID, ::FLOW_GRID]
        length_HW = np.hypot(coarse_HWC[..., 0], coarse_HWC[..., 1])
        scale = 1.0 / (float(np.hypot(*now.shape)) * seconds)
        return float(length_HW.mean()) * scale, float(np.median(length_HW)) * scale

    def summarise(self, span: Span) -> dict[str, Any]:
        _, values = self.features.within(span)
        if not len(values):
            return {"motion_score": None, "motion_median": None}
        mean, median = values.mean(axis=0)
        return {"motion_score": float(mean), "motion_median": float(median)}
