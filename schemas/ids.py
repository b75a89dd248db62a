"""Ids from content: the same input gives the same id on any machine.

All ids are 16 bytes of BLAKE2b over length-prefixed parts, so that no two part lists run together. `content_id`
reads at most 3 MiB of a file, whatever its size, so that ingest never reads a petabyte to name it; what it can miss
(two files of one size that differ only between the samples) is what the optional `checksum` stage reports.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, BinaryIO

ID_BYTES = 16
EDGE_BYTES = 1 << 20
BLOCK_BYTES = 64 << 10
NUM_BLOCKS = 16


def _digest(kind: str, parts: Iterable[bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=ID_BYTES, person=kind.encode().ljust(16, b"\0")[:16])
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def content_id(file: BinaryIO, size_bytes: int) -> bytes:
    """Name a file by its size, its first and last MiB and sixteen evenly spaced 64 KiB blocks.

    Args:
        file: seekable binary file; a file no larger than 3 MiB is read whole.
        size_bytes: its length; a short read raises ``EOFError``, since the file then changed while it was read.
    """

    def read(start: int, length: int) -> bytes:
        file.seek(start)
        data = file.read(length)
        if len(data) != length:
            raise EOFError(f"expected {length} bytes at {start}, found {len(data)}: the file changed while it was read")
        return data

    size = size_bytes.to_bytes(8, "little")
    if size_bytes <= 2 * EDGE_BYTES + NUM_BLOCKS * BLOCK_BYTES:
        return _digest("video", [size, read(0, size_bytes)])
    gap = (size_bytes - BLOCK_BYTES) / (NUM_BLOCKS + 1)
    starts = [int(gap * (i + 1)) for i in range(NUM_BLOCKS)]
    samples = [read(0, EDGE_BYTES), *(read(s, BLOCK_BYTES) for s in starts)]
    return _digest("video", [size, *samples, read(size_bytes - EDGE_BYTES, EDGE_BYTES)])


def clip_id(
    video_id: bytes,
    stream_index: int,
    start_pts: int,
    end_pts: int,
    time_base: Fraction,
    crop_xywh: Sequence[int] | None = None,
) -> bytes:
    """Name a span of a stream: pts in units of `time_base`, end exclusive; `crop_xywh` only if a user gave it."""
    span = [stream_index, start_pts, end_pts, time_base.numerator, time_base.denominator, *(crop_xywh or ())]
    return _digest("clip", [video_id, json.dumps(span).encode()])


def latent_id(clip: bytes, fps: Fraction | None, geometry: Mapping[str, Any], fingerprint: str) -> bytes:
    """Name a cached latent.

    Args:
        fps: sampling rate in frames/s; None for the stream's own.
        geometry: bucket, crop box and whatever else decides which pixels were encoded; JSON values.
        fingerprint: of the encode stage.
    """
    rate = "native" if fps is None else f"{fps.numerator}/{fps.denominator}"
    return _digest("latent", [clip, rate.encode(), canonical_json(geometry), fingerprint.encode()])


def text_id(text: str) -> bytes:
    """Name a distinct caption by its exact text."""
    return _digest("text", [text.encode()])


def caption_id(clip: bytes, source: str, text: str) -> bytes:
    """Name one caption of one clip from one source."""
    return _digest("caption", [clip, source.encode(), text.encode()])


def canonical_json(value: Any) -> bytes:
    """Encode JSON with sorted keys and no spaces; Fractions become ``n/d``."""

    def default(item: Any) -> Any:
        if isinstance(item, Fraction):
            return f"{item.numerator}/{item.denominator}"
        if isinstance(item, (set, frozenset)):
            return sorted(item)
        raise TypeError(f"{type(item).__name__} has no canonical form")

    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=default).encode()


def fingerprint(stage: str, version: int, params: Mapping[str, Any], upstream: Sequence[str] = ()) -> str:
    """Name what a stage computes: 16 hex digits over its version, output-shaping parameters and upstream fingerprints.

    Selection expressions and decoder back ends are not parameters in this sense: leave them out of `params`.
    """
    parts = [stage.encode(), str(version).encode(), canonical_json(params), *(f.encode() for f in sorted(upstream))]
    return _digest("fingerprint", parts).hex()[:16]


def unit_id(stage: str, stage_fingerprint: str, keys: Iterable[bytes]) -> str:
    """Name a unit of work by what is in it: 32 hex digits. The same rows in the same order give the same name."""
    return _digest("unit", [stage.encode(), stage_fingerprint.encode(), *keys]).hex()
