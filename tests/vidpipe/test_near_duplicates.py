"""Near-duplicate search: exact against comparing all pairs, and the rule of which clip stays."""

from __future__ import annotations

import cv2
import numpy as np
import pyarrow as pa
import pytest

from schemas.errors import SchemaMismatch
from vidpipe.near_duplicates import HASH_COLUMNS, ORIENTATIONS, UPRIGHT, bands_to_agree, group, near_components
from vidpipe.scorers.phash import hash_bits

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


def turned(value: int, swap: bool, mask: int) -> int:
    bits = [(value >> i) & 1 for i in range(64)]
    if swap:
        bits = [bits[8 * (i % 8) + i // 8] for i in range(64)]
    return sum(bit << i for i, bit in enumerate(bits)) ^ mask


def is_near(left, right, radius: int, orientations) -> bool:
    for swap, mask in orientations:
        images = [turned(int(h), swap, mask) for h in left]
        if all(any((h ^ int(k)).bit_count() <= radius for k in right) for h in images):
            return True
    return False


def by_all_pairs(hashes: np.ndarray, radius: int, orientations) -> np.ndarray:
    labels = np.arange(len(hashes))
    for i, left in enumerate(hashes):
        for j, right in enumerate(hashes):
            if labels[i] != labels[j] and is_near(left, right, radius, orientations):
                labels[labels == max(labels[i], labels[j])] = min(labels[i], labels[j])
    return labels


@pytest.mark.parametrize("orientations", [UPRIGHT, ORIENTATIONS], ids=["upright", "any"])
@pytest.mark.parametrize("radius", [0, 1, 3, 6])
@pytest.mark.parametrize("agree", [0, 1, 2, 3])
def test_search_finds_every_pair_within_the_radius_whatever_bands_are_used(radius, agree, orientations, monkeypatch):
    rng = np.random.default_rng(radius)
    base = rng.integers(0, 2**63, (5, 3), dtype=np.uint64)
    rows = [base]
    for bits in range(max(0, radius - 1), radius + 3):  # on both sides of the limit
        copies = base.copy()
        for row in copies:
            swap, mask = orientations[rng.integers(len(orientations))]
            row[:] = [turned(flipped(int(h), bits, rng), swap, mask) for h in rng.permutation(row)]
            row[rng.integers(3)] = row[0]
        rows.append(copies)
    hashes = np.unique(np.concatenate(rows), axis=0)
    monkeypatch.setattr("vidpipe.near_duplicates.bands_to_agree", lambda *_: agree)
    monkeypatch.setattr("vidpipe.near_duplicates.MAX_KEY_BITS", 12)  # for speed: coarser buckets miss nothing
    expected = by_all_pairs(hashes, radius, orientations)
    np.testing.assert_array_equal(near_components(hashes, radius, orientations), expected)
    assert len(np.unique(expected)) < len(hashes)


def test_cost_model_sorts_many_rows_and_compares_few():
    assert bands_to_agree(20, 60, 6, 8) < 2
    assert bands_to_agree(1_000_000, 3_000_000, 6, 8) >= 2


def test_every_hash_of_the_shorter_clip_must_be_in_the_other():
    a, b, c, d, e = (int(v) for v in np.random.default_rng(1).integers(0, 2**63, 5, dtype=np.uint64))
    near = [flipped(h, 6, np.random.default_rng(2)) for h in (b, b, c)]
    assert grouped((a, b, c), near)  # a part of it
    assert grouped((b, b, b), (a, b, c))  # a still from it
    assert not grouped((a, b, c), (a, b, d))  # the same opening
    assert not grouped((a, b, c), (flipped(near[0], 1, np.random.default_rng(9)) ^ (1 << 62), d, e))


def test_one_bit_more_than_the_radius_is_another_picture():
    one, other = 0x0123456789ABCDEE, 0x0123456789ABCDEE ^ 0b1111110 ^ (1 << 63)
    assert grouped((one,) * 3, (one ^ 0b1111110,) * 3)
    assert not grouped((one,) * 3, (other,) * 3)


def grouped(left, right, **options) -> bool:
    groups = group(table([clip(1, tuple(left)), clip(2, tuple(right))]), **options)
    return len(set(groups["duplicate_group"].to_pylist())) == 1


def test_turned_and_mirrored_pictures_belong_together():
    rng = np.random.default_rng(0)
    picture = cv2.GaussianBlur(rng.uniform(0, 255, (32, 32)).astype(np.float32), (0, 0), 3)
    upright = hash_bits(picture)
    for turns in range(4):
        for image in (np.rot90(picture, turns), np.rot90(picture, turns)[:, ::-1]):
            other = hash_bits(np.ascontiguousarray(image))
            assert grouped((upright,) * 3, (other,) * 3, radius=0)
            same = (upright ^ other).bit_count() == 0
            assert grouped((upright,) * 3, (other,) * 3, radius=0, orientations=False) == same


def test_group_is_named_by_its_least_clip_and_rows_keep_their_order():
    rows = [clip(9, (5, 5, 5)), clip(2, (2**40 - 1,) * 3), clip(4, (5, 5, 5))]
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
