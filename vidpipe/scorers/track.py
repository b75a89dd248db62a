"""Feeds the scorers of one picture area: who samples which frame, and the black bars that they all leave out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vidpipe.scorers.bars import FULL, PictureArea
from vidpipe.scorers.base import Scorer, Span
from vidpipe.scorers.sample import Sample

BARS_PER_SECOND = 2.0
EARLY_SECONDS = 1e-4


class Grid:
    """Samples on a grid of times: the first frame at or after each k / rate, counted from the first frame."""

    def __init__(self, rate: float) -> None:
        self._step = 1.0 / rate
        self._origin: float | None = None
        self._next = 0

    def due(self, seconds: float) -> bool:
        """Whether this frame is sampled; call once a frame, in presentation order."""
        if self._origin is None:
            self._origin = seconds
        passed = seconds - self._origin + EARLY_SECONDS
        if passed < self._next * self._step:
            return False
        self._next = int(passed / self._step) + 1
        return True


class Due(NamedTuple):
    """What is to be sampled of a frame: the scorers of these rates, whether black bars are looked for, and whether more
    than `Sample.small_HW` is needed."""

    rates: frozenset[float]
    bars: bool
    full: bool


class Track:
    """Scorers over the whole picture, or over one user's crop of it."""

    def __init__(self, scorers: Sequence[Scorer], crop: tuple[float, float, float, float] | None = None) -> None:
        """`crop`: top, bottom, left, right as fractions of the displayed frame."""
        self.scorers = tuple(scorers)
        self.crop = crop
        self.analysed_hw = (0, 0)
        self._area = PictureArea()
        self._box = FULL
        self._bars = Grid(BARS_PER_SECOND)
        self._full_rates = {s.config.samples_per_second for s in scorers if not s.small}
        self._grids = {s.config.samples_per_second: Grid(s.config.samples_per_second) for s in scorers}

    def push(self, index: int, seconds: float, rgb_HWC: np.ndarray, *, forced: bool = False) -> None:
        """Offer a frame, in presentation order; `forced` makes every scorer sample it."""
        due = self.due(seconds, forced=forced)
        if due is not None:
            self.measure(index, seconds, due, rgb_HWC)

    def due(self, seconds: float, *, forced: bool = False) -> Due | None:
        """What is to be sampled of a frame, None for nothing; call once a frame, in presentation order."""
        rates = frozenset([rate for rate, grid in self._grids.items() if grid.due(seconds) or forced])
        bars = self._bars.due(seconds) or forced
        if not rates and not bars:
            return None
        return Due(rates, bars, bars or self.crop is not None or not self._full_rates.isdisjoint(rates))

    def measure(
        self, index: int, seconds: float, due: Due, rgb_HWC: np.ndarray | None, small_HW: np.ndarray | None = None
    ) -> None:
        """Have scorers sample a frame that `due` named; `rgb_HWC` may be left out unless `due.full`."""
        if self.crop is not None and rgb_HWC is not None:
            rgb_HWC, small_HW = self._cropped(rgb_HWC), None
        sample = Sample(index=index, seconds=seconds, rgb_HWC=rgb_HWC, small_HW=small_HW)
        if due.full:
            self.analysed_hw = sample.gray_HW.shape[:2]
        if due.bars:
            self._box = self._area.update(sample.margins, *self.analysed_hw)
        sample.box = self._box
        for scorer in self.scorers:
            if scorer.config.samples_per_second in due.rates:
                scorer.push(sample)

    def _cropped(self, rgb_HWC: np.ndarray) -> np.ndarray:
        assert self.crop is not None
        height, width = rgb_HWC.shape[:2]
        top, bottom = round(self.crop[0] * height), round(self.crop[1] * height)
        left, right = round(self.crop[2] * width), round(self.crop[3] * width)
        return np.ascontiguousarray(rgb_HWC[top : max(bottom, top + 1), left : max(right, left + 1)])

    def summarise(self, span: Span) -> dict[str, Any]:
        """Columns of all scorers for a clip."""
        values: dict[str, Any] = {}
        for scorer in self.scorers:
            values.update(scorer.summarise(span))
        return values
