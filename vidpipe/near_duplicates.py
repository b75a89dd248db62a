"""Near-duplicate groups over perceptual hashes: an exact search within a Hamming radius, then connected components.

Two clips are near-duplicates if their three hashes, of the frames at 1/6, 3/6 and 5/6, differ in at most
3 x `radius` bits together. By the pigeonhole principle one of the three then differs in at most `radius` bits, and of
its `radius + k` bands of bits at least k agree. So for each hash and each choice of k bands, rows are sorted by these
bands, and only rows that agree on them are compared. k is chosen by what sorting and comparing would cost; no pair is
missed, whatever k. 10^6 rows at radius 6: see `tests/bench/near_duplicates.py`.

Groups are transitive: a chain of near-duplicates is one group.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.columns import ID
from schemas.errors import SchemaMismatch, UserError, nearest

HASH_COLUMNS = ("phash_0", "phash_1", "phash_2")
INPUT_COLUMNS = ("clip_id", "video_id", "shot_index", "width", "height", "duration_seconds", *HASH_COLUMNS)
HASH_BITS = 64
SORT_COST = 12.0  # of sorting one row by one key, in pairs compared
CHUNK_PAIRS = 1 << 22


def group(table: pa.Table, *, radius: int = 6) -> pa.Table:
    """Group near-duplicate clips.

    Args:
        table: INPUT_COLUMNS, a row a clip; a clip with a null hash is a group of its own.
        radius: mean number of bits that a clip's hashes may differ in, of 64.
    Returns:
        clip_id, duplicate_group (the least clip_id of the group) and is_duplicate, in the table's order. A group keeps
        the clip with the most pixels, then the longest, then the least clip_id, and the windows of that clip's own
        shot (spans of a clip table count as one shot): a fixed camera does not make windows redundant. All others are
        duplicates.
    """
    missing = [c for c in INPUT_COLUMNS if c not in table.column_names]
    if missing:
        raise SchemaMismatch(f"near_duplicates: no column {missing[0]!r}{nearest(missing[0], table.column_names)}")
    if not 0 <= radius <= HASH_BITS:
        raise UserError(f"near_duplicates: radius must be in [0, {HASH_BITS}] bits, found {radius}")
    order: Any = pc.sort_indices(table, sort_keys=[("clip_id", "ascending")])
    ordered = table.select(INPUT_COLUMNS).take(order)
    labels = connect(ordered, radius)
    clip_ids: Any = ordered["clip_id"].cast(ID)
    result: Any = pa.table(
        {
            "clip_id": clip_ids,
            "duplicate_group": clip_ids.take(pa.array(labels)),
            "is_duplicate": ~_kept(ordered, labels),
        }
    )
    back = np.empty(len(order), np.int64)
    back[order.to_numpy()] = np.arange(len(order))
    return result.take(pa.array(back))


def connect(ordered: pa.Table, radius: int) -> np.ndarray:
    """Label of each row: the number of the first row of its group."""
    labels = np.arange(len(ordered))
    valid = np.ones(len(ordered), bool)
    for name in HASH_COLUMNS:
        valid &= ordered[name].is_valid().to_numpy()
    rows = np.flatnonzero(valid)
    if len(rows) < 2:
        return labels
    hashes = np.stack([_numbers(ordered[c])[rows].astype(np.uint64) for c in HASH_COLUMNS], axis=1)
    distinct_N3, inverse = np.unique(hashes, axis=0, return_inverse=True)
    roots = near_components(distinct_N3, radius)[inverse.ravel()]
    first = np.full(len(distinct_N3), len(ordered))
    np.minimum.at(first, roots, rows)
    labels[rows] = first[roots]
    return labels


def near_components(hashes_N3: np.ndarray, radius: int) -> np.ndarray:
    """Connected components of distinct uint64 hash triples under a summed distance of at most 3 x `radius` bits.

    Returns:
        int64 [N]: the least row number of each row's component.
    """
    num_rows, num_hashes = hashes_N3.shape
    labels = np.arange(num_rows)
    agree = bands_to_agree(num_rows, radius)
    for column in range(num_hashes):
        for key in _keys(hashes_N3[:, column], radius, agree):
            for u, v in _same_key(key):
                apart = labels[u] != labels[v]
                u, v = u[apart], v[apart]
                near = np.bitwise_count(hashes_N3[u, column] ^ hashes_N3[v, column]) <= radius
                u, v = u[near], v[near]
                bits = np.bitwise_count(hashes_N3[u] ^ hashes_N3[v]).sum(axis=1, dtype=np.int64)
                near = bits <= num_hashes * radius
                _merge(labels, u[near], v[near])
    return labels


def bands_to_agree(num_rows: int, radius: int) -> int:
    """The k that costs least; 0 is to compare all pairs."""

    def cost(k: int) -> float:
        num_keys = math.comb(radius + k, k)
        pairs = num_rows**2 / 2 / 2 ** (HASH_BITS * k / (radius + k))
        return num_keys * (SORT_COST * num_rows + pairs)

    candidates = [k for k in (1, 2, 3, 4) if radius + k <= HASH_BITS]
    best = min(candidates, key=cost, default=0)
    return best if best and cost(best) < num_rows**2 / 2 else 0


def _keys(hash_N: np.ndarray, radius: int, agree: int) -> Iterator[np.ndarray]:
    """One key a row for each choice of `agree` bands."""
    if not agree:
        yield np.zeros(len(hash_N), np.uint64)
        return
    edges = np.linspace(0, HASH_BITS, radius + agree + 1).round().astype(int)
    masks = [((1 << int(b)) - 1) ^ ((1 << int(a)) - 1) for a, b in itertools.pairwise(edges)]
    for chosen in itertools.combinations(masks, agree):
        yield hash_N & np.uint64(sum(chosen))


def _same_key(key_N: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs of rows with one key, some millions at a time."""
    order = np.argsort(key_N)
    ordered = key_N[order]
    left = np.flatnonzero(ordered[1:] == ordered[:-1])
    distance = 1
    waiting: list[tuple[np.ndarray, np.ndarray]] = []
    num_waiting = 0
    while len(left):
        waiting.append((order[left], order[left + distance]))
        num_waiting += len(left)
        distance += 1
        left = left[: np.searchsorted(left, len(ordered) - distance)]
        left = left[ordered[left] == ordered[left + distance]]
        if num_waiting >= CHUNK_PAIRS:
            yield _joined(waiting)
            waiting, num_waiting = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([u for u, _ in pairs]), np.concatenate([v for _, v in pairs])


