"""Packs as the model takes them: samples end to end, padding only at the pack's end.

Shapes: N samples; L tokens with padding, D = C * pt * ph * pw values a token (of text: tokens and width).

A token is a patch of the latent [C, T, H, W]. Tokens of a sample run over (t, h, w), w fastest; the values of a token
run over (c, pt, ph, pw), pw fastest. So a patch embedding Conv3d with weight [M, C, pt, ph, pw], such as Wan's, is
`tokens_LD @ weight.reshape(M, -1).T + bias`; `unpatchify` is the way back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, kw_only=True, eq=False)
class LatentBlock:
    """Samples of one shape that lie together: [N, C, T, H, W], on any device."""

    latents_NCTHW: torch.Tensor
    grid_THW: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pack:
    """One pack on one device.

    A missing pack, which fills the slot of a rank that sits out, has weight 0, `number` -1 and one sample of one token
    of zeros, so that the model runs as for any other.

    Attributes:
        tokens_LD: the space's dtype; the last `num_padding_tokens` rows are zeros and belong to no sample.
        cu_seqlens: int32 [N + 1]: sample i has tokens [cu_seqlens[i], cu_seqlens[i + 1]); the padding is not in it.
        grid_thw: int32 [N, 3]: tokens of each sample along time, height and width.
        text_LD: embeddings of the samples' captions end to end; no row at all when training without text.
        text_cu_seqlens: int32 [N + 1].
        latent_ids: 16 bytes a sample.
        visits: int64 [N], differs between any two visits of a sample; with the latent id it keys what is drawn.
        rows: int64 [N], rows of the index.
        number: of the pack among those of the step, over all ranks.
        weight: 1, or 0 for a missing pack.
        flops: by the planner's FLOP model.
        num_replaced: samples that stand in for unreadable ones.
        blocks: the latents as stored, by shape; set where the loader was told not to copy.
    """

    tokens_LD: torch.Tensor
    cu_seqlens: torch.Tensor
    grid_thw: torch.Tensor
    text_LD: torch.Tensor
    text_cu_seqlens: torch.Tensor
    latent_ids: list[bytes]
    visits: torch.Tensor
    rows: torch.Tensor
    step: int
    number: int
    weight: float
    num_padding_tokens: int
    flops: float
    num_replaced: int = 0
    blocks: tuple[LatentBlock, ...] = ()

    @property
    def num_samples(self) -> int:
        """Samples, N."""
        return len(self.latent_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens of samples, padding aside."""
        return len(self.tokens_LD) - self.num_padding_tokens

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Pack:
        """The same pack with its tensors on a device."""
        moved: dict[str, Any] = {
            f.name: value.to(device, non_blocking=non_blocking)
            for f in dataclasses.fields(self)
            if isinstance(value := getattr(self, f.name), torch.Tensor)
        }
        return dataclasses.replace(self, **moved)

    def __repr__(self) -> str:
        return (
            f"Pack(step {self.step}, number {self.number}: {self.num_samples} samples, {self.num_tokens} tokens + "
            f"{self.num_padding_tokens} padding, {len(self.text_LD)} of text, weight {self.weight:g})"
        )


def patchify(latents_NCTHW: torch.Tensor, patch: Sequence[int]) -> torch.Tensor:
    """Cut into tokens [N * T/pt * H/ph * W/pw, C * pt * ph * pw]; see the module for the order."""
    N, C, T, H, W = latents_NCTHW.shape
    pt, ph, pw = patch
    view = latents_NCTHW.reshape(N, C, T // pt, pt, H // ph, ph, W // pw, pw)
    return view.permute(0, 2, 4, 6, 1, 3, 5, 7).reshape(-1, C * pt * ph * pw)


def unpatchify(tokens_LD: torch.Tensor, grid_thw: Sequence[int], channels: int, patch: Sequence[int]) -> torch.Tensor:
    """Tokens of one sample back to its latent [C, T, H, W]."""
    t, h, w = (int(size) for size in grid_thw)
    pt, ph, pw = patch
    view = tokens_LD.reshape(t, h, w, channels, pt, ph, pw).permute(3, 0, 4, 1, 5, 2, 6)
    return view.reshape(channels, t * pt, h * ph, w * pw)


def collate(
    blocks: Sequence[LatentBlock], patch: Sequence[int], length: int, cut: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Lay samples end to end.

    Args:
        blocks: samples by shape, at least one, all on one device.
        length: tokens to pad to; 0 does not pad.
        cut: make tokens; else `tokens_LD` is an empty [0, D].
    Returns:
        tokens_LD, cu_seqlens, grid_thw, and the padding's tokens.
    """
    first = blocks[0].latents_NCTHW
    grids = [block.grid_THW for block in blocks for _ in range(len(block.latents_NCTHW))]
    grid_thw = torch.tensor(grids, dtype=torch.int32)
    cu_seqlens = torch.zeros(len(grids) + 1, dtype=torch.int32)
    torch.cumsum(grid_thw.prod(dim=1), 0, dtype=torch.int32, out=cu_seqlens[1:])
    num_tokens = int(cu_seqlens[-1])
    width = first.shape[1] * patch[0] * patch[1] * patch[2]
    if not cut:
        return first.new_empty(0, width), cu_seqlens, grid_thw, 0
    tokens_LD = first.new_empty(max(length, num_tokens), width)
    place = 0
    for block in blocks:
        tokens = patchify(block.latents_NCTHW, patch)
        tokens_LD[place : place + len(tokens)] = tokens
        place += len(tokens)
    tokens_LD[place:] = 0
    return tokens_LD, cu_seqlens.to(first.device), grid_thw.to(first.device), len(tokens_LD) - num_tokens


def missing_pack(
    *, step: int, length: int, width: int, text_dim: int, dtype: str, device: torch.device | str = "cpu"
) -> Pack:
    """A pack of weight 0; its text is one token of zeros, or none when training without text."""
    num_text = 1 if text_dim else 0
    pack = Pack(
        tokens_LD=torch.zeros(max(1, length), width, dtype=DTYPES[dtype]),
        cu_seqlens=torch.tensor([0, 1], dtype=torch.int32),
        grid_thw=torch.ones(1, 3, dtype=torch.int32),
        text_LD=torch.zeros(num_text, text_dim, dtype=torch.bfloat16),
        text_cu_seqlens=torch.tensor([0, num_text], dtype=torch.int32),
        latent_ids=[b"\0" * 16],
        visits=torch.zeros(1, dtype=torch.int64),
        rows=torch.full((1,), -1, dtype=torch.int64),
        step=step,
        number=-1,
        weight=0.0,
        num_padding_tokens=max(1, length) - 1,
        flops=0.0,
    )
    return pack.to(device)
