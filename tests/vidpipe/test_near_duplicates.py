"""Near-duplicate search: exact against comparing all pairs, and the rule of which clip stays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from schemas.errors import SchemaMismatch
from vidpipe.near_duplicates import HASH_COLUMNS, bands_to_agree, group, near_components

ID = pa.binary(16)


def clip(number: int, hashes: tuple[int | None, ...], **values):
    row = {
        "clip_id": number.to_bytes(16, "big"),
        "video_id": number.to_bytes(16, "big"),
        "shot_index": 0,
        "width": 640,
        "height": 360,
        "duration_seconds": 4.0,
        **dict(zip(HASH_COLUMNS, hashes)),
        **values,
    }
    return row


def table(rows):
    schema = pa.schema(
        [
            ("clip_id", ID),
            ("video_id", ID),
            ("shot_index", pa.int32()),
            ("width", pa.int32()),
            ("height", pa.int32()),
            ("duration_seconds", pa.float64()),
            *((name, pa.uint64()) for name in HASH_COLUMNS),
        ]
    )
    return pa.Table.from_pylist(rows, schema)


def flipped(value: int, num_bits: int, rng) -> int:
    for bit in rng.choice(64, num_bits, replace=False):
        value ^= 1 << int(bit)
    return value


def by_all_pairs(hashes: np.ndarray, radius: int) -> np.ndarray:
    labels = np.arange(len(hashes))
    for i in range(len(hashes)):
        for j in range(i):
            if int(np.bitwise_count(hashes[i] ^ hashes[j]).sum()) <= 3 * radius and labels[i] != labels[j]:
                labels[labels == max(labels[i], labels[j])] = min(labels[i], labels[j])
    return labels


@pytest.mark.parametrize("radius", [0, 1, 3, 6, 12])
@pytest.mark.parametrize("agree", [0, 1, 2, 3])
def test_search_finds_every_pair_within_the_radius_whatever_bands_are_used(radius, agree, monkeypatch):
    rng = np.random.default_rng(radius)
    base = rng.integers(0, 2**63, (40, 3), dtype=np.uint64)
    rows = [base]
    for total in range(1, 3 * radius + 8):  # on both sides of the limit, spread unevenly over the hashes
        copies = base.copy()
        for row in copies:
            split = np.bincount(rng.integers(0, 3, total), minlength=3)
            for column in range(3):
                row[column] = flipped(int(row[column]), min(64, int(split[column])), rng)
        rows.append(copies)
    hashes = np.unique(np.concatenate(rows), axis=0)[:300]
    monkeypatch.setattr("vidpipe.near_duplicates.bands_to_agree", lambda *_: agree)
    np.testing.assert_array_equal(near_components(hashes, radius), by_all_pairs(hashes, radius))


def test_cost_model_sorts_many_rows_and_compares_few():
    assert bands_to_agree(50, 6) == 0
    assert bands_to_agree(1_000_000, 6) >= 2


def test_limit_is_three_times_the_radius_together():
    near = (0, flipped(0, 6, np.random.default_rng(0)), flipped(0, 12, np.random.default_rng(1)))
    far = (1 << 63, *near[1:])
    groups = group(table([clip(1, (0, 0, 0)), clip(2, near), clip(3, far)]), radius=6)
    assert groups["duplicate_group"].to_pylist() == [(1).to_bytes(16, "big")] * 3  # 3 is near 2, not 1: a chain
    groups = group(table([clip(1, (0, 0, 0)), clip(3, far)]), radius=6)
    assert groups["is_duplicate"].to_pylist() == [False, False]


def test_group_is_named_by_its_least_clip_and_rows_keep_their_order():
    rows = [clip(9, (5, 5, 5)), clip(2, (2**40 - 1, 7, 7)), clip(4, (5, 5, 5))]
    groups = group(table(rows), radius=2)
    assert groups["clip_id"].to_pylist() == [r["clip_id"] for r in rows]
    assert groups["duplicate_group"].to_pylist() == [rows[2]["clip_id"], rows[1]["clip_id"], rows[2]["clip_id"]]
    assert groups["is_duplicate"].to_pylist() == [True, False, False]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"width": 640, "height": 360}, {"width": 1280, "height": 720}),
        ({"duration_seconds": 3.0}, {"duration_seconds": 4.0}),
    ],
)
def test_most_pixels_stay_then_the_longest(first, second):
    groups = group(table([clip(1, (1, 2, 3), **first), clip(2, (1, 2, 3), **second)]))
    assert groups["is_duplicate"].to_pylist() == [True, False]


def test_windows_of_one_shot_stay_together_and_other_copies_go():
    video = b"v" * 16
    rows = [
        clip(1, (1, 1, 1), video_id=video, shot_index=3),
        clip(2, (1, 1, 1), video_id=video, shot_index=3),
        clip(3, (1, 1, 1), video_id=video, shot_index=4),
        clip(4, (1, 1, 1)),
    ]
    groups = group(table(rows))
    assert len(set(groups["duplicate_group"].to_pylist())) == 1
    assert groups["is_duplicate"].to_pylist() == [False, False, True, True]


def test_clips_without_hashes_are_alone():
    groups = group(table([clip(1, (None, 1, 1)), clip(2, (None, 1, 1)), clip(3, (None, None, None))]))
    assert groups["is_duplicate"].to_pylist() == [False] * 3
    assert len(set(groups["duplicate_group"].to_pylist())) == 3
    assert group(table([])).num_rows == 0


def test_many_rows_with_one_hash_are_one_group():
    groups = group(table([clip(i, (3, 3, 3)) for i in range(1, 3001)]))
    assert set(groups["duplicate_group"].to_pylist()) == {(1).to_bytes(16, "big")}
    assert sum(groups["is_duplicate"].to_pylist()) == 2999


def test_missing_column_is_named():
    with pytest.raises(SchemaMismatch, match="phash_0"):
        group(table([]).drop_columns(["phash_0"]))
