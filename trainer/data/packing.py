"""Fill packs by counts of length classes: to a token budget, and with FLOPs spread evenly.

Classes are dealt longest first. Each class is poured like water: whoever has the least load gets samples first, up to
a common level, as far as there is room. What has load is a group of packs that one rank will run in one step
(`pack_groups`), or a pack of its own where ranks wait for each other at every pack (`pack_tiers`). The load counts a
pack's free room at the cost of the shorter classes that will fill it. All packs are handled at once, so the work grows
with classes x packs and not with samples.

A class that the smallest class does not divide eats into room that only the smallest can use: short classes go first
to packs whose odd remainder takes them. Costs are integers, so that every machine makes the same packs.

Turned down: dealing each sample to the least loaded rank, a Python loop over millions of samples a step; levelling
every pack alike, which leaves packs beside a heavy one nothing to give way with (rank sums 1.11 instead of 1.005 of the
mean on Open-Sora's buckets at 8 packs a rank).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

COST_BITS = 30
PRICE_BITS = 20
SHORT_SHARE = 8
"""A class is short if so many of its samples fit one pack."""

_BIG = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class FlopModel:
    """FLOPs of a sample: quadratic * len^2 + linear * len.

    Only their ratio shapes the packs; absolute values make the reported FLOPs absolute.
    """

    quadratic: float
    linear: float

    def __post_init__(self) -> None:
        if self.quadratic < 0 or self.linear < 0 or self.quadratic + self.linear <= 0:
            raise ValueError(f"FLOP model: coefficients must not be negative, nor both zero; found {self}")

    def flops(self, lengths: np.ndarray) -> np.ndarray:
        """FLOPs of samples of these lengths, float64."""
        lengths = np.asarray(lengths, np.float64)
        return self.quadratic * lengths * lengths + self.linear * lengths

    def costs(self, lengths: np.ndarray, budget: int) -> np.ndarray:
        """Integer costs proportional to FLOPs; a sample that fills the budget costs 2^COST_BITS."""
        full = float(self.flops(np.array([budget]))[0])
        return np.maximum(1, np.rint(self.flops(lengths) / full * (1 << COST_BITS))).astype(np.int64)

    @classmethod
    def fit(cls, tokens: np.ndarray, squares: np.ndarray, seconds: np.ndarray) -> FlopModel:
        """Fit to measured times of packs: seconds = quadratic * sum len^2 + linear * sum len, neither negative."""
        both = np.stack([np.asarray(squares, np.float64), np.asarray(tokens, np.float64)], axis=1)
        scale = both.max(axis=0)
        found = np.linalg.lstsq(both / scale, np.asarray(seconds, np.float64), rcond=None)[0]
        for i in range(2):
            if found[i] < 0:
                other = (both / scale)[:, 1 - i]
                found[i], found[1 - i] = 0.0, float(other @ seconds / (other @ other))
        quadratic, linear = found / scale
        return cls(quadratic=float(quadratic), linear=float(linear))


@dataclass(frozen=True, kw_only=True, eq=False)
class Classes:
    """Length classes: int64 tokens and integer cost of a sample of each, and the token budget of a pack."""

    lengths: np.ndarray
    costs: np.ndarray
    budget: int

    def __post_init__(self) -> None:
        if len(self.lengths) and int(self.lengths.max()) > self.budget:
            raise ValueError(f"packing: a class of {self.lengths.max()} tokens exceeds the budget {self.budget}")


def pack_groups(classes: Classes, counts: Sequence[int] | np.ndarray, sizes: Sequence[int] | np.ndarray) -> Packed:
    """Spread samples over groups of packs so that the groups' costs agree.

    Args:
        counts: samples of each class.
        sizes: packs of each group.
    """
    sizes = np.asarray(sizes, np.int64)
    width = int(sizes.max())
    real = np.arange(width) < sizes[:, None]
    room = np.where(real, classes.budget, 0)
    table, left = _fill(classes, np.asarray(counts, np.int64), room)
    return Packed(table=table[real], left=left)


def pack_tiers(classes: Classes, counts: Sequence[int] | np.ndarray, tiers: Sequence[int]) -> Packed:
    """Fill tiers of packs, one after another, so that packs of a tier cost alike.

    While the longest sample left costs more than the mean pack, no levelling can hide it: the next tier then takes the
    longest samples together, which leaves less for the others. The rest is spread evenly.

    Args:
        tiers: packs of each tier.
    """
    left = np.asarray(counts, np.int64)
    tables = []
    for i, size in enumerate(tiers):
        rest = sum(tiers[i:])
        longest = int(classes.costs[left > 0].max()) if left.any() else 0
        last = i == len(tiers) - 1 or longest * rest <= int(left @ classes.costs)
        table, left = _fill(classes, left, np.full((rest if last else size, 1), classes.budget, np.int64))
        tables.append(table[:, 0])
        if last:
            break
    return Packed(table=np.concatenate(tables), left=left)


@dataclass(frozen=True, kw_only=True, eq=False)
class Packed:
    """Samples of each class in each pack, int64 [packs, classes]; and those that found no room, a class."""

    table: np.ndarray
    left: np.ndarray


def _fill(classes: Classes, counts: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pour every class into free room [groups, packs]; the samples placed [groups, packs, classes] and those left."""
    lengths, costs = classes.lengths, classes.costs
    table = np.zeros((*room.shape, len(lengths)), np.int64)
    left, waiting = counts.copy(), counts.copy()
    load = np.zeros(len(room), np.int64)
    room = room.copy()
    present = np.flatnonzero(counts)
    shortest = int(lengths[present].min()) if present.size else 1
    for c in present[np.argsort(-lengths[present], kind="stable")]:
        length, cost = int(lengths[c]), int(costs[c])
        waiting[c] = 0
        odd = length % shortest
        for limit in ((room % shortest) // odd if odd and length * SHORT_SHARE <= classes.budget else None, None):
            places = room // length if limit is None else np.minimum(room // length, limit)
            given = _pour_class(classes, waiting, load, room, places, length, cost, int(left[c]))
            table[:, :, c] += given
            room -= given * length
            load += given.sum(axis=1) * cost
            left[c] -= given.sum()
            if not left[c]:
                break
    return table, left


def _pour_class(
    classes: Classes,
    waiting: np.ndarray,
    load: np.ndarray,
    room: np.ndarray,
    places: np.ndarray,
    length: int,
    cost: int,
    count: int,
) -> np.ndarray:
    """Samples of one class that each pack gets, [groups, packs]."""
    free = room.sum(axis=1)
    later = max(int(waiting @ classes.lengths), int(free.sum()) - count * length, 1)  # room that shorter classes share
    price = (int(waiting @ classes.costs) << PRICE_BITS) // later
    expected = load + (free * price >> PRICE_BITS)
    unit = max(1, cost - (length * price >> PRICE_BITS))
    groups = pour(expected, places.sum(axis=1), unit, count)
    return _best_fit(room, places, groups) if room.shape[1] > 1 else groups[:, None]


def pour(load: np.ndarray, places: np.ndarray, cost: int, count: int) -> np.ndarray:
    """Give `count` equal samples to those with the least load, at most `places` each; what finds no place is not given.

    Returns int64, one number each. Ties go to the first.
    """
    if int(places.sum()) <= count:
        return places.copy()
    low, high = int(load.min()), int((load + places * cost).max()) + cost
    while high - low > cost:  # a level that takes no more than `count`; one `cost` higher, none gets two more
        level = (low + high) // 2
        if int(np.minimum(np.maximum((level - load) // cost, 0), places).sum()) <= count:
            low = level
        else:
            high = level
    given = np.minimum(np.maximum((low - load) // cost, 0), places)
    rest = count - int(given.sum())
    if rest:
        after = np.where(given < places, load + (given + 1) * cost, _BIG)
        given[np.argsort(after, kind="stable")[:rest]] += 1
    return given


def _best_fit(room: np.ndarray, places: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Share each group's samples out among its packs, fullest first: [groups, packs]."""
    order = np.argsort(room, axis=1, kind="stable")
    capacity = np.take_along_axis(places, order, axis=1)
    before = np.cumsum(capacity, axis=1) - capacity
    given = np.empty_like(places)
    np.put_along_axis(given, order, np.clip(count[:, None] - before, 0, capacity), axis=1)
    return given
