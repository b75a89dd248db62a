"""Deal a step's packs to ranks: with level sums, or in lockstep.

`sum`: ranks meet once a step. Packs are dealt so that their sums agree, first the costliest pack to the least loaded
rank and so on; then the heaviest and the lightest rank, the next two, and so on, swap the two packs that level them
best, until no swap helps.

`lockstep`: ranks wait for each other at every pack. Packs are sorted by cost and cut into slots of one pack a rank,
which is the least sum of maxima that these packs have; within a slot they trade places until the sums agree too.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from schemas.errors import UserError

MISSING = -1
ROUNDS = 48

Balance = Literal["sum", "lockstep"]


def deal(costs: np.ndarray, world_size: int, balance: Balance = "sum") -> np.ndarray:
    """Assign packs to ranks; the same on every rank.

    Args:
        costs: integer cost of each pack of a step.
    Returns:
        int64 [world_size, slots]: numbers of packs, each once; MISSING where a rank sits out.
    Raises:
        UserError: more ranks than packs.
    """
    costs = np.asarray(costs, np.int64)
    if world_size > len(costs):
        raise UserError(
            f"{world_size} ranks share {len(costs)} packs a step: each rank needs one; "
            "raise packs_per_step or run on fewer ranks"
        )
    num_slots = -(-len(costs) // world_size)
    padded = np.append(costs, 0)
    slots = _deal_sorted(costs, world_size, num_slots)
    if num_slots == 1 or world_size == 1:
        return slots
    slots = _level(slots, padded, same_slot=balance == "lockstep")
    if balance == "sum" and len(costs) == num_slots * world_size:
        given = np.arange(len(costs)).reshape(world_size, num_slots)  # the planner's own groups
        given = _level(given, padded, same_slot=False)
        if padded[given].sum(axis=1).max() < padded[slots].sum(axis=1).max():
            slots = given
    return slots


def _deal_sorted(costs: np.ndarray, world_size: int, num_slots: int) -> np.ndarray:
    """Slots of like costs; in each the costliest pack goes to the rank with the least so far."""
    order = np.full(num_slots * world_size, MISSING, np.int64)
    order[: len(costs)] = np.argsort(-costs, kind="stable")
    slots = np.empty((world_size, num_slots), np.int64)
    sums = np.zeros(world_size, np.int64)
    padded = np.append(costs, 0)
    for j in range(num_slots):
        slots[np.argsort(sums, kind="stable"), j] = order[j * world_size : (j + 1) * world_size]
        sums += padded[slots[:, j]]
    return slots


def _level(slots: np.ndarray, padded: np.ndarray, same_slot: bool) -> np.ndarray:
    """Swap packs between heavy and light ranks while that narrows a pair's gap."""
    slots = slots.copy()
    half = len(slots) // 2
    for _ in range(ROUNDS):
        load = padded[slots]
        sums = load.sum(axis=1)
        order = np.argsort(-sums, kind="stable")
        heavy, light = order[:half], order[::-1][:half]
        gap = sums[heavy] - sums[light]
        if same_slot:
            moved = load[heavy] - load[light]
        else:
            moved = (load[heavy][:, :, None] - load[light][:, None, :]).reshape(half, -1)
        after = np.abs(gap[:, None] - 2 * moved)
        best = np.argmin(after, axis=1)
        good = np.flatnonzero(after[np.arange(half), best] < gap)
        if not good.size:
            break
        h, l, pick = heavy[good], light[good], best[good]
        j, k = (pick, pick) if same_slot else np.divmod(pick, slots.shape[1])
        slots[h, j], slots[l, k] = slots[l, k], slots[h, j]
    return slots
