"""Philox 4x32-10 in torch: random numbers that are a function of a key and a position, on any device.

Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). Every sample of a batch has its own 64-bit key
and every element of it its own counter, so that a value depends neither on the other samples of its pack, nor on the
rank, nor on the device that draws it. `torch.Generator` was turned down: a stream a sample, its CPU and CUDA streams
differ, and a slice of a sample (context parallelism) would have to draw the whole.

Integers are bit-identical everywhere; normals agree between devices to the last bits of log, cos and sin.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
ROUNDS = 10


def philox(counter: tuple[torch.Tensor, ...], key: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Four random 32-bit words, int64 in [0, 2^32), for four counter and two key words that broadcast together."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, _M0)
        high1, low1 = _multiply(c2, _M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def _multiply(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of a 32 x 32 bit product. It wraps in int64, but its 64 bits are right."""
    product = a * b
    return (product >> 32) & _MASK, product & _MASK


def key_of(*parts: bytes | int | str) -> int:
    """Hash what names a stream (a seed, an id, a purpose) to a 64-bit key; equal parts give equal keys everywhere."""
    digest = hashlib.blake2b(digest_size=8, person=b"trainer.philox")
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little")


def as_tensor(keys: Sequence[int], device: torch.device | str = "cpu") -> torch.Tensor:
    """Keys as int64 of the same 64 bits."""
    return torch.tensor([key - (1 << 64) if key >> 63 else key for key in keys], dtype=torch.int64, device=device)


def uniform(key: int) -> float:
    """One uniform number in (0, 1) from a key, on the host: 53 bits, never 0 or 1."""
    return ((key >> 12) + 0.5) * 2.0**-52


def normal(keys_N: torch.Tensor, ids_L: torch.Tensor, position_L: torch.Tensor, width: int) -> torch.Tensor:
    """Standard normal float32 [L, width]: row l is a function of its sample's key and its position there.

    Args:
        keys_N: int64, the 64 bits of a key a sample.
        ids_L: int64, the sample of each row.
        position_L: int64, the row's number within its sample, below 2^32.
        width: values a row.
    """
    keys = keys_N[ids_L].unsqueeze(1)
    blocks = torch.arange(-(-width // 4), device=keys.device).unsqueeze(0)
    position = position_L.unsqueeze(1)
    zero = torch.zeros((), dtype=torch.int64, device=keys.device)
    words = philox((position, blocks, zero, zero), (keys & _MASK, (keys >> 32) & _MASK))
    pairs = [*_box_muller(words[0], words[1]), *_box_muller(words[2], words[3])]
    return torch.stack(pairs, dim=-1).flatten(1)[:, :width]


def _box_muller(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two normals from two words. The radius has 24 bits: |x| <= 5.9, which cuts off 4e-9 of the mass."""
    u = ((a >> 8).float() + 0.5) * 2.0**-24
    angle = ((b >> 8).float()) * (2 * math.pi * 2.0**-24)
    radius = torch.sqrt(-2.0 * torch.log(u))
    return radius * torch.cos(angle), radius * torch.sin(angle)
