"""The order in which rows come: one endless sequence over all streams, cut where its tokens reach a mark.

Each stream advances at its own rate, weight x rows an epoch, so that any stretch of the sequence holds the mix. A
stream hands out read groups, neighbouring rows that one request fetches, in the order of a keyed permutation that is
new each epoch and pass. Where the sequence is after x units of time is a sum of integer divisions, so any place is
found at once, and a cut by tokens is found by bisection. State is nothing but the place.

A weight w gives each group floor(w) visits an epoch, and one more to the groups that the permutation of the last pass
sends below the fraction, which is a keyed hash below a threshold with an exact count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from trainer.data.index import Stream
from trainer.data.permutation import Permutation, hash_key

EPOCH = 1 << 32
"""Units of time an epoch."""


@dataclass(frozen=True, kw_only=True)
class Visits:
    """Rows in the order in which the sequence hands them out, of one stream.

    Attributes:
        rows: int64 index rows.
        visits: int64, unlike for any two visits of a row: epoch x ceil(weight) + pass.
        groups: int64 place of each row's read group in the stream's sequence.
    """

    rows: np.ndarray
    visits: np.ndarray
    groups: np.ndarray


class StreamSequence:
    """The endless sequence of one stream's read groups.

    Args:
        group_rows: rows a read group; groups of a stream differ by at most one row.
        key: of the shuffle.
    """

    def __init__(self, stream: Stream, group_rows: int, key: int) -> None:
        self.stream = stream
        self.num_groups = -(-stream.num_rows // max(1, group_rows))
        self.group_tokens = -(-stream.num_rows * stream.num_tokens // self.num_groups)
        self._weight = Fraction(stream.weight).limit_denominator(1_000_000)
        rate = self._weight * self.num_groups  # groups an epoch
        self._num, self._den = rate.numerator, rate.denominator
        self._key = key
        # a start of its own, so that streams of few groups do not all come at the same moment
        self._phase = (hash_key(key) >> 32) * self._den
        self._order: tuple[int, Permutation] | None = None  # the last one, since windows come one after another
        self.passes = -(-self._weight.numerator // self._weight.denominator)

    @property
    def tokens_per_epoch(self) -> Fraction:
        """Tokens that the stream hands out in an epoch, on average."""
        return self._weight * self.stream.num_rows * self.stream.num_tokens

    def groups_before(self, time: int) -> int:
        """Groups handed out before `time`."""
        return (time * self._num + self._phase) // (self._den * EPOCH)

    def _epoch_of(self, group: int) -> int:
        """Largest epoch that starts at or before a place in the sequence."""
        return ((group + 1) * self._den * EPOCH - self._phase - 1) // (self._num * EPOCH)

    def between(self, start: int, stop: int) -> Visits:
        """Rows of the groups in places [start, stop) of the sequence."""
        groups, visits = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        place = start
        while place < stop:
            epoch = self._epoch_of(place)
            first, last = self.groups_before(epoch * EPOCH), self.groups_before((epoch + 1) * EPOCH)
            number, offset = divmod(place - first, self.num_groups)
            count = min(stop - place, last - place, self.num_groups - offset)
            groups.append(self._order_of(epoch, number).forward(np.arange(offset, offset + count)))
            visits.append(np.full(count, epoch * self.passes + number, np.int64))
            place += count
        return self._expand(np.concatenate(groups), np.concatenate(visits), start)

    def _order_of(self, epoch: int, number: int) -> Permutation:
        key = hash_key(self._key, epoch, number)
        if self._order is None or self._order[0] != key:
            self._order = (key, Permutation(self.num_groups, key))
        return self._order[1]

    def _expand(self, groups: np.ndarray, visits: np.ndarray, start: int) -> Visits:
        """From groups to rows: group g holds rows [g * n / G, (g + 1) * n / G)."""
        n = self.stream.num_rows
        first = groups * n // self.num_groups
        counts = (groups + 1) * n // self.num_groups - first
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return Visits(
            rows=self.stream.start + np.repeat(first, counts) + within,
            visits=np.repeat(visits, counts),
            groups=np.repeat(np.arange(start, start + len(groups)), counts),
        )


class MixSequence:
    """All streams together, cut by tokens."""

    def __init__(self, streams: Sequence[StreamSequence]) -> None:
        self.streams = list(streams)

    def tokens_before(self, time: int) -> int:
        """Tokens handed out before `time`; read groups count with their stream's mean size, rounded up."""
        return sum(s.groups_before(time) * s.group_tokens for s in self.streams)

    def time_of(self, tokens: int, low: int, high: int) -> int:
        """Greatest time in [low, high] before which no more than `tokens` are handed out."""
        while low < high:
            middle = (low + high + 1) // 2
            if self.tokens_before(middle) <= tokens:
                low = middle
            else:
                high = middle - 1
        return low

    def between(self, start: int, stop: int) -> list[Visits]:
        """Rows that come in [start, stop), a stream each."""
        return [s.between(s.groups_before(start), s.groups_before(stop)) for s in self.streams]
