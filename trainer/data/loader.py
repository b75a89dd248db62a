"""Yield this rank's packs, step by step, and the held-out packs.

The order is the planner's: a few integers say where it stands, and any world size takes it up from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from schemas.errors import UserError
from trainer.data.collate import _DTYPES, LatentBlock, Pack, collate, missing_pack
from trainer.data.deal import MISSING
from trainer.data.index import Index
from trainer.data.packing import FlopModel
from trainer.data.permutation import Permutation
from trainer.data.plan import PackPlan, Planner
from trainer.data.read import RowReader, choose_texts, null_text


class PackLoader:
    """Iterates over steps; each yields the list of this rank's packs, equally many on every rank.

    Args:
        index: what the planner plans over.
        planner: same on every rank.
        rank: data-parallel rank; ranks of one context-parallel group share it.
        world_size: data-parallel ranks, at most the packs of a step.
        start_step: step to begin with.
        num_readers: reader processes; 0 reads in this process.
        pad: pad every pack to the token budget, or only to what it holds.
        device: where the packs' tensors lie.
    Attributes:
        wait_seconds: how long the last step waited for its data.
    """

    def __init__(
        self,
        index: Index,
        planner: Planner,
        *,
        rank: int = 0,
        world_size: int = 1,
        start_step: int = 0,
        num_readers: int = 0,
        pad: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        if not 0 <= rank < world_size:
            raise UserError(f"loader: rank must be in [0, {world_size}), found {rank}")
        self.index, self.planner = index, planner
        self.rank, self.world_size = rank, world_size
        self.step = start_step
        self.wait_seconds = 0.0
        self._packs = PackReader(
            index, seed=planner.config.seed, length=planner.config.token_budget if pad else 0, device=device
        )
        planner.step(start_step).deal(world_size)  # refuses a world size that does not fit, before anything runs

    def __iter__(self) -> Iterator[list[Pack]]:
        return self

    def __next__(self) -> list[Pack]:
        start = time.perf_counter()
        plan = self.planner.step(self.step)
        mine = plan.deal(self.world_size)[self.rank]
        packs = [self._packs.missing(self.step) if n == MISSING else self._packs.read(plan[int(n)]) for n in mine]
        self.step += 1
        self.wait_seconds = time.perf_counter() - start
        return packs

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands: the next step, and what must be the same when it is taken up."""
        return {"step": self.step, "steps_per_era": self.planner.steps_per_era, "plan": self.planner.fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at a saved place, at any world size.

        Raises:
            UserError: the plan or the index is not the one that the state was saved with.
        """
        if state["plan"] != self.planner.fingerprint:
            raise UserError(
                f"loader: the saved state belongs to plan {state['plan']}, this is {self.planner.fingerprint}: the "
                "data, filter, budget or seed changed; restore them, or start the stream anew without its state"
            )
        self.step = int(state["step"])

    def close(self) -> None:
        """Stop reader processes."""

    def __enter__(self) -> PackLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def null_text(self) -> torch.Tensor:
        """Embedding [L, E] of the empty text, for dropped captions: from the table, else one token of zeros."""
        words = null_text(self.index)
        if words is None:
            return torch.zeros(1 if self.index.text_dim else 0, self.index.text_dim, dtype=torch.bfloat16)
        return torch.from_numpy(words.copy()).view(_DTYPES[self.index.texts[0].dtype])


class PackReader:
    """Reads planned packs and lays them out as tensors.

    Args:
        seed: of the choice of captions.
        length: tokens to pad packs to; 0 does not pad.
    """

    def __init__(self, index: Index, *, seed: int, length: int, device: torch.device | str = "cpu") -> None:
        self.index, self.seed, self.length, self.device = index, seed, length, device
        self._reader = RowReader(index)

    @property
    def width(self) -> int:
        """Values of a token, C * pt * ph * pw."""
        return self.index.space.channels * int(np.prod(self.index.config.patch))

    def missing(self, step: int) -> Pack:
        """The pack of weight 0 for a rank that sits out."""
        return missing_pack(
            step=step,
            length=self.length,
            width=self.width,
            text_dim=self.index.text_dim,
            dtype=self.index.space.dtype,
            device=self.device,
        )

    def read(self, plan: PackPlan) -> Pack:
        """Read one pack."""
        index, space = self.index, self.index.space
        blocks = []
        numbers = index.stream_of(plan.rows)
        for run in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(numbers)) + 1):
            stream = index.streams[int(numbers[run[0]])]
            data = b"".join(self._reader.latents(stream, plan.rows[run]))
            stored = torch.frombuffer(bytearray(data), dtype=_DTYPES[space.dtype])
            latents = stored.view(len(run), -1, *stream.shape_CTHW[1:])[:, : space.channels]
            blocks.append(LatentBlock(latents_NCTHW=latents, grid_THW=stream.grid_THW))
        tokens_LD, cu_seqlens, grid_thw, padding = collate(blocks, index.config.patch, self.length)
        text_LD, text_cu_seqlens = self._texts(plan)
        pack = Pack(
            tokens_LD=tokens_LD,
            cu_seqlens=cu_seqlens,
            grid_thw=grid_thw,
            text_LD=text_LD,
            text_cu_seqlens=text_cu_seqlens,
            latent_ids=[bytes(i) for i in index.latent_ids[plan.rows]],
            visits=torch.from_numpy(plan.visits.copy()),
            rows=torch.from_numpy(plan.rows.copy()),
            step=plan.step,
            number=plan.number,
            weight=1.0,
            num_padding_tokens=padding,
            flops=plan.flops,
        )
        return pack if str(self.device) == "cpu" else pack.to(self.device)

    def _texts(self, plan: PackPlan) -> tuple[torch.Tensor, torch.Tensor]:
        index, n = self.index, len(plan.rows)
        if not index.texts:
            return torch.zeros(0, 0, dtype=torch.bfloat16), torch.zeros(n + 1, dtype=torch.int32)
        dim, dtype = index.text_dim, _DTYPES[index.texts[0].dtype]
        row_bytes = dim * dtype.itemsize
        limit = row_bytes * index.config.max_text_tokens or None
        chosen = choose_texts(index, plan.rows, plan.visits, self.seed)
        parts = [data[:limit] for data in self._reader.texts(chosen)]
        text_LD = torch.frombuffer(bytearray(b"".join(parts)), dtype=dtype).view(-1, dim)
        ends = np.cumsum([0, *(len(p) // row_bytes for p in parts)])
        return text_LD, torch.from_numpy(ends.astype(np.int32))


def heldout_packs(
    index: Index,
    *,
    token_budget: int,
    flops: FlopModel,
    rank: int = 0,
    world_size: int = 1,
    max_samples: int = 0,
    seed: int = 0,
    pad: bool = True,
    device: torch.device | str = "cpu",
) -> Iterator[Pack]:
    """Packs over an index of split `heldout`, the same rows, captions and order at every call.

    Every rank gets equally many; weight 0 fills up. Samples longer than the budget are left out.

    Args:
        max_samples: read so many rows at most, drawn by `seed`; 0 reads all.
    """
    rows = Permutation(len(index), seed).forward(np.arange(len(index)))
    lengths = np.array([s.num_tokens for s in index.streams])[index.stream_of(rows)]
    rows, lengths = rows[lengths <= token_budget], lengths[lengths <= token_budget]
    rows, lengths = rows[: max_samples or None], lengths[: max_samples or None]
    reader = PackReader(index, seed=seed, length=token_budget if pad else 0, device=device)
    plans = _in_order(rows, lengths, token_budget, flops)
    for first in range(0, len(plans), world_size):
        number = first + rank
        yield reader.read(plans[number]) if number < len(plans) else reader.missing(0)


def _in_order(rows: np.ndarray, lengths: np.ndarray, token_budget: int, flops: FlopModel) -> list[PackPlan]:
    """Fill one pack after another, in order; a pack is closed by the first sample that does not fit."""
    ends, total = [], 0
    for i, length in enumerate(lengths):
        if total + length > token_budget:
            ends.append(i)
            total = 0
        total += int(length)
    plans = []
    for number, part in enumerate(np.split(np.arange(len(rows)), ends)):
        if len(part):
            part = part[np.argsort(rows[part], kind="stable")]  # samples of one shape lie together
            plans.append(
                PackPlan(
                    step=0,
                    number=number,
                    rows=rows[part],
                    visits=np.zeros(len(part), np.int64),
                    num_tokens=int(lengths[part].sum()),
                    flops=float(flops.flops(lengths[part]).sum()),
                    cost=0,
                )
            )
    return plans
