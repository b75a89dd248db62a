"""Deal a step's packs to ranks: like costs in lockstep, sums of ranks level.

Packs are sorted by FLOPs and cut into slots of one pack a rank, so that ranks that wait for each other at every pack
hold packs of like cost. Within a slot packs trade places until the sums agree: first the greatest to the least loaded
rank, then pairs of a heavy and a light rank swap the pack that levels them best.
"""

from __future__ import annotations

import numpy as np

from schemas.errors import UserError

MISSING = -1
ROUNDS = 24


def deal(costs: np.ndarray, world_size: int) -> np.ndarray:
    """Assign packs to ranks; the same on every rank.

    Args:
        costs: integer cost of each pack of a step.
    Returns:
        int64 [world_size, slots]: numbers of packs, MISSING where a rank sits out.
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
    order = np.full(num_slots * world_size, MISSING, np.int64)
    order[: len(costs)] = np.argsort(-costs, kind="stable")
    slots = order.reshape(num_slots, world_size).T.copy()
    padded = np.append(costs, 0)
    sums = padded[slots[:, 0]]
    for j in range(1, num_slots):
        ranks = np.argsort(sums, kind="stable")
        slots[ranks, j] = order[j * world_size : (j + 1) * world_size]
        sums = sums + padded[slots[:, j]]
    return _level(slots, padded) if num_slots > 1 else slots


def _level(slots: np.ndarray, padded: np.ndarray) -> np.ndarray:
    """Swap packs of one slot between the heaviest and the lightest rank, the next two, and so on, until none helps."""
    half = len(slots) // 2
    for _ in range(ROUNDS):
        load = padded[slots]
        sums = load.sum(axis=1)
        order = np.argsort(-sums, kind="stable")
        heavy, light = order[:half], order[::-1][:half]
        gap = sums[heavy] - sums[light]
        moved = load[heavy] - load[light]
        after = np.abs(gap[:, None] - 2 * moved)
        best = np.argmin(after, axis=1)
        good = np.flatnonzero(after[np.arange(half), best] < gap)
        if not good.size:
            break
        h, l, j = heavy[good], light[good], best[good]
        slots[h, j], slots[l, j] = slots[l, j], slots[h, j]
    return slots
