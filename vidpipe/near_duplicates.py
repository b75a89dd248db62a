"""Near-duplicate groups over perceptual hashes: an exact search within a Hamming radius, then connected components.

A clip has the hashes of three frames. Two clips are near-duplicates if every hash of the one is within `radius` bits of
some hash of the other, in one of the eight ways to turn and mirror a picture: so a shortened copy, a rotated one and a
still taken from a clip belong together, and two clips that share an opening do not. Groups are transitive.

Search: the middle hash of the one is then within `radius` bits of a hash of the other, and by the pigeonhole principle
k of its `radius + k` bands of bits agree exactly. For each choice of k bands, hashes are put in buckets by these bands,
and only those in one bucket are compared. k is chosen by what buckets and comparisons would cost; no pair is missed,
whatever k. `tests/bench/near_duplicates.py` measures 10^6 clips.
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
MAX_KEY_BITS = 24
CHUNK_PAIRS = 1 << 22
SORT_NS, LOOK_UP_NS, COMPARE_NS, BUCKET_NS = 100.0, 40.0, 15.0, 4.0

# What turning and mirroring do to `vidpipe.scorers.phash`: swap axes or not, negate odd columns, odd rows, or both.
ODD_COLUMNS, ODD_ROWS = 0xAAAAAAAAAAAAAAAA, 0xFF00FF00FF00FF00
UPRIGHT = ((False, 0),)
ORIENTATIONS = (
    *UPRIGHT,
    *((False, mask) for mask in (ODD_COLUMNS, ODD_ROWS, ODD_COLUMNS ^ ODD_ROWS)),
    *((True, mask) for mask in (0, ODD_COLUMNS, ODD_ROWS, ODD_COLUMNS ^ ODD_ROWS)),
)
MIDDLE = len(HASH_COLUMNS) // 2


def group(table: pa.Table, *, radius: int = 6, orientations: bool = True) -> pa.Table:
    """Group near-duplicate clips.

    Args:
        table: INPUT_COLUMNS, a row a clip; a clip with a null hash is a group of its own.
        radius: bits of 64 in which two hashes of one picture may differ.
        orientations: also find turned and mirrored copies; two to three times the work.
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
    labels = connect(ordered, radius, ORIENTATIONS if orientations else UPRIGHT)
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


def connect(ordered: pa.Table, radius: int, orientations: tuple[tuple[bool, int], ...]) -> np.ndarray:
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
    roots = near_components(distinct_N3, radius, orientations)[inverse.ravel()]
    first = np.full(len(distinct_N3), len(ordered))
    np.minimum.at(first, roots, rows)
    labels[rows] = first[roots]
    return labels


def near_components(
    hashes_N3: np.ndarray, radius: int, orientations: tuple[tuple[bool, int], ...] = ORIENTATIONS
) -> np.ndarray:
    """Connected components of distinct uint64 hash triples.

    Returns:
        int64 [N]: the least row number of each row's component.
    """
    labels = np.arange(len(hashes_N3))
    entry, owner = _entries(hashes_N3)
    middles = [oriented(hashes_N3[:, MIDDLE], *o) for o in orientations]
    for bands in _choices(radius, bands_to_agree(len(labels), len(entry), radius, len(orientations))):
        buckets = _Buckets(_key(entry, bands), sum(size for _, size in bands))
        for orientation, middle in zip(orientations, middles):
            for u, j in buckets.pairs(_key(middle, bands)):
                near = np.bitwise_count(middle[u] ^ entry[j]) <= radius
                u, v = u[near], owner[j[near]]
                apart = labels[u] != labels[v]
                u, v = u[apart], v[apart]
                alike = contained(oriented(hashes_N3[u], *orientation), hashes_N3[v], radius)
                _merge(labels, u[alike], v[alike])
    return labels


def _entries(hashes_N3: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct hashes of each row, and the row of each."""
    ordered = np.sort(hashes_N3, axis=1)
    fresh = np.ones(ordered.shape, bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return ordered[fresh], np.nonzero(fresh)[0]


def oriented(hashes: np.ndarray, swap: bool, mask: int) -> np.ndarray:
    """Hashes of the same pictures with the axes swapped, then mirrored: what `ORIENTATIONS` lists."""
    if swap:
        for shift, kept in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0)):
            moved = (hashes ^ (hashes >> np.uint64(shift))) & np.uint64(kept)
            hashes = hashes ^ moved ^ (moved << np.uint64(shift))
    return hashes ^ np.uint64(mask)


def contained(left_P3: np.ndarray, right_P3: np.ndarray, radius: int) -> np.ndarray:
    """Whether every hash on the left is near some hash on the right: bool [P]."""
    near = np.bitwise_count(left_P3[:, :, None] ^ right_P3[:, None, :]) <= radius
    return near.any(axis=2).all(axis=1)


def bands_to_agree(num_rows: int, num_entries: int, radius: int, num_orientations: int) -> int:
    """The k that costs least; 0 is to compare all pairs."""

    def cost(k: int) -> float:
        key_bits = min(HASH_BITS * k / (radius + k), MAX_KEY_BITS) if k else 0.0
        pairs = num_rows * num_entries / 2**key_bits
        each = num_rows * LOOK_UP_NS + pairs * COMPARE_NS
        return math.comb(radius + k, k) * (num_entries * SORT_NS + 2**key_bits * BUCKET_NS + num_orientations * each)

    return min(range(min(6, HASH_BITS - radius + 1)), key=cost)


Bands = tuple[tuple[int, int], ...]


def _choices(radius: int, agree: int) -> Iterator[Bands]:
    """All choices of `agree` of the `radius + agree` bands, each as its first bit and how many of its bits are used."""
    edges = np.linspace(0, HASH_BITS, radius + agree + 1).round().astype(int).tolist()
    bands = [(a, min(b - a, MAX_KEY_BITS // max(1, agree))) for a, b in itertools.pairwise(edges)]
    yield from itertools.combinations(bands, agree)


def _key(hash_N: np.ndarray, bands: Bands) -> np.ndarray:
    """The bits of these bands, side by side."""
    key = np.zeros(len(hash_N), np.int64)
    for start, size in bands:
        key = (key << size) | ((hash_N >> np.uint64(start)) & np.uint64((1 << size) - 1)).astype(np.int64)
    return key


class _Buckets:
    """Entries by key, for keys of few bits."""

    def __init__(self, key_N: np.ndarray, num_bits: int) -> None:
        self._order = np.argsort(key_N, kind="stable")
        counts = np.bincount(key_N, minlength=1 << num_bits)
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts

    def pairs(self, key_M: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All (m, n) with key_M[m] equal to the key of entry n, some millions at a time."""
        start_M = self._starts[key_M]
        count_M = self._ends[key_M] - start_M
        total_M = np.cumsum(count_M)
        low = 0
        while low < len(key_M):
            done = total_M[low - 1] if low else 0
            high = max(low + 1, int(np.searchsorted(total_M, done + CHUNK_PAIRS, "right")))
            counts = count_M[low:high]
            first = np.repeat(np.arange(low, high), counts)
            within = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
            yield first, self._order[np.repeat(start_M[low:high], counts) + within]
            low = high


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
