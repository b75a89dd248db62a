"""The plan: which rows make up the packs of any step, the same on every rank, computed without talking.

An epoch, or several where one is short, is cut into steps of equal tokens, and those into windows of some steps. A
window's rows are known from its number alone, so each is planned on its own and any step is found without replay.
Membership of a step does not depend on the world size; `deal` shares the packs of a step between ranks.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, overload

import numpy as np

from schemas.errors import UserError
from schemas.ids import canonical_json
from trainer.data.deal import Balance, deal
from trainer.data.index import Stream
from trainer.data.packing import Classes, FlopModel, Packed, pack_groups, pack_tiers
from trainer.data.permutation import hash_key, keyed_uniform
from trainer.data.sequence import EPOCH, MixSequence, StreamSequence

MIN_ERA_STEPS = 64
WINDOW_PACKS = 4096
MAX_WINDOW_STEPS = 64


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """How rows become packs.

    Attributes:
        token_budget: tokens of a pack, at most.
        packs_per_step: packs of a step over all ranks: the global batch.
        packs_per_rank: packs that a rank runs in a step where the run is at home; they are planned to even out. Any
            other number of ranks sees the same packs, somewhat less even.
        balance: `sum` where ranks meet once a step; `lockstep` where sharding makes them wait at every pack.
        composition: `mixed`: every step holds the mix, so that steps cost alike; where some samples are so long that
            one pack a rank cannot be even, ranks wait. `alike`: a step holds packs of like cost, so that no rank waits,
            but steps differ in content, as with one bucket a step: long clips here, images there.
        window_steps: steps planned together; 0 takes 4,096 packs' worth, at most 64.
        seed: of order, captions and whatever else is drawn.
        read_bytes: rows are shuffled in groups of about so many bytes that lie together in a table, so that one
            request reads them; a group never takes more than an eighth of the budget. 0 shuffles single rows.
        fill: tokens over budget to plan for; 0 finds the highest that every window keeps.
        allow_skipping: leave out buckets whose samples exceed the budget instead of refusing to start.
    """

    token_budget: int
    packs_per_step: int
    packs_per_rank: int = 1
    balance: Balance = "sum"
    composition: Literal["mixed", "alike"] = "mixed"
    window_steps: int = 0
    seed: int = 0
    read_bytes: int = 1 << 20
    fill: float = 0.0
    allow_skipping: bool = False

    def __post_init__(self) -> None:
        if self.token_budget < 1 or self.packs_per_step < 1:
            raise UserError("plan: token_budget and packs_per_step must be at least 1")
        if not 1 <= self.packs_per_rank <= self.packs_per_step:
            raise UserError(
                f"plan: packs_per_rank must be in [1, {self.packs_per_step}], the packs of a step; "
                f"found {self.packs_per_rank}"
            )
        if self.window_steps < 0 or self.read_bytes < 0:
            raise UserError("plan: window_steps and read_bytes must not be negative")
        if not 0 <= self.fill <= 1:
            raise UserError(f"plan: fill must be in [0, 1], found {self.fill}")


@dataclass(frozen=True, kw_only=True, eq=False)
class PackPlan:
    """One pack, before it is read.

    Attributes:
        rows: int64 index rows, samples of one shape together.
        visits: int64 count of earlier visits of each row, for what is drawn anew each time.
        cost: integer, proportional to FLOPs.
    """

    step: int
    number: int
    rows: np.ndarray
    visits: np.ndarray
    num_tokens: int
    flops: float
    cost: int


class StepPlan(Sequence[PackPlan]):
    """The packs of one step over all ranks."""

    def __init__(self, step: int, window: _Window, first: int, stop: int, extra: Sequence[int]) -> None:
        self.step = step
        self._window = window
        self._packs = [*range(first, stop), *extra]

    def __len__(self) -> int:
        return len(self._packs)

    @property
    def costs(self) -> np.ndarray:
        """Integer cost of each pack."""
        return self._window.costs[self._packs]

    @property
    def num_tokens(self) -> np.ndarray:
        """Tokens of each pack."""
        return self._window.tokens[self._packs]

    @property
    def num_samples(self) -> np.ndarray:
        """Samples of each pack."""
        starts = self._window.starts
        return np.array([starts[p + 1] - starts[p] for p in self._packs])

    @overload
    def __getitem__(self, number: int) -> PackPlan: ...
    @overload
    def __getitem__(self, number: slice) -> list[PackPlan]: ...
    def __getitem__(self, number: int | slice) -> PackPlan | list[PackPlan]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        pack, window = self._packs[number], self._window
        span = slice(int(window.starts[pack]), int(window.starts[pack + 1]))
        return PackPlan(
            step=self.step,
            number=range(len(self))[number],
            rows=window.rows[span],
            visits=window.visits[span],
            num_tokens=int(window.tokens[pack]),
            flops=float(window.flops[pack]),
            cost=int(window.costs[pack]),
        )

    def deal(self, world_size: int) -> np.ndarray:
        """Numbers of packs [world_size, slots]; see `deal`."""
        return deal(self.costs, world_size, self._window.balance)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Window:
    """Planned packs of some steps: pack p holds `rows[starts[p]:starts[p + 1]]`; overflow packs come last."""

    starts: np.ndarray
    rows: np.ndarray
    visits: np.ndarray
    tokens: np.ndarray
    costs: np.ndarray
    flops: np.ndarray
    balance: Balance


class Plannable(Protocol):
    """What a planner needs of an index."""

    @property
    def streams(self) -> tuple[Stream, ...]: ...
    @property
    def content_hash(self) -> str: ...
    def __len__(self) -> int: ...


class Planner:
    """Plans any step of an endless run over an index.

    Args:
        index: what to train on.
        config: budget, packs a step, seed.
        flops: of a sample by its length, from the model's configuration or fitted to step times.
        steps_per_era: from the `state` of an earlier planner; found anew otherwise.
    Raises:
        UserError: a sample is longer than the budget; names buckets and the share of rows.
    """

    def __init__(self, index: Plannable, config: PlanConfig, flops: FlopModel, *, steps_per_era: int = 0) -> None:
        self.index = index
        self.config = config
        self.flops = flops
        self.streams = self._fitting_streams()
        self.lengths, self._class_of = np.unique([s.num_tokens for s in self.streams], return_inverse=True)
        costs = flops.costs(self.lengths, config.token_budget)
        self.classes = Classes(lengths=self.lengths, costs=costs, budget=config.token_budget)
        self._class_flops = flops.flops(self.lengths)
        self.sequence = MixSequence([self._stream_sequence(i) for i in range(len(self.streams))])
        self._windows: OrderedDict[tuple[int, int], _Window] = OrderedDict()
        self.epochs_per_era = 1
        self.steps_per_era = 0
        self._set_era(steps_per_era)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (self.index, self.config, self.flops, self.steps_per_era)

    def _fitting_streams(self) -> list[Stream]:
        long = [s for s in self.index.streams if s.num_tokens > self.config.token_budget]
        if long and not self.config.allow_skipping:
            total = len(self.index)
            listed = ", ".join(f"{s.bucket} ({s.num_tokens:,} tokens, {s.num_rows / total:.1%} of rows)" for s in long)
            raise UserError(
                f"plan: samples longer than token_budget {self.config.token_budget:,}: {listed}; raise the budget to "
                f"{max(s.num_tokens for s in long):,}, or set allow_skipping = true to leave them out"
            )
        fitting = [s for s in self.index.streams if s.num_tokens <= self.config.token_budget]
        if not fitting:
            raise UserError("plan: every bucket is longer than token_budget; nothing is left to train on")
        return fitting

    def _stream_sequence(self, number: int) -> StreamSequence:
        stream, config = self.streams[number], self.config
        rows = min(config.read_bytes // stream.latent_bytes, config.token_budget // (8 * stream.num_tokens))
        key = hash_key(config.seed, stream.dataset, int.from_bytes(stream.table.encode()[-7:], "little"), number)
        return StreamSequence(stream, max(1, rows), key)

    @property
    def tokens_per_epoch(self) -> float:
        """Tokens of an epoch."""
        return float(sum(s.tokens_per_epoch for s in self.sequence.streams))

    @property
    def steps_per_epoch(self) -> float:
        """Steps of an epoch; whole unless an era has several epochs."""
        return self.steps_per_era / self.epochs_per_era

    @property
    def fill(self) -> float:
        """Tokens over budget, on average over an era."""
        budget = self.config.token_budget * self.config.packs_per_step
        return self.tokens_per_epoch / self.steps_per_epoch / budget

    @property
    def fingerprint(self) -> str:
        """Of everything that decides the order: 16 hex digits."""
        values = [self.index.content_hash, dataclasses.asdict(self.config), dataclasses.asdict(self.flops)]
        return hashlib.blake2b(canonical_json([*values, self.steps_per_era]), digest_size=8).hexdigest()

    def class_counts(self, step: StepPlan) -> np.ndarray:
        """Samples of each length class in a step, int64."""
        rows = np.concatenate([pack.rows for pack in step])
        numbers = np.searchsorted([s.stop for s in self.streams], rows, side="right")
        return np.bincount(self._class_of[numbers], minlength=len(self.lengths))

    def epoch_counts(self) -> np.ndarray:
        """Visits of each length class in an epoch, on average, float64."""
        return np.bincount(self._class_of, [s.weight * s.num_rows for s in self.streams], len(self.lengths))

    def check_world_size(self, world_size: int) -> None:
        """Raise UserError if so many ranks cannot share a step."""
        deal(np.ones(self.config.packs_per_step, np.int64), world_size)

    def _set_era(self, steps_per_era: int) -> None:
        """Choose epochs an era and steps an era: the fewest steps at which sampled windows overflow nowhere."""
        capacity = self.config.token_budget * self.config.packs_per_step
        while self.tokens_per_epoch * self.epochs_per_era < MIN_ERA_STEPS * capacity:
            self.epochs_per_era *= 2
        tokens = self.tokens_per_epoch * self.epochs_per_era
        if steps_per_era or self.config.fill:
            self.steps_per_era = steps_per_era or -(-int(tokens) // int(capacity * self.config.fill))
            return
        fits, fails = int(tokens / capacity * 2) + 1, int(tokens / capacity)
        while fits - fails > max(1, fits // 1000):
            self.steps_per_era = (fits + fails) // 2
            if self._overflows():
                fails = self.steps_per_era
            else:
                fits = self.steps_per_era
        self.steps_per_era = fits
        self._windows.clear()

    def _overflows(self) -> bool:
        """Whether a window of the sequence, planned without its rows, has samples that find no room."""
        windows = self._windows_per_era
        for number in sorted({0, windows // 2, windows - 1}):
            first, last = self._span(0, number)
            if self._pack(self._expected_counts(number), last - first).left.any():
                return True
        return False

    def _expected_counts(self, number: int) -> np.ndarray:
        """Samples of each class in a window of the first era, read groups counted with their mean size, rounded up."""
        start, stop = self._times(0, number)
        counts = np.zeros(len(self.lengths), np.int64)
        for c, s in zip(self._class_of, self.sequence.streams):
            groups = s.groups_before(stop) - s.groups_before(start)
            counts[c] += -(-groups * s.stream.num_rows // s.num_groups)
        return counts

    @property
    def window_steps(self) -> int:
        """Steps planned together, at most."""
        return self.config.window_steps or max(1, min(MAX_WINDOW_STEPS, WINDOW_PACKS // self.config.packs_per_step))

    @property
    def _windows_per_era(self) -> int:
        return -(-self.steps_per_era // self.window_steps)

    def _span(self, era: int, window: int) -> tuple[int, int]:
        """Steps of the era [first, stop) that a window covers."""
        steps, windows = self.steps_per_era, self._windows_per_era
        return window * steps // windows, (window + 1) * steps // windows

    def _times(self, era: int, window: int) -> tuple[int, int]:
        low = era * self.epochs_per_era * EPOCH
        high = low + self.epochs_per_era * EPOCH
        first, total = self.sequence.tokens_before(low), self.sequence.tokens_before(high)
        marks = []
        for step in self._span(era, window):
            if step in (0, self.steps_per_era):
                marks.append(low if step == 0 else high)
            else:
                marks.append(self.sequence.time_of(first + (total - first) * step // self.steps_per_era, low, high))
        return marks[0], marks[1]

    def locate(self, step: int) -> tuple[int, int, int]:
        """Era, window and step within the window of a global step."""
        era, offset = divmod(step, self.steps_per_era)
        windows = self._windows_per_era
        window = ((offset + 1) * windows - 1) // self.steps_per_era
        return era, window, offset - self._span(era, window)[0]

    def step(self, step: int) -> StepPlan:
        """Packs of a global step, found without planning those before it."""
        if step < 0:
            raise ValueError(f"plan: step must not be negative, found {step}")
        era, number, offset = self.locate(step)
        if (era, number) not in self._windows:
            self._windows[era, number] = self._plan(era, number)
            while len(self._windows) > 2:
                self._windows.popitem(last=False)
        window = self._windows[era, number]
        first, last = self._span(era, number)
        packs, regular = self.config.packs_per_step, (last - first) * self.config.packs_per_step
        extra = range(regular + offset, len(window.costs), last - first)
        return StepPlan(step, window, offset * packs, (offset + 1) * packs, extra)

    def steps(self, start: int = 0) -> Iterator[StepPlan]:
        """Steps from `start` on, without end."""
        while True:
            yield self.step(start)
            start += 1

    def _plan(self, era: int, number: int) -> _Window:
        key = hash_key(self.config.seed, era, number)
        rows, visits, counts = self._rows(era, number, key)
        first, last = self._span(era, number)
        packed = self._pack(counts, last - first)
        table = packed.table[self._step_order(packed.table @ self.classes.costs, last - first, key)]
        if packed.left.any():
            table = np.concatenate([table, self._overflow_packs(packed.left)])
        return self._fill(table, rows, visits)

    def _group_sizes(self) -> np.ndarray:
        """Packs of each group of a step, packs_per_rank or fewer; they differ by one at most, larger ones first."""
        num_groups = -(-self.config.packs_per_step // self.config.packs_per_rank)
        smaller, larger = divmod(self.config.packs_per_step, num_groups)
        return np.repeat([smaller + 1, smaller], [larger, num_groups - larger])

    def _pack(self, counts: np.ndarray, num_steps: int) -> Packed:
        """Packs of a window: groups one after another, larger ones first; or tiers one after another."""
        sizes = self._group_sizes()
        if self.config.balance == "sum":
            return pack_groups(self.classes, counts, np.repeat(sizes, num_steps))
        # slot j of a step has a pack of every group that holds more than j
        tiers = [num_steps * int((sizes > slot).sum()) for slot in range(int(sizes[0]))]
        return pack_tiers(self.classes, counts, tiers)

    def _step_order(self, costs: np.ndarray, num_steps: int, key: int) -> np.ndarray:
        """Order packs by step, such that each step gets one of every `num_steps` neighbours by cost."""
        if self.config.composition == "alike":
            steps = np.argsort(costs, kind="stable").reshape(num_steps, -1)
            return steps[np.argsort(keyed_uniform(key, np.arange(num_steps)))].reshape(-1)
        if self.config.balance == "lockstep":
            return _draw_steps(costs, num_steps, key).T.reshape(-1)
        parts, start = [], 0
        for size, count in zip(*np.unique(-self._group_sizes(), return_counts=True)):
            stop = start - int(size) * int(count) * num_steps
            groups = np.arange(start, stop).reshape(-1, -int(size))
            drawn = _draw_steps(costs[groups].max(axis=1), num_steps, hash_key(key, -int(size)))
            parts.append(groups[drawn.T].reshape(num_steps, -1))
            start = stop
        return np.concatenate(parts, axis=1).reshape(-1)

    def _overflow_packs(self, left: np.ndarray) -> np.ndarray:
        """Packs beyond the step's number for what found no room: rare, and better than losing a row."""
        num_packs = max(1, -(-int(left @ self.lengths) // self.config.token_budget))
        while (packed := pack_groups(self.classes, left, np.ones(num_packs, np.int64))).left.any():
            num_packs += 1
        return packed.table

    def _rows(self, era: int, number: int, key: int) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
        """Rows and visits of each class, streams of one class mixed by read group."""
        found = self.sequence.between(*self._times(era, number))
        rows, visits = [], []
        for c in range(len(self.lengths)):
            members = [i for i in range(len(found)) if self._class_of[i] == c]
            parts = [(found[i].rows, found[i].visits, found[i].groups) for i in members]
            merged = [np.concatenate(arrays) for arrays in zip(*parts)]
            if len(members) > 1:
                stream = np.repeat(members, [len(found[i].rows) for i in members])
                order = np.argsort(keyed_uniform(key, merged[2] * len(found) + stream), kind="stable")
                merged = [m[order] for m in merged]
            rows.append(merged[0])
            visits.append(merged[1])
        return rows, visits, np.array([len(r) for r in rows], np.int64)

    def _fill(self, table: np.ndarray, rows: list[np.ndarray], visits: list[np.ndarray]) -> _Window:
        """Hand each class's rows to the packs, in order."""
        ends = np.cumsum(table.reshape(-1)).reshape(table.shape)
        begins = ends - table
        all_rows, all_visits = np.empty(int(table.sum()), np.int64), np.empty(int(table.sum()), np.int64)
        for c in range(len(self.lengths)):
            counts = table[:, c]
            shift = np.repeat(begins[:, c] - (np.cumsum(counts) - counts), counts)
            places = np.arange(len(shift)) + shift
            all_rows[places] = rows[c]
            all_visits[places] = visits[c]
        starts = np.append(begins[:, 0], ends[-1, -1])
        tokens, costs = table @ self.lengths, table @ self.classes.costs
        flops = (table * self._class_flops).sum(axis=1)
        return _Window(
            starts=starts,
            rows=all_rows,
            visits=all_visits,
            tokens=tokens,
            costs=costs,
            flops=flops,
            balance=self.config.balance,
        )


def _draw_steps(costs: np.ndarray, num_steps: int, key: int) -> np.ndarray:
    """Places sorted by cost in rows of `num_steps`, each row in a keyed order: column s is what step s gets."""
    ranked = np.argsort(costs, kind="stable").reshape(-1, num_steps)
    draw = keyed_uniform(key, np.arange(ranked.size)).reshape(ranked.shape)
    return np.take_along_axis(ranked, np.argsort(draw, axis=1, kind="stable"), axis=1)


def _remake(index: Plannable, config: PlanConfig, flops: FlopModel, steps_per_era: int) -> Planner:
    return Planner(index, config, flops, steps_per_era=steps_per_era)
