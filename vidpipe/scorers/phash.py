"""Perceptual hash: 64 bits of a picture's coarse structure, which survive scaling and coding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import pyarrow as pa

from schemas.columns import Column
from vidpipe.scorers.base import Scorer, ScorerConfig, Span
from vidpipe.scorers.sample import Sample

POSITIONS = (1 / 6, 3 / 6, 5 / 6)
COLUMN_NAMES = tuple(f"phash_{i}" for i in range(len(POSITIONS)))
DCT_SIZE = 32
HASH_SIZE = 8
MIN_DEVIATION = 2.0


class PerceptualHash(Scorer):
    """Signs of the low DCT coefficients of three frames (after Zauner 2010 and imagehash's `phash`).

    Grey, black bars left out, is scaled to 32x32 whatever its aspect; bit 8v + u tells whether DCT coefficient (u, v),
    u and v from 0 to 7, is above 0; bit 0 (the mean) is 0. Deviation: the threshold is 0 and not the median, so that
    turning or mirroring the picture changes bits by a fixed rule, which `vidpipe.near_duplicates` uses.
    """

    name = "phash"
    version = 1
    small = True
    typecode = "Q"
    columns = tuple(
        Column(
            name=name,
            type=pa.uint64(),
            meaning=f"64-bit DCT sign hash of the sampled frame nearest to {round(6 * position)}/6 of the clip, black "
            "bars left out; near-duplicates differ in few bits; null where every sample is flat",
        )
        for name, position in zip(COLUMN_NAMES, POSITIONS)
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(ScorerConfig):
        """`samples_per_second`: how near to its aim a hashed frame is."""

        samples_per_second: float = 4.0

    def measure(self, sample: Sample) -> Sequence[int] | None:
        gray = sample.picture(sample.small_HW)
        small = cv2.resize(gray, (DCT_SIZE, DCT_SIZE), interpolation=cv2.INTER_AREA).astype(np.float32)
        if float(small.std()) < MIN_DEVIATION:
            return None
        return (hash_bits(small),)

    def summarise(self, span: Span) -> dict[str, Any]:
        seconds, values = self.features.within(span)
        if not len(values):
            return dict.fromkeys(COLUMN_NAMES)
        length = span.end_seconds - span.start_seconds
        chosen = [int(np.abs(seconds - (span.start_seconds + p * length)).argmin()) for p in POSITIONS]
        return {name: int(values[i, 0]) for name, i in zip(COLUMN_NAMES, chosen)}


def hash_bits(gray_32x32: np.ndarray) -> int:
    """Hash of a float32 picture of 32x32."""
    bits = cv2.dct(gray_32x32)[:HASH_SIZE, :HASH_SIZE] > 0
    bits[0, 0] = False
    return int(np.packbits(bits.ravel(), bitorder="little").view(np.uint64)[0])
