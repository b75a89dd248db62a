"""Memory that a reader process and the training process share: packs are written in place, only places pass between.

One anonymous file (`memfd_create`) a reader, mapped by both. A place is taken from the lowest gap that holds it, so
memory that was used once is used again and stays in the page tables. Each place has a word in the memory itself, which
whoever is done with it sets to zero. `/dev/shm` was turned down: containers often cap it at 64 MB.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np

PAGE = 4096
MAX_PLACES = PAGE // 8


@dataclass(frozen=True)
class Place:
    """Bytes [start, start + size_bytes) of a ring; `word` says whether they are taken."""

    word: int
    start: int
    size_bytes: int


class Ring:
    """Shared memory of `size_bytes`; pickles to another process while that is being spawned."""

    def __init__(self, size_bytes: int, descriptor: int | None = None) -> None:
        self.size_bytes = -(-size_bytes // PAGE) * PAGE
        if descriptor is None:
            descriptor = os.memfd_create("trainer-packs", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, PAGE + self.size_bytes)
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, PAGE + self.size_bytes)
        self._words = np.frombuffer(self._map, np.int64, MAX_PLACES)
        self._taken: dict[int, Place] = {}  # the taker alone keeps it

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (self.size_bytes, DupFd(self._descriptor))

    @property
    def memory(self) -> np.ndarray:
        """All of the shared payload memory as bytes, for pinning."""
        return np.frombuffer(self._map, np.uint8, self.size_bytes, PAGE)

    def view(self, place: Place) -> memoryview:
        """The bytes of a place."""
        return memoryview(self._map)[PAGE + place.start : PAGE + place.start + place.size_bytes]

    def take(self, size_bytes: int) -> Place | None:
        """Take a place of so many bytes from the lowest gap that holds it; None if none does yet."""
        self._forget_free()
        size, start = -(-size_bytes // PAGE) * PAGE, 0
        for taken in sorted(self._taken.values(), key=lambda place: place.start):
            if taken.start - start >= size:
                break
            start = max(start, taken.start + -(-taken.size_bytes // PAGE) * PAGE)
        free = np.flatnonzero(self._words == 0)
        if start + size > self.size_bytes or not free.size:
            return None
        place = Place(int(free[0]), start, size_bytes)
        self._words[place.word] = 1
        self._taken[place.word] = place
        return place

    @property
    def num_taken(self) -> int:
        """Places that are taken; the taker may ask."""
        self._forget_free()
        return len(self._taken)

    def _forget_free(self) -> None:
        self._taken = {word: place for word, place in self._taken.items() if self._words[word]}

    def give_back(self, place: Place) -> None:
        """The bytes are free again; either side may say so."""
        self._words[place.word] = 0

    def close(self) -> None:
        """Let go of the memory; it is freed when both sides have."""
        del self._words
        with contextlib.suppress(BufferError):  # a tensor still looks at it: the mapping goes with the tensor
            self._map.close()
        os.close(self._descriptor)


def _attach(size_bytes: int, descriptor: Any) -> Ring:
    return Ring(size_bytes, descriptor.detach())
