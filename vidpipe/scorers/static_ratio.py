"""Static ratio: share of frame pairs between which nothing visible changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import pyarrow as pa

from schemas.columns import Column
from vidpipe.scorers.base import Scorer, ScorerConfig, Span
from vidpipe.scorers.sample import Sample

BLOCK_PX = 8


class StaticRatio(Scorer):
    """Mean absolute difference of grey in 8x8 blocks at a short side of 128 px; a pair is static if no block changes.

    Averaging over a block hides coding noise and film grain, and keeps a small thing that moves.
    """

    name = "static_ratio"
    version = 1
    small = True
    pairs = True
    columns = (
        Column(
            name="static_ratio",
            type=pa.float32(),
            unit="fraction",
            meaning="share of pairs of frames 1/8 s apart with no visible change: no block of a sixteenth of the short "
            "side whose mean absolute difference of grey reaches `threshold` (2 of 255); in [0, 1], 1 is a still; null "
            "with fewer than two samples",
        ),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(ScorerConfig):
        """`threshold`: visible change of a block, in grey values of 255."""

        samples_per_second: float = 8.0
        threshold: float = 2.0

    def measure_pair(self, previous: Sample, sample: Sample) -> Sequence[float] | None:
        before, now = previous.small_HW, sample.small_HW
        if before.shape != now.shape:
            return None
        height, width = (max(1, n // BLOCK_PX) for n in now.shape)
        change = cv2.absdiff(before, now)[: height * BLOCK_PX, : width * BLOCK_PX]
        blocks = cv2.resize(change, (width, height), interpolation=cv2.INTER_AREA)
        return (float(blocks.max()),)

    def summarise(self, span: Span) -> dict[str, Any]:
        _, values = self.features.within(span)
        if not len(values):
            return {"static_ratio": None}
        return {"static_ratio": float((values[:, 0] < self.config.threshold).mean())}  # type: ignore[attr-defined]
