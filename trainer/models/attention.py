"""Attention over packed segments, one function over several back ends.

Legend: L query tokens of a pack, M key tokens, H heads, D head dimension, N segments.

Query segment n attends to all of key segment n and to nothing else (no causal mask), as a video DiT's self and cross
attention do. Back ends:

- `sdpa`: torch's scaled_dot_product_attention a segment; runs anywhere, in float32 too. The reference of the others.
- `varlen`: torch.nn.attention.varlen (FlashAttention in torch itself); CUDA, 16-bit.
- `flex`: FlexAttention with a block mask over segment ids; CUDA (on a CPU torch has its forward pass only).
- `flash4`: flash-attn-4's CuTe kernels, the fastest measured on an H200; CUDA of capability 9 or 10, 16-bit.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch.nn import functional as F

from schemas.errors import UserError

BackendName = Literal["auto", "sdpa", "varlen", "flex", "flash4"]


class Segments:
    """Where the segments of a packed sequence begin and end.

    Attributes:
        lengths: tokens of each segment, on the host, so that nothing asks the device for them.
        cu: int32 [N + 1] on the device: 0 and the running sums of `lengths`.
        ids: int64 [L] on the device: the segment of each token.
        runs: (first segment, number of segments, length) of neighbours of equal length.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.lengths = tuple(int(n) for n in lengths)
        self.total = sum(self.lengths)
        self.max_length = max(self.lengths, default=0)
        self.cu = torch.tensor([0, *itertools.accumulate(self.lengths)], dtype=torch.int32, device=device)
        counts = torch.tensor(self.lengths, dtype=torch.int64, device=device)
        numbers = torch.arange(len(self.lengths), device=device)
        self.ids = torch.repeat_interleave(numbers, counts, output_size=self.total)
        self.runs = _runs(self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        return f"Segments(n={len(self)}, total={self.total}, max={self.max_length}, device={self.cu.device})"

    def broadcast(self, values_NX: torch.Tensor) -> torch.Tensor:
        """Give each token its segment's row: [N, ...] -> [L, ...].

        On the CPU rows are expanded run by run, since the gradient is then a plain sum; an index's gradient is a
        scatter, several times slower there.
        """
        if values_NX.device.type != "cpu":
            return values_NX.index_select(0, self.ids)
        rest = values_NX.shape[1:]
        parts = [
            values_NX[first : first + n].unsqueeze(1).expand(n, length, *rest).reshape(n * length, *rest)
            for first, n, length in self.runs
        ]
        return torch.cat(parts) if parts else values_NX[:0]

    def mean(self, values_L: torch.Tensor) -> torch.Tensor:
        """Mean of a value a token over each segment: [L] -> [N]; 0 for an empty segment."""
        counts = (self.cu[1:] - self.cu[:-1]).clamp(min=1)
        sums = values_L.new_zeros(len(self)).index_add(0, self.ids, values_L)
        return sums / counts


def _runs(lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    runs, first = [], 0
    for length, group in itertools.groupby(lengths):
        n = len(list(group))
        runs.append((first, n, length))
        first += n
    return runs


def attention(
    q_LHD: torch.Tensor,
    k_MHD: torch.Tensor,
    v_MHD: torch.Tensor,
    q_segments: Segments,
    k_segments: Segments,
    backend: str = "auto",
) -> torch.Tensor:
    """Attend within segments; a query whose key segment is empty gets zeros.

    Args:
        q_segments, k_segments: equally many segments; they cover q and k whole.
        backend: a name of `BackendName`; `auto` chooses by device, dtype and what is installed.
    Returns:
        [L, H, D] in q's dtype.
    """
    if len(q_segments) != len(k_segments):
        raise ValueError(f"attention: {len(q_segments)} query segments but {len(k_segments)} key segments")
    if backend == "auto":
        backend = resolve("auto", q_LHD.device, q_LHD.dtype)
    return _BACKENDS[backend](q_LHD, k_MHD, v_MHD, q_segments, k_segments)


def resolve(backend: str, device: torch.device, dtype: torch.dtype) -> str:
    """Choose a back end, or check that the one asked for can run.

    Raises:
        UserError: an unknown name, or a back end that this device, dtype or installation cannot run.
    """
    if backend not in get_args(BackendName):
        raise UserError(f"attention backend {backend!r}: expected one of {', '.join(get_args(BackendName))}")
    flash_ok = device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)
    flash4_ok = flash_ok and torch.cuda.get_device_capability(device)[0] in (9, 10) and _has_flash4()
    if backend == "auto":
        return "flash4" if flash4_ok else "varlen" if flash_ok else "sdpa"
    if backend == "flex" and device.type != "cuda":
        raise UserError("attention backend 'flex' has no gradient on a CPU; use 'auto'")
    if backend == "varlen" and not flash_ok:
        raise UserError(f"attention backend 'varlen' needs CUDA and 16-bit, found {device.type} {dtype}; use 'auto'")
    if backend == "flash4" and not flash4_ok:
        raise UserError(
            "attention backend 'flash4' needs flash-attn-4 and a CUDA device of capability 9 or 10 in 16-bit, "
            f"found {device.type} {dtype}; use 'auto', or pip install flash-attn-4"
        )
    return backend


def _has_flash4() -> bool:
    try:
        return importlib.util.find_spec("flash_attn.cute.interface") is not None
    except ModuleNotFoundError:
        return False


def _sdpa(
    q_LHD: torch.Tensor, k_MHD: torch.Tensor, v_MHD: torch.Tensor, q_segments: Segments, k_segments: Segments
) -> torch.Tensor:
    """Neighbouring segments of one shape go as a batch, so that packs of one bucket cost one call."""
    pairs = list(zip(q_segments.lengths, k_segments.lengths))
    heads, dim = q_LHD.shape[1:]
    outputs, q_at, k_at = [], 0, 0
    for (len_q, len_k), group in itertools.groupby(pairs):
        n = len(list(group))
        q_to, k_to = q_at + n * len_q, k_at + n * len_k
        if len_k == 0:
            outputs.append(torch.zeros_like(q_LHD[q_at:q_to]))
        elif len_q:
            q = q_LHD[q_at:q_to].view(n, len_q, heads, dim).transpose(1, 2)
            k = k_MHD[k_at:k_to].view(n, len_k, heads, dim).transpose(1, 2)
            v = v_MHD[k_at:k_to].view(n, len_k, heads, dim).transpose(1, 2)
            out = F.scaled_dot_product_attention(q, k, v)
            outputs.append(out.transpose(1, 2).reshape(n * len_q, heads, dim))
        q_at, k_at = q_to, k_to
    return torch.cat(outputs) if outputs else torch.zeros_like(q_LHD)


def _varlen(
    q_LHD: torch.Tensor, k_MHD: torch.Tensor, v_MHD: torch.Tensor, q_segments: Segments, k_segments: Segments
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    lengths = q_segments.max_length, k_segments.max_length
    return varlen_attn(q_LHD, k_MHD, v_MHD, q_segments.cu, k_segments.cu, *lengths)  # type: ignore[return-value]


def _flash4(
    q_LHD: torch.Tensor, k_MHD: torch.Tensor, v_MHD: torch.Tensor, q_segments: Segments, k_segments: Segments
) -> torch.Tensor:
    from flash_attn.cute.interface import flash_attn_varlen_func

    out = flash_attn_varlen_func(
        q_LHD,
        k_MHD,
        v_MHD,
        cu_seqlens_q=q_segments.cu,
        cu_seqlens_k=k_segments.cu,
        max_seqlen_q=q_segments.max_length,
        max_seqlen_k=k_segments.max_length,
    )
    return out[0] if isinstance(out, tuple) else out


def _flex(
    q_LHD: torch.Tensor, k_MHD: torch.Tensor, v_MHD: torch.Tensor, q_segments: Segments, k_segments: Segments
) -> torch.Tensor:
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q_LHD, k_MHD, v_MHD))
    out = _flex_function(q.device.type)(q, k, v, block_mask=_block_mask(q_segments, k_segments))
    return out.squeeze(0).transpose(0, 1)


@functools.lru_cache(maxsize=8)  # one mask a pack, shared by its layers
def _block_mask(q_segments: Segments, k_segments: Segments):
    from torch.nn.attention.flex_attention import create_block_mask

    q_ids, k_ids = q_segments.ids, k_segments.ids

    def same(_batch, _head, q_index, k_index):
        return q_ids[q_index] == k_ids[k_index]

    return create_block_mask(same, None, None, q_segments.total, k_segments.total, device=str(q_ids.device))


@functools.lru_cache(maxsize=2)
def _flex_function(device_type: str) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    function: Any = flex_attention
    return torch.compile(function, dynamic=True) if device_type == "cuda" else function


_BACKENDS: dict[str, Callable[..., torch.Tensor]] = {"sdpa": _sdpa, "varlen": _varlen, "flex": _flex, "flash4": _flash4}
