"""Packs without a dataset: samples named by number, laid out as a test wants. For fixture `packs` and for workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from trainer.data.collate import LatentBlock, Pack, collate, missing_pack

CHANNELS, PATCH, TEXT_DIM = 4, (1, 2, 2), 24
SHAPES = [(1, 4, 4), (2, 4, 6), (3, 4, 4), (1, 8, 6)]


def latent(number: int) -> torch.Tensor:
    """[C, T, H, W] of sample `number`: a smooth field plus noise, so that there is something to learn."""
    g = torch.Generator().manual_seed(number)
    t, h, w = SHAPES[number % len(SHAPES)]
    grid = torch.linspace(0, 3, t)[:, None, None] + torch.linspace(0, 3, h)[:, None] + torch.linspace(0, 2, w)
    phase = torch.arange(CHANNELS)[:, None, None, None] + number % 3
    return torch.sin(grid + phase) * 1.3 + 0.1 * torch.randn(CHANNELS, t, h, w, generator=g)


def text(number: int) -> torch.Tensor:
    """[L, E] of its caption."""
    g = torch.Generator().manual_seed(1000 + number)
    return torch.randn(1 + number % 5, TEXT_DIM, generator=g).bfloat16()


def name(number: int) -> bytes:
    """Its latent id."""
    return number.to_bytes(16, "little")


def make(numbers: Sequence[int], *, length: int = 0, visit: int = 0, step: int = 0) -> Pack:
    """A pack of those samples in that order, padded to `length` tokens."""
    blocks = []
    for number in numbers:
        shape = SHAPES[number % len(SHAPES)]
        grid = tuple(n // p for n, p in zip(shape, PATCH))
        blocks.append(LatentBlock(latents_NCTHW=latent(number)[None], grid_THW=grid))
    tokens_LD, cu_seqlens, grid_thw, padding = collate(blocks, PATCH, length)
    texts = [text(number) for number in numbers]
    bounds = torch.tensor([0, *(len(t) for t in texts)]).cumsum(0).int()
    n = len(numbers)
    return Pack(
        tokens_LD=tokens_LD, cu_seqlens=cu_seqlens, grid_thw=grid_thw, text_LD=torch.cat(texts), text_cu_seqlens=bounds,
        latent_ids=[name(i) for i in numbers], visits=torch.full((n,), visit), rows=torch.tensor(numbers), step=step,
        number=0, weight=1.0, num_padding_tokens=padding, flops=1.0,
    )  # fmt: skip


def missing(length: int = 0) -> Pack:
    """A pack that stands in for none."""
    return missing_pack(step=0, length=length, width=CHANNELS * 4, text_dim=TEXT_DIM, dtype="float32")


class Source:
    """Endless steps of packs, dealt to ranks; `layout(step)` gives the packs' sample numbers over all ranks."""

    def __init__(self, layout, rank: int = 0, size: int = 1, length: int = 0) -> None:
        self.layout, self.rank, self.size, self.length = layout, rank, size, length
        self.step = 0

    def __iter__(self) -> Iterator[list[Pack]]:
        return self

    def __next__(self) -> list[Pack]:
        lists = self.layout(self.step)
        slots = -(-len(lists) // self.size)
        mine = [lists[i] if i < len(lists) else None for i in range(self.rank, slots * self.size, self.size)]
        visit, self.step = self.step, self.step + 1
        return [missing(self.length) if n is None else make(n, length=self.length, visit=visit) for n in mine]

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]
