"""Yield this rank's packs, step by step, read ahead by processes of their own.

The order is the schedule's: a few integers say where it stands, and any world size takes it up from there. A pack lies
in shared memory when it comes; on the CPU it is copied out as it is cut into tokens, on a GPU the bytes go across as
they are, from pinned memory, and are cut there.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch

from schemas.errors import UserError
from trainer.data.collate import DTYPES, LatentBlock, Pack, collate, missing_pack
from trainer.data.index import Index
from trainer.data.plan import Planner
from trainer.data.quarantine import BadRow, Quarantine
from trainer.data.read import Layout, PackFetcher, RawPack, ReadConfig, null_text
from trainer.data.ring import Place, Ring
from trainer.data.schedule import Schedule
from trainer.data.tables import Source
from trainer.data.workers import Died, Filled, Job, Outline, Slot, outline, run_planner, run_reader, spawn_context

log = logging.getLogger(__name__)

SAMPLED_PACKS = 64
"""Packs that are laid out to find the size of the rings."""
PLANNED_AHEAD = 8
"""Steps that are planned beyond those that are read ahead, so that a reader finds its next job waiting."""
GONE_SECONDS = 10.0
"""How long to wait for a process's exit code once its pipe is closed."""


@dataclass(frozen=True, kw_only=True)
class LoaderConfig(ReadConfig):
    """How packs are read ahead.

    Attributes:
        num_readers: reader processes a rank; 0 reads in the training process.
        ahead_steps: steps that are read ahead, at least 1.
        ring_bytes: shared memory of each reader; 0 takes what its packs ahead need.
        max_bad_rows: rows that a rank may find bad before the run stops.
    """

    num_readers: int = 0
    ahead_steps: int = 2
    ring_bytes: int = 0
    max_bad_rows: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("num_readers", 0), ("ahead_steps", 1), ("ring_bytes", 0), ("max_bad_rows", 0)):
            if getattr(self, name) < least:
                raise UserError(f"loader: {name} must be at least {least}, found {getattr(self, name)}")


