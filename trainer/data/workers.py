"""The processes behind a loader: one plans, the others read. All are spawned, since forked readers break Lance.

The planner sends each step's packs of this rank to the readers, pack q to reader q % R, and the step's outline to the
training process; a semaphore keeps it a bounded number of steps ahead. A reader fetches packs in order into its ring
and sends their places. Payload never passes through a pipe: that costs ten times the read. Readers do nothing else: a
busy Python thread beside one slows it up to four times.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Semaphore
from typing import Any

import numpy as np

from schemas.errors import UserError
from trainer.data.index import Index
from trainer.data.quarantine import BadRow
from trainer.data.read import Layout, PackFetcher, ReadConfig
from trainer.data.ring import Place, Ring
from trainer.data.schedule import Schedule

POLL_SECONDS = 0.5
RING_POLL_SECONDS = 0.001
REMOTE_THREADS = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A pack to read: the `sequence`-th of this rank."""

    sequence: int
    phase: int
    rows: np.ndarray
    visits: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A pack of a step's outline; `sequence` is None for a missing one."""

    sequence: int | None
    number: int
    flops: float


@dataclass(frozen=True, kw_only=True)
class Outline:
    """What a rank gets in a step."""

    step: int
    phase: int
    slots: tuple[Slot, ...]
    idle_share: float
    plan_seconds: float


