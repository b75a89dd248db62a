"""Fill and balance of packs on three mixes, beside proven bounds and the ways of other trainers; planning times.

    python tests/bench/packing.py [--mixes open-sora wan short] [--ranks 8 64 1024] [--slots 1 4 8] [--tight]
    python tests/bench/packing.py --times        how long a step takes to plan, and how much memory

Printed, a JSON line a case: `fill` tokens over budget; `sums` greatest sum of a rank over their mean, mean and worst
over steps; `lockstep` sum over slots of the greatest pack over the sum of means. Beside each, of some steps, evenly
spread, the mean of what `trainer.data.bounds` proves for the same samples (`*_bound`), and of what was reached over it
(`*_over_bound`; the bench stops where that is below 1). `--tight` finds the closest bound there is for one pack a rank,
of the first step alone, since that takes up to a minute. `sums` is planned with `balance = "sum"`, `lockstep` with
`"lockstep"`; `alike` is one pack a rank with `composition = "alike"`. FLOPs are those of Wan 2.1 1.3B.

The others, all with each rank on its own stream of the same shuffled samples, as they work:
- `fixed`: one bucket a batch, as many samples as the budget holds (Open-Sora's way; its batch sizes are tuned by hand).
- `first fit`: samples in order into the first of 16 open packs that has room; when none has, the fullest is emitted.
- `knapsack`: Megatron-Energon's packing with the greedy knapsack of Megatron-LM's multimodal example: a buffer of
  samples is packed whole, the longest that fits first, and refilled.
"""

from __future__ import annotations

import argparse
import bisect
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trainer.data.bounds import cap_bound, fill_bound, lockstep_bound, sum_bound
from trainer.data.packing import FlopModel
from trainer.data.plan import PlanConfig, Planner, StepPlan
from trainer.data.synthetic import StreamIndex

DIM, FFN_DIM, LAYERS, TEXT_TOKENS = 1536, 8960, 30, 512  # Wan 2.1 1.3B
FLOPS = FlopModel(
    quadratic=LAYERS * 4.0 * DIM,
    linear=LAYERS * (12.0 * DIM**2 + 4.0 * DIM * FFN_DIM + 4.0 * TEXT_TOKENS * DIM),
)
NUM_ROWS = 30_000_000
OPEN_PACKS, BUFFER_SAMPLES = 16, 1000
BASELINE_PACKS = 20_000
BOUNDED_STEPS = 16
"""Steps for which bounds are worked out, evenly spread."""
TIGHT = False


def open_sora() -> dict[int, float]:
    """Open-Sora's published buckets: 256px at every length of its 2.0 stage 1 and its images, v1.2's resolutions.

    Shares fall with resolution and length as the keep probabilities of its configurations do.
    """
    sizes = {
        "256px": (256, 256), "512px": (512, 512), "768px": (768, 768), "1024px": (1024, 1024),
        "144p": (144, 256), "240p": (240, 432), "360p": (368, 640), "480p": (480, 848), "720p": (720, 1280),
    }  # fmt: skip
    shares: dict[int, float] = {}
    for name, share in (("256px", 12.0), ("512px", 8.4), ("768px", 6.0), ("1024px", 6.0)):
        _add(shares, sizes[name], 1, share)
    for frames in range(5, 130, 4):
        _add(shares, sizes["256px"], frames, 6 / 32)
    for name, share in (("144p", 1.0), ("240p", 0.5), ("360p", 0.5), ("480p", 0.5), ("720p", 0.15)):
        for frames, kept in ((49, 1.0), (97, 0.6), (129, 0.3)):
            _add(shares, sizes[name], frames, share * kept)
    return shares


def wan() -> dict[int, float]:
    """Wan at 480p and 720p: 1, 17, 33, 49 and 81 frames, five aspects each."""
    shares: dict[int, float] = {}
    low = ((480, 832), (832, 480), (624, 624), (544, 704), (704, 544))
    high = ((720, 1280), (1280, 720), (960, 960), (832, 1088), (1088, 832))
    for aspects, share in ((low, 0.7), (high, 0.3)):
        for size in aspects:
            for frames, kept in ((1, 0.3), (17, 0.2), (33, 0.15), (49, 0.15), (81, 0.2)):
                _add(shares, size, frames, share / 5 * kept)
    return shares


def short() -> dict[int, float]:
    """Images of 256 to 1024 px with clips of 17 and 33 frames."""
    shares: dict[int, float] = {}
    images = ((256, 256, 0.3), (512, 512, 0.3), (768, 768, 0.15), (1024, 1024, 0.1), (832, 480, 0.15), (640, 368, 0.1))
    for height, width, share in images:
        _add(shares, (height, width), 1, share)
    for height, width, share in ((256, 256, 0.1), (480, 832, 0.06), (368, 640, 0.06)):
        for frames, kept in ((17, 0.6), (33, 0.4)):
            _add(shares, (height, width), frames, share * kept)
    return shares