class PackLoader:
    """Iterates over steps; each yields the list of this rank's packs, equally many on every rank.

    Args:
        index: of the first mix.
        planner: a planner over it, or a schedule of several; the same on every rank.
        rank: data-parallel rank; ranks of one context-parallel group share it.
        world_size: data-parallel ranks, at most the packs of a step.
        start_step: step to begin with.
        config: see there; `num_readers` here takes precedence.
        pad: pad every pack to the token budget, or only to what it holds.
        device: where the packs' tensors lie.
        copy: on the CPU, whether tensors are the caller's to keep. Without it they look at shared memory, are good
            until the next step is asked for, and only `blocks` is set, not `tokens_LD`.
        quarantine: file of bad rows, read at the start and added to; the datasets' own lists are read in any case.
    Attributes:
        wait_seconds: how long the last step waited for its data.
        wait_cause: what it waited for.
        idle_share: share of the last step's slots, over all ranks, that have no pack.
        num_replaced: samples so far on this rank that stand in for bad rows.
    """

    def __init__(
        self,
        index: Index,
        planner: Planner | Schedule,
        *,
        rank: int = 0,
        world_size: int = 1,
        start_step: int = 0,
        config: LoaderConfig | None = None,
        num_readers: int | None = None,
        pad: bool = True,
        device: torch.device | str = "cpu",
        copy: bool = True,
        quarantine: Path | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise UserError(f"loader: rank must be in [0, {world_size}), found {rank}")
        self.schedule = planner if isinstance(planner, Schedule) else Schedule.of(planner)
        self.planner, self.index = self.schedule.phases[0].planner, index
        self.indexes: list[Index] = [phase.planner.index for phase in self.schedule.phases]  # type: ignore[misc]
        _require_alike(self.indexes)
        self.config = config or LoaderConfig()
        self.num_readers = self.config.num_readers if num_readers is None else num_readers
        self.rank, self.world_size, self.step = rank, world_size, start_step
        self.device, self.copy, self.pad = torch.device(device), copy, pad
        datasets = {d.path: d for made in self.indexes for d in made.config.datasets}.values()
        sources = [Source(root=d.path, storage_options=d.storage_options) for d in datasets]
        self.quarantine = Quarantine(quarantine, self.config.max_bad_rows, sources)
        self.wait_seconds, self.wait_cause, self.idle_share, self.num_replaced = 0.0, "", 0.0, 0
        self._source: _InProcess | _Processes | None = None
        for phase in self.schedule.phases:
            phase.planner.check_world_size(world_size)

    def __iter__(self) -> Iterator[list[Pack]]:
        return self

    def __next__(self) -> list[Pack]:
        clock = _Clock()
        if self._source is None:
            self._source = _Processes(self) if self.num_readers else _InProcess(self)
        source = self._source
        source.release()
        plan = source.next_outline()
        clock.stop("planner")
        packs = []
        for slot in plan.slots:
            if slot.sequence is None:
                packs.append(self._missing(plan))
                continue
            raw, bad = source.take(slot.sequence)
            clock.stop("readers")
            self._count_bad(bad)
            packs.append(self._pack(plan, slot, raw))
            source.done_with(slot.sequence, copied=self.copy)
            clock.stop("collating")
        self.step += 1
        self.idle_share = plan.idle_share
        self.wait_seconds = clock.total
        self.wait_cause = source.describe(clock.longest)
        return packs

    def _count_bad(self, bad: Sequence[BadRow]) -> None:
        for row in bad:
            if self.quarantine.add(row):
                log.warning("bad row, replaced by another: %s", row)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands: the next step, and what must be the same when it is taken up."""
        steps = [phase.planner.steps_per_era for phase in self.schedule.phases]
        return {
            "step": self.step,
            "steps_per_era": steps[0] if len(steps) == 1 else steps,
            "plan": self.schedule.fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at a saved place, at any world size.

        Raises:
            UserError: the plan or the index is not the one that the state was saved with.
        """
        if state["plan"] != self.schedule.fingerprint:
            raise UserError(
                f"loader: the saved state belongs to plan {state['plan']}, this is {self.schedule.fingerprint}: the "
                "data, filter, budget or seed changed; restore them, or start the stream anew without its state"
            )
        self.close()
        self.step = int(state["step"])

    def close(self) -> None:
        """Stop the processes; the next step starts them anew."""
        source, self._source = getattr(self, "_source", None), None
        if source is not None:
            source.close()

    def __enter__(self) -> PackLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    @property
    def width(self) -> int:
        """Values of a token, C * pt * ph * pw."""
        return self.index.space.channels * int(np.prod(self.index.config.patch))

    def null_text(self) -> torch.Tensor:
        """Embedding [L, D] of the empty text, for dropped captions: from the table, else one token of zeros."""
        words = null_text(self.index)
        if words is None:
            return torch.zeros(1 if self.index.text_dim else 0, self.index.text_dim, dtype=torch.bfloat16)
        return torch.from_numpy(words.copy()).view(DTYPES[self.index.texts[0].dtype])

    def _length(self, phase: int) -> int:
        return self.schedule.phases[phase].planner.config.token_budget if self.pad else 0

    def _missing(self, plan: Outline) -> Pack:
        return missing_pack(
            step=plan.step,
            length=self._length(plan.phase),
            width=self.width,
            text_dim=self.index.text_dim,
            dtype=self.index.space.dtype,
            device=self.device,
        )

    def _pack(self, plan: Outline, slot: Slot, raw: RawPack) -> Pack:
        index, layout = self.indexes[plan.phase], raw.layout
        blocks = _blocks(index, layout, self._moved(raw.latents, index.space.dtype))
        cut = self.copy or self.device.type != "cpu"
        tokens_LD, cu_seqlens, grid_thw, padding = collate(blocks, index.config.patch, self._length(plan.phase), cut)
        dim, dtype = index.text_dim, index.texts[0].dtype if index.texts else "bfloat16"
        text = (
            self._moved(raw.texts, dtype).view(-1, dim)
            if layout.text_bytes
            else torch.zeros(0, dim, dtype=DTYPES[dtype])
        )
        return Pack(
            tokens_LD=tokens_LD,
            cu_seqlens=cu_seqlens,
            grid_thw=grid_thw,
            text_LD=text.clone() if self.copy and self.device.type == "cpu" else text.to(self.device),
            text_cu_seqlens=torch.from_numpy(np.cumsum([0, *layout.text_tokens]).astype(np.int32)).to(self.device),
            latent_ids=raw.latent_ids,
            visits=torch.from_numpy(layout.visits.copy()),
            rows=torch.from_numpy(layout.rows.copy()),
            blocks=() if self.copy else tuple(blocks),
            step=plan.step,
            number=slot.number,
            weight=1.0,
            num_padding_tokens=padding,
            flops=slot.flops,
            num_replaced=layout.num_replaced,
        )

    def _moved(self, data: memoryview, dtype: str) -> torch.Tensor:
        """Bytes as a flat tensor: a view on the CPU, sent to another device as they are."""
        if not len(data):
            return torch.zeros(0, dtype=DTYPES[dtype])
        flat = torch.frombuffer(data, dtype=DTYPES[dtype])
        return flat if self.device.type == "cpu" else flat.to(self.device, non_blocking=True)


def _blocks(index: Index, layout: Layout, latents: torch.Tensor) -> list[LatentBlock]:
    """The latents of a pack, samples of one shape together."""
    numbers = index.stream_of(layout.rows)
    blocks, place = [], 0
    for run in np.split(numbers, np.flatnonzero(np.diff(numbers)) + 1):
        stream = index.streams[int(run[0])]
        size = len(run) * stream.latent_bytes // latents.element_size()
        stored = latents[place : place + size].view(len(run), -1, *stream.shape_CTHW[1:])
        # a log-variance, where there is one, follows the mean
        blocks.append(LatentBlock(latents_NCTHW=stored[:, : index.space.channels], grid_THW=stream.grid_THW))
        place += size
    return blocks


def _require_alike(indexes: Sequence[Index]) -> None:
    """Mixes of one run share a latent space and a width of text."""
    for index in indexes[1:]:
        indexes[0].space.require(index.space, "a later phase")
        if index.text_dim != indexes[0].text_dim:
            raise UserError(
                f"schedule: a later phase has text embeddings of width {index.text_dim}, the first of "
                f"{indexes[0].text_dim}; use one text encoder in all phases"
            )


class _Clock:
    """Where the time of a step's wait went."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.parts: dict[str, float] = {}

    def stop(self, part: str) -> None:
        now = time.perf_counter()
        self.parts[part] = self.parts.get(part, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def longest(self) -> str:
        return max(self.parts, key=lambda part: self.parts[part])


class _InProcess:
    """Plans and reads in the training process, when asked."""

    def __init__(self, loader: PackLoader) -> None:
        self._loader = loader
        self._step, self._sequence = loader.step, 0
        self._jobs: dict[int, Job] = {}
        self._fetchers = [
            PackFetcher(index, _seed(loader), loader.config, *loader.quarantine.rows(index)) for index in loader.indexes
        ]

    def next_outline(self) -> Outline:
        loader = self._loader
        made, jobs = outline(loader.schedule, self._step, loader.rank, loader.world_size, self._sequence)
        self._jobs = {job.sequence: job for job in jobs}
        self._step, self._sequence = self._step + 1, self._sequence + len(jobs)
        return made

    def take(self, sequence: int) -> tuple[RawPack, Sequence[BadRow]]:
        job = self._jobs[sequence]
        fetcher, found = self._fetchers[job.phase], []
        while True:
            layout = fetcher.lay_out(job.rows, job.visits)
            buffer = memoryview(np.empty(layout.size_bytes, np.uint8).data)
            bad = fetcher.fetch(layout, buffer)
            found += bad
            if not bad:
                return RawPack.parse(buffer), found

    def done_with(self, sequence: int, copied: bool) -> None: ...

    def release(self) -> None: ...

    def describe(self, part: str) -> str:
        return f"{part} in the training process; raise loader.num_readers"

    def close(self) -> None:
        for fetcher in self._fetchers:
            fetcher.close()


class _Processes:
    """A planner and readers in processes of their own, kept a bounded number of steps ahead."""

    def __init__(self, loader: PackLoader) -> None:
        context = spawn_context()
        self._loader = loader
        count, config = loader.num_readers, loader.config
        slots = -(-max(p.planner.config.packs_per_step for p in loader.schedule.phases) // loader.world_size)
        depth = -(-config.ahead_steps * slots // count) + 1
        self._rings = [Ring(config.ring_bytes or _ring_bytes(loader, depth)) for _ in range(count)]
        self._ahead = context.Semaphore(config.ahead_steps + PLANNED_AHEAD)
        known = [loader.quarantine.rows(index) for index in loader.indexes]
        jobs = [context.Pipe(duplex=False) for _ in range(count)]
        answers = [context.Pipe(duplex=False) for _ in range(count + 1)]
        self._outlines: Connection = answers[count][0]
        self._answers: list[Connection] = [receiver for receiver, _ in answers[:count]]
        self._processes = []
        for i in range(count):
            arguments = (loader.indexes, _seed(loader), config, known, self._rings[i], depth, jobs[i][0], answers[i][1])
            self._processes.append(context.Process(target=run_reader, args=arguments, daemon=True, name=f"reader-{i}"))
        senders = [sender for _, sender in jobs]
        place = (loader.schedule, loader.step, loader.rank, loader.world_size)
        ends = (self._ahead, senders, answers[-1][1])
        self._processes.append(context.Process(target=run_planner, args=(*place, *ends), daemon=True, name="planner"))
        for process in self._processes:
            process.start()
        for ours in [*(c for pair in jobs for c in pair), *(sender for _, sender in answers)]:
            ours.close()
        self._filled: dict[int, Filled] = {}
        self._in_use: list[tuple[Ring, Place, Any]] = []
        self._seconds: list[float] = []
        if loader.device.type == "cuda":
            for ring in self._rings:
                _pin(ring)

    def next_outline(self) -> Outline:
        made = self._receive(self._outlines)
        self._ahead.release()
        return made

    def take(self, sequence: int) -> tuple[RawPack, Sequence[BadRow]]:
        reader = sequence % len(self._rings)
        filled: Filled = self._receive(self._answers[reader])
        assert filled.sequence == sequence
        self._filled[sequence] = filled
        self._seconds = [*self._seconds[-63:], filled.seconds]
        return RawPack.parse(self._rings[reader].view(filled.place)), filled.bad

    def _receive(self, source: Connection) -> Any:
        """The next message of one process; raises what stopped it, or any other process."""
        while not source.poll():
            wait([source, *(process.sentinel for process in self._processes)])
            if not source.poll():
                self._raise_dead()
        try:
            message = source.recv()
        except EOFError:
            self._raise_dead()
            raise RuntimeError("loader: a process of it ended without a word") from None
        if isinstance(message, Died):
            raise (UserError if message.user else RuntimeError)(message.text)
        return message

    def _raise_dead(self) -> None:
        for connection in [*self._answers, self._outlines]:
            with contextlib.suppress(EOFError):
                while connection.poll():
                    if isinstance(message := connection.recv(), Died):
                        raise (UserError if message.user else RuntimeError)(message.text)
        wait([process.sentinel for process in self._processes], timeout=GONE_SECONDS)
        for process in self._processes:
            if process.exitcode is not None:
                raise RuntimeError(f"loader: process {process.name} ended with exit code {process.exitcode}")

    def done_with(self, sequence: int, copied: bool) -> None:
        """The pack's bytes are copied, or will be once the device has come so far, or are looked at until release."""
        filled = self._filled.pop(sequence)
        ring = self._rings[sequence % len(self._rings)]
        if self._loader.device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
            self._in_use.append((ring, filled.place, event))
        elif copied:
            ring.give_back(filled.place)
        else:
            self._in_use.append((ring, filled.place, None))

    def release(self) -> None:
        for ring, place, event in self._in_use:
            if event is not None:
                event.synchronize()
            ring.give_back(place)
        self._in_use = []

    def describe(self, part: str) -> str:
        if part != "readers" or not self._seconds:
            return part
        mean = sum(self._seconds) / len(self._seconds)
        return f"{len(self._rings)} readers, {mean:.2f} s a pack; raise loader.num_readers or ahead_steps"

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        for connection in [*self._answers, self._outlines]:
            connection.close()
        for ring in self._rings:
            ring.close()


def _seed(loader: PackLoader) -> int:
    return loader.planner.config.seed


def _ring_bytes(loader: PackLoader, depth: int) -> int:
    """Room for `depth` packs and one more, each a quarter larger than the largest of the first."""
    largest = 0
    for number, phase in enumerate(loader.schedule.phases):
        fetcher = PackFetcher(loader.indexes[number], _seed(loader), ReadConfig())
        packs = [pack for step in range(4) for pack in phase.planner.step(step)]
        for pack in packs[:: max(1, len(packs) // SAMPLED_PACKS)]:
            largest = max(largest, fetcher.lay_out(pack.rows, pack.visits).size_bytes)
    return (depth + 1) * (largest + largest // 4)


def _pin(ring: Ring) -> None:
    """Lock a ring's pages for direct copies to the GPU; without that copies still work, slower."""
    memory = ring.memory
    code = int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))
    if code:
        log.warning(
            "loader: %d bytes cannot be pinned (CUDA error %d); copies to the GPU are slower", memory.nbytes, code
        )