@dataclass(frozen=True, kw_only=True)
class Filled:
    """A pack that lies in the ring."""

    sequence: int
    place: Place
    bad: tuple[BadRow, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Died:
    """What stopped a process; `user` where it speaks to users."""

    text: str
    user: bool


def outline(schedule: Schedule, step: int, rank: int, world_size: int, sequence: int) -> tuple[Outline, list[Job]]:
    """A rank's share of a step, its packs numbered from `sequence` on."""
    started = time.perf_counter()
    phase, plan = schedule.step(step)
    slots: list[Slot] = []
    jobs: list[Job] = []
    dealt = plan.deal(world_size)
    for number in dealt[rank].tolist():
        if number < 0:
            slots.append(Slot(sequence=None, number=-1, flops=0.0))
            continue
        pack = plan[number]
        slots.append(Slot(sequence=sequence + len(jobs), number=number, flops=pack.flops))
        jobs.append(Job(sequence=sequence + len(jobs), phase=phase, rows=pack.rows, visits=pack.visits))
    made = Outline(
        step=step,
        phase=phase,
        slots=tuple(slots),
        idle_share=1 - len(plan) / dealt.size,
        plan_seconds=time.perf_counter() - started,
    )
    return made, jobs


def run_planner(
    schedule: Schedule,
    start_step: int,
    rank: int,
    world_size: int,
    ahead: Semaphore,
    readers: Sequence[Connection],
    trainer: Connection,
) -> None:
    """Send steps from `start_step` on, until the training process is gone."""
    parent = os.getppid()
    step, sequence = start_step, 0
    try:
        while os.getppid() == parent:
            if not ahead.acquire(timeout=POLL_SECONDS):
                continue
            made, jobs = outline(schedule, step, rank, world_size, sequence)
            trainer.send(made)
            for job in jobs:
                readers[job.sequence % len(readers)].send(job)
            step, sequence = step + 1, sequence + len(jobs)
    except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return
    except BaseException as error:
        _report(trainer, error)


def run_reader(
    indexes: Sequence[Index],
    seed: int,
    config: ReadConfig,
    bad: Sequence[tuple[np.ndarray, np.ndarray]],
    ring: Ring,
    depth: int,
    jobs: Connection,
    trainer: Connection,
) -> None:
    """Fetch packs into the ring, at most `depth` of them ahead, until the training process is gone."""
    logging.basicConfig(level=logging.WARNING)
    try:
        reader = _Reader(indexes, seed, config, bad, ring, depth, trainer)
        while reader.wait_for(jobs):
            reader.start(jobs.recv())
            reader.hand_on()
    except (BrokenPipeError, ConnectionResetError, EOFError, KeyboardInterrupt):
        return
    except BaseException as error:
        _report(trainer, error)


def _report(trainer: Connection, error: BaseException) -> None:
    user = isinstance(error, UserError)
    with contextlib.suppress(OSError):
        trainer.send(Died(text=str(error) if user else traceback.format_exc(), user=user))


class _Reader:
    """Fetches in order; for object stores several packs at once, in threads, since there waiting is all they do."""

    def __init__(
        self,
        indexes: Sequence[Index],
        seed: int,
        config: ReadConfig,
        bad: Sequence[tuple[np.ndarray, np.ndarray]],
        ring: Ring,
        depth: int,
        trainer: Connection,
    ) -> None:
        self.fetchers = [PackFetcher(i, seed, config, *known) for i, known in zip(indexes, bad)]
        self.ring, self.depth, self.trainer = ring, depth, trainer
        self.parent = os.getppid()
        self.threads: ThreadPoolExecutor | None = None
        if not all(fetcher.is_local for fetcher in self.fetchers):
            self.threads = ThreadPoolExecutor(min(REMOTE_THREADS, depth))
        self.running: list[_Running] = []

    def wait_for(self, jobs: Connection) -> bool:
        """Wait for a job, handing on what is done; False when the training process is gone."""
        while not jobs.poll(0.002 if self.running else POLL_SECONDS):
            self.hand_on()
            if os.getppid() != self.parent:
                return False
        return True

    def start(self, job: Job) -> None:
        """Take a place and begin to fetch."""
        started = time.perf_counter()
        fetcher = self.fetchers[job.phase]
        layout = fetcher.lay_out(job.rows, job.visits)
        place = self._take(layout.size_bytes)
        future = self.threads.submit(fetcher.fetch, layout, self.ring.view(place)) if self.threads else None
        self.running.append(_Running(job, layout, place, future, started))

    def hand_on(self) -> None:
        """Send packs that are whole, in order."""
        while self.running and self.running[0].is_done:
            run = self.running.pop(0)
            fetcher = self.fetchers[run.job.phase]
            place = run.place
            bad = run.future.result() if run.future else fetcher.fetch(run.layout, self.ring.view(place))
            found, postponed = tuple(bad), []
            while bad:  # once more from the start, without the rows that turned out bad
                self.ring.give_back(place)
                layout = fetcher.lay_out(run.job.rows, run.job.visits)
                postponed += self._make_way()
                place = self._take(layout.size_bytes)
                bad = fetcher.fetch(layout, self.ring.view(place))
                found += tuple(bad)
            seconds = time.perf_counter() - run.started
            self.trainer.send(Filled(sequence=run.job.sequence, place=place, bad=found, seconds=seconds))
            for job in postponed:
                self.start(job)

    def _make_way(self) -> list[Job]:
        """Give up later packs: the trainer waits for the one at hand, and they may hold the place that it needs."""
        later, self.running = self.running, []
        for run in later:
            if run.future:
                run.future.result()
            self.ring.give_back(run.place)
        return [run.job for run in later]

    def _take(self, size_bytes: int) -> Place:
        """A place, as soon as there is one and fewer than `depth` are taken."""
        if size_bytes > self.ring.size_bytes:
            raise UserError(
                f"loader: a pack of {size_bytes:,} bytes does not fit ring_bytes = {self.ring.size_bytes:,}; "
                f"raise loader.ring_bytes to {3 * size_bytes:,} or more"
            )
        while self.ring.num_taken >= self.depth or (place := self.ring.take(size_bytes)) is None:
            self.hand_on()
            time.sleep(RING_POLL_SECONDS)
            if os.getppid() != self.parent:
                raise EOFError
        return place


@dataclass(frozen=True)
class _Running:
    """A pack that is being fetched; without a future it is fetched when it is handed on."""

    job: Job
    layout: Layout
    place: Place
    future: Future[list[BadRow]] | None
    started: float

    @property
    def is_done(self) -> bool:
        return self.future is None or self.future.done()


def spawn_context() -> Any:
    """Where processes of the loader come from."""
    import multiprocessing

    return multiprocessing.get_context("spawn")
