"""A keyed pseudo-random permutation of range(n), evaluated by index: no list of ids in memory.

A Feistel network over Z_a x Z_b with a * b just above n (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
2002): each round adds a hash of one half to the other, modulo that half's size. Results at or above n are put through
again until they fall below it (cycle walking); with a = ceil(sqrt(n)) and b = ceil(n / a) that is one in sqrt(n).
A list of ids shuffled at the start of an epoch was turned down: 8 bytes a row on every rank, and seconds at 10^9 rows.
Not for secrets: the round function is a mixer, not a cipher.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

NUM_ROUNDS = 6
SMALL = 1 << 16
_CHUNK = 1 << 14
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


def mix64(values: np.ndarray) -> np.ndarray:
    """Finaliser of SplitMix64: a bijection of uint64 that flips half of the bits for any flipped bit."""
    values = values.astype(np.uint64)
    values ^= values >> np.uint64(30)
    values *= _MIX_A
    values ^= values >> np.uint64(27)
    values *= _MIX_B
    values ^= values >> np.uint64(31)
    return values


def hash_key(*parts: int) -> int:
    """Hash integers, in order, to 64 bits."""
    key = 0x9E3779B97F4A7C15
    for part in parts:
        key = (key ^ (part & 0xFFFFFFFFFFFFFFFF)) & 0xFFFFFFFFFFFFFFFF
        key = int(mix64(np.array([(key + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF], np.uint64))[0])
    return key


def keyed_uniform(key: int, values: np.ndarray) -> np.ndarray:
    """Uniform float64 in [0, 1) for each integer, the same for the same key and integer."""
    hashed = mix64(mix64(np.asarray(values).astype(np.uint64)) + np.uint64(key))
    return (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Permutation:
    """A permutation of range(size) chosen by `key`; about 20 ns an index.

    Up to 65,536 it is a sorted table of hashes, since few rounds of so narrow a network are visibly not random.

    Args:
        size: at least 1, below 2^62.
        key: any integer; equal keys give equal permutations on every machine.
    """

    def __init__(self, size: int, key: int) -> None:
        if not 1 <= size < 1 << 62:
            raise ValueError(f"permutation: size must be in [1, 2^62), found {size}")
        self.size = size
        self._table: np.ndarray | None = None
        if size <= SMALL:
            hashed = mix64(np.arange(size, dtype=np.uint64) + np.uint64(hash_key(key)))
            self._table = np.argsort(hashed, kind="stable").astype(np.int32)
        self._a = math.isqrt(size - 1) + 1
        self._b = -(-size // self._a)
        self._keys = [np.uint64(hash_key(key, r)) for r in range(NUM_ROUNDS)]

    def forward(self, index: np.ndarray | int) -> np.ndarray:
        """Where each index goes: int64, the shape of `index`."""
        return self._apply(index, self._table, self._encrypt)

    def inverse(self, index: np.ndarray | int) -> np.ndarray:
        """Which index goes there."""
        return self._apply(index, None if self._table is None else np.argsort(self._table), self._decrypt)

    def _apply(
        self, index: np.ndarray | int, table: np.ndarray | None, step: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        index = np.asarray(index, np.int64)
        flat = index.reshape(-1)
        if flat.size and (flat.min() < 0 or flat.max() >= self.size):
            raise IndexError(f"permutation of {self.size}: index out of range")
        if table is not None:
            return table[index].astype(np.int64)
        out = np.empty(flat.size, np.uint64)
        for start in range(0, flat.size, _CHUNK):  # a chunk stays in the L2 cache over all rounds
            values = step(flat[start : start + _CHUNK].astype(np.uint64))
            while (outside := np.flatnonzero(values >= self.size)).size:
                values[outside] = step(values[outside])
            out[start : start + _CHUNK] = values
        return out.astype(np.int64).reshape(index.shape)

    def _encrypt(self, values: np.ndarray) -> np.ndarray:
        left, right = _split(values, self._b)
        for i, key in enumerate(self._keys):
            half, other, modulus = (left, right, self._a) if i % 2 == 0 else (right, left, self._b)
            half += _hash_below(other, key, modulus)
            np.minimum(half, half - np.uint64(modulus), out=half)  # wraps around below zero, so the lesser is right
        return left * np.uint64(self._b) + right

    def _decrypt(self, values: np.ndarray) -> np.ndarray:
        left, right = _split(values, self._b)
        for i, key in reversed(list(enumerate(self._keys))):
            half, other, modulus = (left, right, self._a) if i % 2 == 0 else (right, left, self._b)
            half += np.uint64(modulus) - _hash_below(other, key, modulus)
            np.minimum(half, half - np.uint64(modulus), out=half)
        return left * np.uint64(self._b) + right


def _split(values: np.ndarray, divisor: int) -> tuple[np.ndarray, np.ndarray]:
    left = values // np.uint64(divisor)
    return left, values - left * np.uint64(divisor)  # numpy's remainder is eight times slower than its quotient


def _hash_below(half: np.ndarray, key: np.uint64, modulus: int) -> np.ndarray:
    """Hash to [0, modulus) by the high bits of a product."""
    hashed = half * _MIX_A
    hashed ^= key
    hashed ^= hashed >> np.uint64(32)
    hashed *= _MIX_B
    hashed >>= np.uint64(32)
    hashed *= np.uint64(modulus)
    hashed >>= np.uint64(32)
    return hashed