def _merge(labels: np.ndarray, u: np.ndarray, v: np.ndarray) -> None:
    """Unite the components of u[i] and v[i], in place; labels stay the least row number of each component."""
    while True:
        a, b = labels[u], labels[v]
        apart = a != b
        if not apart.any():
            return
        u, v, a, b = u[apart], v[apart], a[apart], b[apart]
        np.minimum.at(labels, np.maximum(a, b), np.minimum(a, b))
        while True:
            shorter = labels[labels]
            if np.array_equal(shorter, labels):
                break
            labels[:] = shorter


def _kept(ordered: pa.Table, labels: np.ndarray) -> np.ndarray:
    """Whether each row stays: those of the representative's shot."""
    pixels = _numbers(ordered["width"]).astype(np.int64) * _numbers(ordered["height"])
    seconds = _numbers(ordered["duration_seconds"])
    ranked = np.lexsort((np.arange(len(labels)), -seconds, -pixels, labels))
    leads = np.ones(len(labels), bool)
    leads[1:] = labels[ranked][1:] != labels[ranked][:-1]
    representative = np.empty(len(labels), np.int64)
    representative[labels[ranked][leads]] = ranked[leads]
    mine = representative[labels]
    encoded: Any = ordered["video_id"].combine_chunks().dictionary_encode()
    video, shot = encoded.indices.to_numpy(), _numbers(ordered["shot_index"])
    return (video == video[mine]) & (shot == shot[mine])


def _numbers(column: Any) -> np.ndarray:
    return column.fill_null(0).to_numpy()
