"""What the protocol takes from Lance without Lance promising it. If one of these fails, the protocol has to change."""

from __future__ import annotations

import json
from pathlib import Path

import lance
import pytest
from lance.commit import CommitConflictError

from schemas.tables import OUTCOMES
from vidpipe.store.fence import ALL_ROWS, RowKeys, fence, fenced
from vidpipe.store.lease import _record
from vidpipe.store.write import write_fragments

NAME = "outcomes/s"


@pytest.fixture
def make(dataset, rows):
    """Fragments of a unit."""
    dataset.ensure(NAME, OUTCOMES)
    return lambda unit, numbers: write_fragments(dataset.root, NAME, rows.outcomes(unit, numbers))


def units(dataset):
    return sorted(dataset.read(NAME, ["unit_id"])["unit_id"].to_pylist())


@pytest.mark.parametrize("stale", ["append", "empty", "delete", "replace"])
def test_a_commit_after_another_fenced_one_is_refused(dataset, rows, make, stale):
    fenced(dataset.table(NAME), make("a", [1, 2]))
    old = dataset.table(NAME)
    fence(dataset, NAME)
    keys = RowKeys(("id",), [(rows.id(1),)])
    fragments = make("b", [3]) if stale in ("append", "replace") else []
    with pytest.raises(CommitConflictError):
        fenced(old, fragments, keys if stale in ("delete", "replace") else None)
    assert units(dataset) == ["a", "a"]


def test_a_commit_after_a_replacement_of_other_rows_is_refused(dataset, rows, make):
    fenced(dataset.table(NAME), make("a", [1, 2]))
    old = dataset.table(NAME)
    fenced(dataset.table(NAME), make("b", [1]), RowKeys(("id",), [(rows.id(1),)]))
    with pytest.raises(CommitConflictError):
        fenced(old, make("c", [3]))
    assert units(dataset) == ["a", "b"]


def test_a_config_update_neither_refuses_nor_is_refused(dataset, make):
    old = dataset.table(NAME)
    assert _record(dataset.table(NAME), {"k": "1"})
    fenced(old, make("a", [1]))
    assert _record(old, {"other": "1"})
    assert units(dataset) == ["a"]


def test_of_two_config_updates_of_one_key_one_is_refused(dataset, make):
    first, second = dataset.table(NAME), dataset.table(NAME)
    assert _record(first, {"k": "1"})
    assert not _record(second, {"k": "2"})
    assert dataset.table(NAME).config()["k"] == "1"


def test_a_plain_append_is_not_refused(dataset, rows, make):
    """The reason for the fence. Should Lance begin to refuse it, the sentinel row could go."""
    old = dataset.table(NAME)
    fence(dataset, NAME)
    lance.write_dataset(rows.outcomes("a", [1]), old, mode="append")
    assert units(dataset) == ["a"]


def test_committing_a_fragment_twice_doubles_its_rows(dataset, make):
    """The reason to look which units are there after an uncertain commit."""
    fragments = make("a", [1])
    fenced(dataset.table(NAME), fragments)
    fenced(dataset.table(NAME), fragments)
    assert units(dataset) == ["a", "a"]


def test_rows_are_replaced_in_one_version(dataset, rows, make):
    fenced(dataset.table(NAME), make("a", [1, 2]))
    fenced(dataset.table(NAME), make("b", [3]))
    version = dataset.table(NAME).version
    keys = RowKeys(("id", "unit_id"), [(rows.id(1), "a"), (rows.id(3), "b"), (rows.id(2), "not this one")])
    fenced(dataset.table(NAME), make("c", [1, 3]), keys, {"units": "c"})
    table = dataset.table(NAME)
    assert table.version == version + 1
    assert units(dataset) == ["a", "c", "c"]
    assert table.read_transaction(table.version).transaction_properties["units"] == "c"


def test_all_rows_but_the_sentinel_can_go(dataset, make):
    fenced(dataset.table(NAME), make("a", [1, 2]))
    fenced(dataset.table(NAME), make("b", [3]))
    fenced(dataset.table(NAME), make("c", [4]), ALL_ROWS)
    assert units(dataset) == ["c"]
    assert dataset.table(NAME).count_rows() == 2
    old = dataset.table(NAME)
    fence(dataset, NAME)
    with pytest.raises(CommitConflictError):
        fenced(old)


def test_a_wrong_version_hint_does_not_matter(dataset, make):
    """Lance keeps a hint of the newest version, which a paused process may write late; the lease is read past it."""
    for unit in "abc":
        fenced(dataset.table(NAME), make(unit, [1]))
    hint = Path(dataset.uri(NAME), "_versions", "latest_version_hint.json")
    for text in ('{"version":1}', '{"version":2}', '{"version":99}', "", "x"):
        hint.write_text(text)
        assert units(dataset) == ["a", "b", "c"]


def test_a_fragment_file_that_is_gone_is_taken_all_the_same(dataset, make):
    """The reason to look for the files before completing what a crash cut off."""
    fragments = make("a", [1])
    Path(dataset.uri(NAME), "data", json.loads(fragments[0])["files"][0]["path"]).unlink()
    fenced(dataset.table(NAME), fragments)
    with pytest.raises((OSError, ValueError)):
        dataset.read(NAME, ["unit_id"])
