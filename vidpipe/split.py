"""Held-out split by keyed hash of the near-duplicate group, so that no near-duplicates straddle it.

Each group draws a number from a hash of (seed, group): which side it is on does not depend on the order of rows, the
machine or the other groups, and more footage moves no group that was there. (The one exception is a small dataset where
chance would take no group, or all of them.)
"""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa

from schemas.columns import ID
from schemas.errors import UserError

TRAIN, HELDOUT = "train", "heldout"


def assign(groups: pa.Table, *, share: float, seed: int = 0) -> pa.Table:
    """Hold out groups.

    Args:
        groups: clip_id and duplicate_group, a row a clip.
        share: of the groups, in [0, 1), in expectation. With share > 0 and two groups or more, at least one group is
            held out and one is not: the one with the least (or greatest) number, where chance took none (or all).
        seed: another seed draws another split.
    Returns:
        clip_id and split, `train` or `heldout`, in the table's order.
    """
    if not 0 <= share < 1:
        raise UserError(f"split: share must be in [0, 1), found {share}")
    encoded: Any = groups["duplicate_group"].cast(ID).combine_chunks().dictionary_encode()
    draws = [_draw(seed, name) for name in encoded.dictionary.to_pylist()]
    held = [draw < share for draw in draws]
    if share > 0 and len(draws) > 1 and len(set(held)) == 1:
        odd = draws.index(max(draws) if held[0] else min(draws))
        held[odd] = not held[odd]
    names = pa.array([HELDOUT if h else TRAIN for h in held], pa.string())
    clip_ids: Any = groups["clip_id"].cast(ID)
    return pa.table({"clip_id": clip_ids, "split": names.take(encoded.indices)})


def _draw(seed: int, group: bytes) -> float:
    digest = hashlib.blake2b(group, digest_size=8, key=str(seed).encode(), person=b"vidpipe split").digest()
    return int.from_bytes(digest, "little") / 2**64
