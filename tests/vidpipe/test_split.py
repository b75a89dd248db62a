"""Held-out split: whole groups, the same on any machine, stable when footage is added."""

from __future__ import annotations

import pyarrow as pa
import pytest

from schemas.errors import UserError
from vidpipe.split import assign


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


def groups(pairs):
    clips, of = zip(*pairs) if pairs else ((), ())
    return pa.table(
        {
            "clip_id": pa.array([name(c) for c in clips], pa.binary(16)),
            "duplicate_group": pa.array([name(g) for g in of], pa.binary(16)),
        }
    )


def test_share_is_held_out_and_no_group_straddles():
    table = groups([(i, i - i % 2) for i in range(20_000)])
    splits = assign(table, share=0.1, seed=3)["split"].to_pylist()
    assert splits[::2] == splits[1::2]
    assert 0.09 < splits.count("heldout") / len(splits) < 0.11
    assert set(splits) == {"train", "heldout"}


def test_more_footage_moves_no_group():
    few = assign(groups([(i, i) for i in range(500)]), share=0.2)["split"].to_pylist()
    many = assign(groups([(i, i) for i in range(5000)][::-1]), share=0.2)["split"].to_pylist()[::-1]
    assert many[:500] == few


def test_known_draws():
    # computed once; a change would move rows between train and held out in every dataset there is
    splits = assign(groups([(i, i) for i in range(8)]), share=0.5, seed=0)["split"].to_pylist()
    assert [s == "heldout" for s in splits] == [True, True, True, False, True, False, True, False]


def test_seed_draws_another_split():
    table = groups([(i, i) for i in range(1000)])
    assert assign(table, share=0.5, seed=0)["split"] != assign(table, share=0.5, seed=1)["split"]


def test_small_datasets_hold_out_one_group_and_train_on_one():
    for count in (2, 3, 7):
        table = groups([(i, i) for i in range(count)])
        assert assign(table, share=1e-9)["split"].to_pylist().count("heldout") == 1
        assert assign(table, share=1 - 1e-9)["split"].to_pylist().count("train") == 1


def test_no_share_and_no_rows():
    assert set(assign(groups([(1, 1), (2, 2)]), share=0.0)["split"].to_pylist()) == {"train"}
    assert assign(groups([(1, 1)]), share=0.01)["split"].to_pylist() == ["train"]
    assert assign(groups([]), share=0.1).num_rows == 0


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_bad_share_is_refused(share):
    with pytest.raises(UserError, match="share"):
        assign(groups([]), share=share)
