"""Crop and antialiased bicubic resize, the same on CPU and GPU within 2 code values.

On a CPU, uint8 goes through torch's fixed-point kernel; on a GPU through a Triton kernel of the same weights, since
torch's own there takes float32. A GPU without Triton multiplies by two weight matrices in half precision.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from schemas.errors import UserError

if TYPE_CHECKING:
    import torch

CHUNK_BYTES = 256 << 20


def resize_crop(
    frames_TCHW: torch.Tensor, crop_xywh: Sequence[int] | None, size_hw: Sequence[int] | None
) -> torch.Tensor:
    """Crop, then resize.

    Args:
        frames_TCHW: uint8 in [0, 255], any device.
        crop_xywh: x, y, width, height in pixels; None keeps all.
        size_hw: output height and width; None keeps the crop's size.
    Returns:
        uint8 [T, C, H, W] on the same device, contiguous.
    Raises:
        UserError: the crop is not inside the frames.
    """
    import torch

    if crop_xywh is not None:
        x, y, width, height = crop_xywh
        full_h, full_w = frames_TCHW.shape[2:]
        if x < 0 or y < 0 or width < 1 or height < 1 or x + width > full_w or y + height > full_h:
            raise UserError(f"crop {tuple(crop_xywh)} is not inside {full_w}x{full_h} frames")
        frames_TCHW = frames_TCHW[:, :, y : y + height, x : x + width]
    if size_hw is None or tuple(size_hw) == tuple(frames_TCHW.shape[2:]):
        return frames_TCHW.contiguous()
    if frames_TCHW.device.type == "cuda" and len(frames_TCHW) and _has_triton():
        from vidpipe.media.resize_triton import resize_by_taps

        return resize_by_taps(frames_TCHW, *size_hw)
    out = torch.empty((*frames_TCHW.shape[:2], *size_hw), dtype=torch.uint8, device=frames_TCHW.device)
    frame_bytes = 4 * max(frames_TCHW[0].numel(), out[0].numel()) if len(out) else 1
    step = max(1, CHUNK_BYTES // frame_bytes)
    for start in range(0, len(out), step):
        out[start : start + step] = _resize(frames_TCHW[start : start + step], size_hw)
    return out


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _resize(frames_TCHW: torch.Tensor, size_hw: Sequence[int]) -> torch.Tensor:
    import torch
    from torch.nn.functional import interpolate

    if frames_TCHW.device.type == "cpu":
        frames_TCHW = frames_TCHW.contiguous(memory_format=torch.channels_last)
        return interpolate(frames_TCHW, size=tuple(size_hw), mode="bicubic", antialias=True)
    return resize_by_matrices(frames_TCHW, size_hw, torch.float16)


def resize_by_matrices(frames_TCHW: torch.Tensor, size_hw: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Antialiased bicubic resize as W_rows @ frames @ W_columns; uint8 in and out.

    Columns first, and rounded to code values in between, as torch does on a CPU; float16 holds those exactly.
    """
    import torch

    device = frames_TCHW.device
    height, width = frames_TCHW.shape[2:]
    columns = _weights_on(device, dtype, width, size_hw[1])
    rows = _weights_on(device, dtype, height, size_hw[0])
    planes = frames_TCHW.to(dtype, memory_format=torch.contiguous_format)  # torchcodec's are interleaved
    wide = (planes @ columns.T).round_().clamp_(0, 255)
    return (rows @ wide).round_().clamp_(0, 255).to(torch.uint8)


@lru_cache(maxsize=64)
def _weights_on(device: torch.device, dtype: torch.dtype, size: int, new_size: int) -> torch.Tensor:
    """The weights on a device, sent there once: megabytes for each ten frames would cost more than the resize."""
    import torch

    weights = bicubic_weights(size, new_size).to(dtype).to(device)
    if device.type == "cuda":  # other threads use them in their own streams
        torch.cuda.current_stream(device).synchronize()
    return weights


@lru_cache(maxsize=64)
def bicubic_weights(size: int, new_size: int) -> torch.Tensor:
    """[new_size, size] float64: torch's (and PIL's) antialiased bicubic with a = -0.5, rows summing to 1."""
    import torch

    scale = size / new_size
    stretch = max(scale, 1.0)
    centers = (torch.arange(new_size, dtype=torch.float64) + 0.5) * scale
    x = ((torch.arange(size, dtype=torch.float64) + 0.5)[None] - centers[:, None]).abs() / stretch
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    weights = torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
    return weights / weights.sum(dim=1, keepdim=True)
