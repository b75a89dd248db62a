"""What no planner can beat: proven bounds on fill and on balance.

All rest on the linear-programming relaxation of packing (Gilmore and Gomory, 1961), solved by generating columns, and
on Farley's bound, which holds wherever that is stopped. Fill: the fewest packs that hold the samples. Balance: the
packs that hold the long samples are full but for the slack that all share, so beside the long samples they cost at
least the cheapest of the others that fill them, and one costs at least the mean of that; if no pack may cost more than
some cap, then more packs are needed, and when that is more than there are, some pack costs more.
"""

from __future__ import annotations

import numpy as np

from trainer.data.packing import Classes

MAX_COLUMNS = 500
UNITS = 4096
CAP_STEP = 0.002
CAP_UNITS = 1024
EXCESS_UNITS = 256


def fill_bound(lengths: np.ndarray, counts: np.ndarray, budget: int) -> float:
    """Greatest possible tokens over budget for samples in these proportions, over any number of packs.

    Lengths are rounded down to `budget` / 4,096 where needed, which can only raise the bound; it is Farley's bound from
    the last prices, so that it holds wherever the generation of columns stops.
    """
    from scipy.optimize import linprog

    present = counts > 0
    lengths, counts = np.asarray(lengths)[present], np.asarray(counts, np.float64)[present]
    shares = counts / counts.sum()
    units, room = _in_units(lengths, counts, budget, UNITS)
    columns = [np.eye(len(units), dtype=np.int64)[i] * (room // units[i]) for i in range(len(units))]
    least = 0.0
    for _ in range(MAX_COLUMNS):
        solved = linprog(np.ones(len(columns)), A_ub=-np.array(columns).T, b_ub=-shares, method="highs")
        value, column = _knapsack(units, -solved.ineqlin.marginals, room)
        least = max(least, solved.fun / max(value, 1.0))
        if least >= solved.fun * (1 - 1e-4):
            break
        columns.append(column)
    return float(min(1.0, shares @ lengths / (least * budget)))


def _knapsack(sizes: np.ndarray, values: np.ndarray, room: int) -> tuple[float, np.ndarray]:
    """Most valuable multiset that fits: its value, and how many of each. Multiples by powers of two."""
    best = np.zeros(room + 1)
    steps = []
    for i, (size, value) in enumerate(zip(sizes.tolist(), values.tolist())):
        count = 1
        while value > 1e-12 and count * size <= room:
            raised = np.full(room + 1, -1.0)
            raised[count * size :] = best[: room + 1 - count * size] + count * value
            better = raised > best + 1e-15
            best = np.where(better, raised, best)
            steps.append((i, count, better))
            count *= 2
    chosen, left = np.zeros(len(sizes), np.int64), room
    for i, count, better in reversed(steps):
        if better[left]:
            chosen[i] += count
            left -= count * int(sizes[i])
    return float(best[room]), chosen


def sum_bound(classes: Classes, counts: np.ndarray, num_packs: int, num_ranks: int) -> float:
    """Least possible maximum of the ranks' sums over their mean, for the samples of one step."""
    lengths, costs, total, slack = _step(classes, counts, num_packs)
    each = num_packs // num_ranks
    cheapest = (costs / lengths).min()
    least = total / num_ranks
    for length, cost, holders in _holders(classes, lengths, costs, counts):
        ranks = -(-holders // max(1, each))
        filler = max(0.0, each * classes.budget - slack / ranks - length)
        least = max(least, cost + filler * cheapest)
    if num_packs == each * num_ranks:
        least = max(least, _shared_bound(classes, counts, num_ranks, each, slack))
    return float(least / (total / num_ranks))


def _shared_bound(classes: Classes, counts: np.ndarray, num_ranks: int, each: int, slack: float) -> float:
    """Greatest, over lengths, of the least mean cost of the ranks that hold all samples as long, `each` packs a rank.

    However many ranks those are, their packs are full but for the slack, with what the shorter samples have to offer:
    the cheapest tokens first, each sample once.
    """
    present = np.flatnonzero(counts)
    order = present[np.argsort(-classes.lengths[present], kind="stable")]
    lengths, costs = classes.lengths[order].astype(np.float64), classes.costs[order].astype(np.float64)
    held = counts[order].astype(np.float64)
    least = 0.0
    for i in range(1, len(order)):
        longs, tokens, cost = held[:i].sum(), held[:i] @ lengths[:i], held[:i] @ costs[:i]
        most = each * (classes.budget // int(lengths[i - 1]))
        ranks = np.arange(-(-longs // most), min(longs, num_ranks) + 1)
        cheap = np.argsort(costs[i:] / lengths[i:], kind="stable") + i
        offered = np.append(0.0, np.cumsum((held * lengths)[cheap]))
        paid = np.append(0.0, np.cumsum((held * costs)[cheap]))
        room = np.maximum(ranks * each * classes.budget - slack - tokens, 0.0)
        possible = (room <= offered[-1] + 1e-6) & (tokens <= ranks * each * classes.budget)
        if possible.any():
            means = (cost + np.interp(room[possible], offered, paid)) / ranks[possible]
            least = max(least, float(means.min()))
    return least


def lockstep_bound(
    classes: Classes, counts: np.ndarray, num_packs: int, num_ranks: int, *, tight: bool = False
) -> float:
    """Least possible sum over slots of the maximum over ranks, over the sum of means, for the samples of one step.

    The first j slots have maxima of at least what their costliest packs must cost, and can take on no more than what
    fits num_ranks * j packs; the other slots do the rest at best evenly.

    Args:
        tight: look for the least cap on a pack's cost too, which takes seconds.
    """
    lengths, costs, total, slack = _step(classes, counts, num_packs)
    cheapest = (costs / lengths).min()
    least, maxima = total, 0.0
    for slot in range(-(-num_packs // num_ranks)):
        needed = _shared_bound(classes, counts, num_packs, 1, slack) if slot == 0 else 0.0
        if slot == 0 and tight:
            needed = max(needed, cap_bound(classes, counts, num_packs) * total / num_packs)
        for length, cost, holders in _holders(classes, lengths, costs, counts):
            if (beyond := holders - slot * num_ranks) > 0:
                filler = max(0.0, classes.budget - length - slack / beyond)
                needed = max(needed, cost + filler * cheapest)
        maxima += needed * num_ranks
        taken = _most_cost(classes, counts, (slot + 1) * num_ranks) if (slot + 1) * num_ranks < num_packs else total
        least = max(least, maxima + total - min(total, taken))
    return float(least / total)


def _step(classes: Classes, counts: np.ndarray, num_packs: int) -> tuple[np.ndarray, np.ndarray, float, float]:
    present = np.flatnonzero(counts)
    total, tokens = float(counts @ classes.costs), float(counts @ classes.lengths)
    costs = classes.costs[present].astype(np.float64)
    return classes.lengths[present], costs, total, num_packs * classes.budget - tokens


def _holders(
    classes: Classes, lengths: np.ndarray, costs: np.ndarray, counts: np.ndarray
) -> list[tuple[int, float, int]]:
    """For each length, the cost of a sample of it, and how many packs at least hold one as long."""
    order = np.argsort(-lengths, kind="stable")
    longer = np.cumsum(counts[np.flatnonzero(counts)][order])
    packs = -(-longer // (classes.budget // lengths[order]))
    return [(int(lengths[i]), float(costs[i]), int(n)) for i, n in zip(order, packs)]


def _most_cost(classes: Classes, counts: np.ndarray, num_packs: int) -> float:
    """At least the most that so many packs can cost together, when they may choose among the samples."""
    from scipy.optimize import linprog

    present = np.flatnonzero(counts)
    units, room = _in_units(classes.lengths[present], counts[present], classes.budget, UNITS)
    held, scale = counts[present].astype(np.float64), float(classes.costs[present].max())
    worth = classes.costs[present] / scale
    columns = [np.eye(len(units), dtype=np.int64)[i] * (room // units[i]) for i in range(len(units))]
    columns.append(np.zeros(len(units), np.int64))
    most = np.inf
    for _ in range(MAX_COLUMNS):
        table = np.array(columns)
        solved = linprog(
            -(table @ worth),
            A_ub=table.T.astype(np.float64),
            b_ub=held,
            A_eq=np.ones((1, len(columns))),
            b_eq=[num_packs],
            method="highs",
        )
        prices = -solved.ineqlin.marginals
        value, column = _knapsack(units, worth - prices, room)
        most = min(most, num_packs * value + float(prices @ held))
        if most <= -solved.fun * (1 + 1e-4):
            break
        columns.append(column)
    return most * scale


def cap_bound(classes: Classes, counts: np.ndarray, num_packs: int) -> float:
    """Greatest pack cost that no plan of these samples avoids, over the mean; to CAP_STEP, rounded down."""
    mean = float(counts @ classes.costs) / num_packs
    lowest = max(1.0, float(classes.costs[counts > 0].max()) / mean)
    low, high = 0, 1
    while _needs_more(classes, counts, num_packs, (lowest + high * CAP_STEP) * mean):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _needs_more(classes, counts, num_packs, (lowest + middle * CAP_STEP) * mean):
            low = middle
        else:
            high = middle
    return lowest + low * CAP_STEP


def _needs_more(classes: Classes, counts: np.ndarray, num_packs: int, cap: float) -> bool:
    """Whether more than `num_packs` packs are needed, provably, if none may cost more than `cap`."""
    from scipy.optimize import linprog

    present = np.flatnonzero(counts)
    units, room = _in_units(classes.lengths[present], counts[present], classes.budget, CAP_UNITS)
    held = counts[present].astype(np.float64)
    cheapest = float((classes.costs[present] / units).min())  # every unit of tokens costs that, and a long sample more
    over = classes.costs[present] - cheapest * units
    step = _least_rounding(over, held * over, cap / EXCESS_UNITS, 2 * cap / EXCESS_UNITS)
    excess = (over / step + 1e-9).astype(np.int64)
    allowed = np.clip(((cap - cheapest * np.arange(room + 1)) / step + 1e-9).astype(np.int64), -1, EXCESS_UNITS)
    columns = [np.eye(len(units), dtype=np.int64)[i] for i in range(len(units))]
    for _ in range(MAX_COLUMNS):
        solved = linprog(np.ones(len(columns)), A_ub=-np.array(columns).T, b_ub=-held, method="highs")
        value, column = _capped_knapsack(units, excess, -solved.ineqlin.marginals, allowed)
        if solved.fun / max(value, 1.0) > num_packs * (1 + 1e-6):
            return True
        if solved.fun <= num_packs or value <= 1 + 1e-6:
            return False
        columns.append(column)
    return False


def _capped_knapsack(
    sizes: np.ndarray, excess: np.ndarray, values: np.ndarray, allowed: np.ndarray
) -> tuple[float, np.ndarray]:
    """Most valuable multiset that fits, with no more excess than `allowed` at its size: its value, how many of each."""
    room = len(allowed) - 1
    best = np.zeros((room + 1, EXCESS_UNITS + 1))
    steps = []
    for i, (size, extra, value) in enumerate(zip(sizes.tolist(), excess.tolist(), values.tolist())):
        count = 1
        while value > 1e-12 and count * size <= room and count * extra <= EXCESS_UNITS:
            s, e = count * size, count * extra
            raised = best[: room + 1 - s, : EXCESS_UNITS + 1 - e] + count * value
            better = raised > best[s:, e:] + 1e-15
            best[s:, e:] = np.where(better, raised, best[s:, e:])
            steps.append((i, count, better))
            count *= 2
    reachable = np.where(np.arange(EXCESS_UNITS + 1) <= allowed[:, None], best, -1.0)
    left, extra = np.unravel_index(int(np.argmax(reachable)), reachable.shape)
    value, chosen = float(reachable[left, extra]), np.zeros(len(sizes), np.int64)
    for i, count, better in reversed(steps):
        s, e = count * int(sizes[i]), count * int(excess[i])
        if left >= s and extra >= e and better[left - s, extra - e]:
            chosen[i] += count
            left, extra = left - s, extra - e
    return value, chosen


def _in_units(lengths: np.ndarray, counts: np.ndarray, budget: int, most: int) -> tuple[np.ndarray, int]:
    """Lengths and budget in units, lengths rounded down and the budget up, so that all that fits still does."""
    unit = int(np.gcd.reduce(np.append(lengths, budget)))
    if budget // unit > most:
        unit = int(
            _least_rounding(
                np.append(lengths, budget), np.append(counts * lengths, 0), budget / most, 2 * budget / most
            )
        )
    return np.maximum(1, lengths // unit), -(-budget // unit)


def _least_rounding(values: np.ndarray, weights: np.ndarray, low: float, high: float) -> float:
    """The unit in [low, high] in which values lose least when they are rounded down, by weight."""
    units = np.linspace(np.ceil(low), np.ceil(high), 400).astype(np.int64) if low > 400 else np.arange(low, high + 1)
    rounded = np.floor(values[None, :] / units[:, None]) * units[:, None]
    lost = (weights * (values - rounded) / np.maximum(values, 1e-9)).sum(axis=1)
    return float(units[np.argmin(lost)])
