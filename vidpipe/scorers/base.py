"""What a scorer is: features of sampled frames, taken while the video is decoded once, summarised by span afterwards.

Spans are known only when the shots are, so a scorer keeps a few numbers a sample and no pixels: ten hours at 8 samples
a second are 288,000 rows. Its memory does not grow with resolution.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from schemas.columns import Column
from schemas.errors import UserError
from vidpipe.scorers.sample import Sample


@dataclass(frozen=True, kw_only=True)
class ScorerConfig:
    """Parameters of every scorer.

    Attributes:
        samples_per_second: frames looked at, in 1/s. A frame that stays on screen longer counts once.
    """

    samples_per_second: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.samples_per_second <= 240:
            raise UserError(f"samples_per_second must be in (0, 240], found {self.samples_per_second}")


@dataclass(frozen=True, kw_only=True)
class Span:
    """A clip in the analysed stream.

    Attributes:
        first, last: its frames' numbers, both inclusive.
        start_seconds, end_seconds: its time, end exclusive.
        width, height: of its picture as displayed, in pixels.
        analysed_width, analysed_height: of the frames that scorers saw.
    """

    first: int
    last: int
    start_seconds: float
    end_seconds: float
    width: int
    height: int
    analysed_width: int
    analysed_height: int


class Features:
    """Rows of numbers by frame: `values_NF` of dtype `typecode`, in frame order."""

    def __init__(self, num_features: int, typecode: str) -> None:
        self.num_features = num_features
        self._typecode = typecode
        self._index = array("q")
        self._before = array("q")
        self._seconds = array("d")
        self._values: array[Any] = array(typecode)
        self._frozen: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None = None

    def append(self, index: int, before: int, seconds: float, values: Sequence[float]) -> None:
        """Add a row of frame `index`; `before` is the earliest frame that its values depend on."""
        self._frozen = None
        self._index.append(index)
        self._before.append(before)
        self._seconds.append(seconds)
        self._values.extend(values)

    def __len__(self) -> int:
        return len(self._index)

    def within(self, span: Span) -> tuple[np.ndarray, np.ndarray]:
        """Seconds [N] and values [N, F] of the rows that depend on frames of the span alone."""
        index, before, seconds, values = self._arrays()
        low = int(np.searchsorted(before, span.first, "left"))
        high = int(np.searchsorted(index, span.last, "right"))
        return seconds[low:high], values[low:high]

    @property
    def values(self) -> np.ndarray:
        """All values [N, F]."""
        return self._arrays()[3]

    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        if self._frozen is None:
            index, before, seconds, values = (
                np.array(a, dtype=a.typecode) for a in (self._index, self._before, self._seconds, self._values)
            )
            self._frozen = index, before, seconds, values.reshape(-1, self.num_features)
        return self._frozen


class Scorer:
    """Base of all scorers.

    Attributes:
        name: in the registry.
        version: raised by hand when the output changes; a golden-output test tells when it must.
        columns: what it writes for a clip.
        pairs: `measure` needs the sample before; a pair that reaches over a span's edge does not count.
        small: it uses `Sample.small_HW` alone, so that no larger picture need be made for it.
        num_features, typecode: of the numbers that `measure` returns (`array` type codes).
    """

    name: ClassVar[str]
    version: ClassVar[int]
    columns: ClassVar[tuple[Column, ...]]
    pairs: ClassVar[bool] = False
    small: ClassVar[bool] = False
    num_features: ClassVar[int] = 1
    typecode: ClassVar[str] = "d"
    Config: ClassVar[type[ScorerConfig]] = ScorerConfig

    def __init__(self, config: ScorerConfig | None = None) -> None:
        self.config = config or self.Config()
        self.features = Features(self.num_features, self.typecode)
        self._previous: Sample | None = None

    def push(self, sample: Sample) -> None:
        """Measure a sampled frame; frames come in presentation order."""
        previous = self._previous
        if not self.pairs:
            values = self.measure(sample)
            if values is not None:
                self.features.append(sample.index, sample.index, sample.seconds, values)
            return
        if previous is not None:
            values = self.measure_pair(previous, sample)
            if values is not None:
                self.features.append(sample.index, previous.index, sample.seconds, values)
        self._previous = sample

    def measure(self, sample: Sample) -> Sequence[float] | None:
        """Features of one frame; None to skip it."""
        raise NotImplementedError

    def measure_pair(self, previous: Sample, sample: Sample) -> Sequence[float] | None:
        """Features of two frames, in presentation order; None to skip them."""
        raise NotImplementedError

    def summarise(self, span: Span) -> dict[str, Any]:
        """Values of `columns` for a clip; None where nothing was measured in it."""
        raise NotImplementedError
