"""Fill packs by counts of length classes: to a token budget, and with FLOPs spread evenly.

Classes are dealt longest first. Each class is poured onto the packs like water: the packs with the fewest FLOPs get
samples first, up to a common level, as far as they have room. All packs are handled at once, so the work grows with
classes x packs and not with samples. Costs are integers, so that every machine makes the same packs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

COST_BITS = 30


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


def pack_counts(
    lengths: Sequence[int] | np.ndarray,
    counts: Sequence[int] | np.ndarray,
    costs: Sequence[int] | np.ndarray,
    num_packs: int,
    budget: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Spread samples over packs.

    Args:
        lengths: tokens of a sample of each class; none above `budget`.
        counts: samples of each class.
        costs: integer cost of a sample of each class.
    Returns:
        samples of each class in each pack, int64 [num_packs, classes]; and the samples that found no room, a class.
    """
    lengths_, counts_, costs_ = (np.asarray(v, np.int64) for v in (lengths, counts, costs))
    packs = np.zeros((num_packs, len(lengths_)), np.int64)
    left = np.zeros(len(lengths_), np.int64)
    room = np.full(num_packs, budget, np.int64)
    load = np.zeros(num_packs, np.int64)
    for c in np.argsort(-lengths_, kind="stable"):
        if not counts_[c]:
            continue
        given = pour(load, room // lengths_[c], int(costs_[c]), int(counts_[c]))
        packs[:, c] = given
        left[c] = counts_[c] - given.sum()
        room -= given * lengths_[c]
        load += given * costs_[c]
    return packs, left


def pour(load: np.ndarray, places: np.ndarray, cost: int, count: int) -> np.ndarray:
    """Give `count` equal samples to the packs with the least load, at most `places` each; the rest is not given.

    Returns int64 [num_packs]. Ties go to the first pack.
    """
    total = int(places.sum())
    if total <= count:
        return places.copy()
    low, high = int(load.min()), int(load.max()) + cost * (count + 1)
    while low < high:  # the highest level that takes no more than `count`
        level = (low + high + 1) // 2
        if int(np.clip((level - load) // cost, 0, places).sum()) <= count:
            low = level
        else:
            high = level - 1
    given = np.clip((low - load) // cost, 0, places)
    rest = count - int(given.sum())
    if rest:
        after = np.where(given < places, load + (given + 1) * cost, np.iinfo(np.int64).max)
        given[np.argsort(after, kind="stable")[:rest]] += 1
    return given