def _add(shares: dict[int, float], size: tuple[int, int], frames: int, share: float) -> None:
    length = (size[0] // 16) * (size[1] // 16) * ((frames - 1) // 4 + 1)
    shares[length] = shares.get(length, 0.0) + share


MIXES: dict[str, tuple[Callable[[], dict[int, float]], tuple[int, ...]]] = {
    "open-sora": (open_sora, (131_072,)),
    "wan": (wan, (75_600, 151_200)),
    "short": (short, (32_768,)),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A case; bounds are NaN where they are not worked out."""

    mix: str
    budget: int
    ranks: int
    slots: int
    method: str
    steps: int
    fill: float
    fill_bound: float
    sums: float
    worst_sums: float
    sums_bound: float
    sums_over_bound: float
    lockstep: float
    lockstep_bound: float
    lockstep_over_bound: float

    def __str__(self) -> str:
        """A JSON line; what is not worked out is left out."""
        return json.dumps({key: _short(value) for key, value in self.__dict__.items() if value == value})


def _short(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


def ours(
    mix: str, shares: dict[int, float], budget: int, ranks: int, slots: int, composition: Literal["mixed", "alike"]
) -> Row:
    """Plan four windows, at least 4 steps: no row waits longer than its window."""
    index = StreamIndex.of({n: max(1, int(NUM_ROWS * s / sum(shares.values()))) for n, s in sorted(shares.items())})
    found: dict[str, list[tuple[float, float, float]]] = {"sum": [], "lockstep": []}
    for balance in ("sum", "lockstep"):
        config = PlanConfig(
            token_budget=budget,
            packs_per_step=ranks * slots,
            packs_per_rank=slots,
            balance=balance,  # type: ignore[arg-type]
            composition=composition,
            seed=1,
        )
        planner = Planner(index, config, FLOPS)
        steps = 4 * planner.window_steps
        for number in range(steps):
            step = planner.step(number)
            costs = np.append(step.costs, 0)[step.deal(ranks)]
            level = costs.sum(axis=1).max() / costs.sum(axis=1).mean()
            bound = float("nan")
            if composition == "mixed" and number % (steps if TIGHT else max(1, steps // BOUNDED_STEPS)) == 0:
                bound = _bound(balance, planner, step, ranks, tight=TIGHT)
            if balance == "lockstep":
                level = costs.max(axis=0).sum() / costs.mean(axis=0).sum()
            assert not level < bound - 1e-9, f"{mix}, step {number}: {level} is below a proven bound, {bound}"
            found[balance].append((level, bound, step.num_tokens.sum() / (budget * len(step))))
    sums, lock = np.array(found["sum"]), np.array(found["lockstep"])
    lengths = np.array(sorted(shares))
    return Row(
        mix=mix,
        budget=budget,
        ranks=ranks,
        slots=slots,
        method="ours" if composition == "mixed" else "alike",
        steps=steps,
        fill=min(sums[:, 2].mean(), lock[:, 2].mean()),
        fill_bound=fill_bound(lengths, np.array([shares[n] for n in lengths]), budget),
        sums=sums[:, 0].mean(),
        worst_sums=sums[:, 0].max(),
        sums_bound=_mean(sums[:, 1]),
        sums_over_bound=_mean(sums[:, 0] / sums[:, 1]),
        lockstep=lock[:, 0].mean(),
        lockstep_bound=_mean(lock[:, 1]),
        lockstep_over_bound=_mean(lock[:, 0] / lock[:, 1]),
    )


def _mean(values: np.ndarray) -> float:
    """Of those that were worked out."""
    found = values[~np.isnan(values)]
    return float(found.mean()) if found.size else float("nan")


def _bound(balance: str, planner: Planner, step: StepPlan, ranks: int, *, tight: bool) -> float:
    counts = planner.class_counts(step)
    least = (sum_bound if balance == "sum" else lockstep_bound)(planner.classes, counts, len(step), ranks)
    if ranks == len(step) and tight:
        least = max(least, cap_bound(planner.classes, counts, len(step)))
    return least


def samples(shares: dict[int, float], seed: int) -> Iterator[int]:
    """Lengths in random order, without end."""
    rng = np.random.default_rng(seed)
    lengths = np.array(sorted(shares))
    chances = np.array([shares[n] for n in lengths])
    while True:
        yield from rng.choice(lengths, 100_000, p=chances / chances.sum()).tolist()


def fixed(stream: Iterator[int], budget: int) -> Iterator[list[int]]:
    """A batch of one bucket, emitted when it is full."""
    waiting: dict[int, int] = {}
    for length in stream:
        waiting[length] = waiting.get(length, 0) + 1
        if waiting[length] == budget // length:
            del waiting[length]
            yield [length] * (budget // length)


def first_fit(stream: Iterator[int], budget: int) -> Iterator[list[int]]:
    """Into the first of OPEN_PACKS open packs that has room."""
    packs: list[list[int]] = []
    rooms: list[int] = []
    for length in stream:
        place = next((i for i, room in enumerate(rooms) if room >= length), None)
        if place is None:
            if len(packs) == OPEN_PACKS:
                fullest = rooms.index(min(rooms))
                rooms.pop(fullest)
                yield packs.pop(fullest)
            packs.append([])
            rooms.append(budget)
            place = len(packs) - 1
        packs[place].append(length)
        rooms[place] -= length


def knapsack(stream: Iterator[int], budget: int) -> Iterator[list[int]]:
    """Energon's loop: fill the buffer, pack all of it, emit the packs while the buffer fills again."""
    while True:
        buffer = sorted(next(stream) for _ in range(BUFFER_SAMPLES))
        while buffer:
            pack, room = [], budget
            while (place := bisect.bisect(buffer, room)) > 0:
                pack.append(buffer.pop(place - 1))
                room -= pack[-1]
            yield pack


def other(mix: str, shares: dict[int, float], budget: int, ranks: int, slots: int, method: str) -> Row:
    """Another trainer's way: every rank draws its own packs."""
    make = {"fixed": fixed, "first fit": first_fit, "knapsack": knapsack}[method]
    steps = max(4, min(200, BASELINE_PACKS // (ranks * slots)))
    lengths = np.array(sorted(shares))
    costs = dict(zip(lengths.tolist(), FLOPS.costs(lengths, budget).tolist()))
    streams = [make(samples(shares, rank), budget) for rank in range(min(ranks, 256))]
    packs = [[] for _ in range(ranks)]
    warm = 4 * BUFFER_SAMPLES * int(lengths @ [shares[n] for n in lengths] / sum(shares.values())) // budget
    for rank in range(ranks):  # ranks beyond 256 go on with the streams of the first
        source = streams[rank % len(streams)]
        for _ in range(warm if rank < len(streams) and method == "fixed" else 0):
            next(source)
        packs[rank] = [next(source) for _ in range(steps * slots)]
    cost = np.array([[sum(costs[n] for n in pack) for pack in row] for row in packs], np.float64)
    cost = cost.reshape(ranks, steps, slots)
    sums = cost.sum(axis=2)
    level = sums.max(axis=0) / sums.mean(axis=0)
    lock = cost.max(axis=0).sum(axis=1) / cost.mean(axis=0).sum(axis=1)
    nan = float("nan")
    return Row(
        mix=mix,
        budget=budget,
        ranks=ranks,
        slots=slots,
        method=method,
        steps=steps,
        fill=sum(sum(pack) for row in packs for pack in row) / (budget * ranks * steps * slots),
        fill_bound=nan,
        sums=level.mean(),
        worst_sums=level.max(),
        sums_bound=nan,
        sums_over_bound=nan,
        lockstep=lock.mean(),
        lockstep_bound=nan,
        lockstep_over_bound=nan,
    )


def times(mix: str, num_packs: int) -> dict[str, float]:
    """Seconds to plan and deal: construction, the first step, and the steps of four windows after it; and memory."""
    make, budgets = MIXES[mix]
    shares = make()
    index = StreamIndex.of({n: max(1, int(NUM_ROWS * s / sum(shares.values()))) for n, s in sorted(shares.items())})
    config = PlanConfig(token_budget=budgets[0], packs_per_step=num_packs, packs_per_rank=8, seed=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    planner = Planner(index, config, FLOPS)
    made = time.perf_counter() - started
    started = time.perf_counter()
    planner.step(0).deal(num_packs // 8)
    cold = time.perf_counter() - started
    spent = []
    for step in range(1, 4 * planner.window_steps + 1):
        started = time.perf_counter()
        planner.step(step).deal(num_packs // 8)
        spent.append(time.perf_counter() - started)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "construction_seconds": made,
        "cold_window_seconds": cold,
        "median_seconds": float(np.median(spent)),
        "mean_seconds": float(np.mean(spent)),
        "memory_mb": memory / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixes", nargs="+", default=list(MIXES), choices=list(MIXES))
    parser.add_argument("--ranks", nargs="+", type=int, default=[8, 64, 1024])
    parser.add_argument("--slots", nargs="+", type=int, default=[1, 4, 8])
    parser.add_argument("--tight", action="store_true")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("MIX", "PACKS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    global TIGHT
    TIGHT = args.tight
    if args.one:
        print(json.dumps({k: round(v, 4) for k, v in times(args.one[0], int(args.one[1])).items()}))
        return
    if args.times:
        for mix in args.mixes:
            for packs in (512, 8192):  # each in a process of its own, for its memory
                command = [sys.executable, __file__, "--one", mix, str(packs)]
                found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                print(json.dumps({"mix": mix, "packs": packs, **found}), flush=True)
        return
    for mix in args.mixes:
        make, budgets = MIXES[mix]
        shares = make()
        for budget in budgets:
            for ranks in args.ranks:
                for slots in args.slots:
                    for composition in ("mixed", "alike") if slots == 1 else ("mixed",):
                        print(ours(mix, shares, budget, ranks, slots, composition), flush=True)
                    for method in ("fixed", "first fit", "knapsack"):
                        print(other(mix, shares, budget, ranks, slots, method), flush=True)


if __name__ == "__main__":
    main()
