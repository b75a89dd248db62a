"""Separable resampling of uint8 frames by weights of few taps, in one Triton kernel that runs once an axis.

A product with a weight matrix reads and writes float16 copies of the whole frame, some 90 MB a 1080p frame; this reads
the frame's bytes, however they are interleaved, and writes bytes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from vidpipe.media.resize import bicubic_weights

if TYPE_CHECKING:
    import torch

MOST_PLANES = 65535
"""A grid's third side on CUDA."""
TAPS = 4
"""Numbers of taps are multiples of this: a kernel is compiled for each."""


@triton.jit  # type: ignore[untyped-decorator]
def _resample(
    source, target, weights, starts, channels, size, new_size, others, frame, channel, along, across, out_along,
    out_across, taps: tl.constexpr, along_last: tl.constexpr, block: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """One plane's tile: `new_size` outputs along an axis of `size`, for each of `others` places across it."""
    plane = tl.program_id(2).to(tl.int64)
    if along_last:  # neighbouring lanes read neighbouring bytes
        a = tl.program_id(0) * lanes + tl.arange(0, lanes)[None, :]
        o = tl.program_id(1) * block + tl.arange(0, block)[:, None]
    else:
        a = tl.program_id(0) * block + tl.arange(0, block)[:, None]
        o = tl.program_id(1) * lanes + tl.arange(0, lanes)[None, :]
    inside = (a < new_size) & (o < others)
    start = tl.load(starts + a, mask=a < new_size, other=0)
    base = source + plane // channels * frame + plane % channels * channel + o * across
    total = tl.zeros(inside.shape, tl.float32)
    for k in tl.static_range(taps):
        weight = tl.load(weights + a * taps + k, mask=a < new_size, other=0.0)
        place = tl.minimum(start + k, size - 1)  # weights past the end are zero
        total += weight * tl.load(base + place * along, mask=inside, other=0).to(tl.float32)
    total = tl.minimum(tl.maximum(tl.floor(total + 0.5), 0.0), 255.0)
    at = plane * new_size * others + a * out_along + o * out_across
    tl.store(target + at, total.to(tl.uint8), mask=inside)


def resize_by_taps(frames_TCHW: torch.Tensor, new_h: int, new_w: int) -> torch.Tensor:
    """Antialiased bicubic, columns first, rounded to code values in between, as torch does on a CPU; all uint8."""
    import torch

    num, channels, height, width = frames_TCHW.shape
    if num * channels > MOST_PLANES:
        halves = frames_TCHW.split(MOST_PLANES // channels)
        return torch.cat([resize_by_taps(part, new_h, new_w) for part in halves])
    wide = torch.empty((num, channels, height, new_w), dtype=torch.uint8, device=frames_TCHW.device)
    out = torch.empty((num, channels, new_h, new_w), dtype=torch.uint8, device=frames_TCHW.device)
    s = frames_TCHW.stride()
    _along(frames_TCHW, wide, width, new_w, height, (s[0], s[1], s[3], s[2]), (1, new_w), along_last=True)
    s = wide.stride()
    _along(wide, out, height, new_h, new_w, (s[0], s[1], s[2], s[3]), (new_w, 1), along_last=False)
    return out


def _along(
    source: Any, target: Any, size: int, new_size: int, others: int, strides: tuple[int, ...],
    out_strides: tuple[int, int], along_last: bool,
) -> None:  # fmt: skip
    weights, starts = _taps_on(source.device, size, new_size)
    block, lanes = 4, 128
    tile_a, tile_o = (lanes, block) if along_last else (block, lanes)
    planes = source.shape[0] * source.shape[1]
    grid = (triton.cdiv(new_size, tile_a), triton.cdiv(others, tile_o), planes)
    _resample[grid](
        source, target, weights, starts, source.shape[1], size, new_size, others, *strides, *out_strides,
        taps=weights.shape[1], along_last=along_last, block=block, lanes=lanes,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _taps_on(device: torch.device, size: int, new_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights that are not zero, float32 [new_size, taps], and the places of the first, int32 [new_size]."""
    import torch

    dense = bicubic_weights(size, new_size)
    starts = (dense != 0).to(torch.uint8).argmax(dim=1)
    ends = size - (dense.flip(1) != 0).to(torch.uint8).argmax(dim=1)
    taps = -(-int((ends - starts).max()) // TAPS) * TAPS
    where = starts[:, None] + torch.arange(taps)
    weights = dense.gather(1, where.clamp(max=size - 1)) * (where < ends[:, None])
    made = weights.float().contiguous().to(device), starts.to(torch.int32).to(device)
    if device.type == "cuda":  # other threads use them in their own streams
        torch.cuda.current_stream(device).synchronize()
    return made
