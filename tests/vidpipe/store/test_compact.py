"""Small fragments are merged while units are committed; rows, row ids and the fence stay."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest
from lance.commit import CommitConflictError

from schemas.layout import outcomes_name
from vidpipe.store import commit, compact
from vidpipe.store.commit import Committer, StagedUnit
from vidpipe.store.fence import fenced
from vidpipe.store.lease import Lease

NAME = outcomes_name("encode")


@pytest.fixture
def committer(dataset, monkeypatch):
    monkeypatch.setattr(commit, "_COMMITS_BETWEEN_MERGES", 8)
    monkeypatch.setattr(compact, "TIERS_ROWS", (8, 64))
    monkeypatch.setattr(compact, "MOST_PER_TIER", 10)
    with Lease.acquire(dataset, "encode") as lease:
        yield Committer(dataset, "encode", lease)


def commit_rows(committer, rows, numbers):
    for n in numbers:
        committer.commit([StagedUnit(unit_id=f"u{n}", rows={NAME: rows.outcomes(f"u{n}", [n])})])


def row_ids(table):
    seen = table.scanner(columns=["unit_id"], with_row_id=True).to_table()
    return dict(zip(seen["unit_id"].to_pylist(), seen["_rowid"].to_pylist()))


def test_fragments_stay_few_and_rows_the_same(dataset, rows, committer):
    commit_rows(committer, rows, range(20))
    before = row_ids(dataset.table(NAME))
    commit_rows(committer, rows, range(20, 200))
    table = dataset.table(NAME)
    assert len(table.get_fragments()) <= 1 + 10 + 8 + 10 + 200 // 64 + 1
    after = row_ids(table)
    assert sorted(after) == sorted(["", *(f"u{n}" for n in range(200))])
    assert {unit: after[unit] for unit in before} == before
    assert next(iter(table.fragment_ids())) == 0
    assert table.get_fragment(0).count_rows() == 1


def test_merging_drops_replaced_rows(dataset, rows, committer):
    commit_rows(committer, rows, range(60))
    for n in range(60):
        again = StagedUnit(
            unit_id=f"v{n}", rows={NAME: rows.outcomes(f"v{n}", [n])}, fingerprint="f1", replaces=[(rows.id(n), "")]
        )
        committer.commit([again])
    found = dataset.read(NAME, ["id", "unit_id"]).sort_by("id")
    assert found["id"].to_pylist() == [rows.id(n) for n in range(60)]
    assert found["unit_id"].to_pylist() == [f"v{n}" for n in range(60)]


def test_a_commit_planned_before_the_merge_is_refused_when_fenced(dataset, rows, committer):
    commit_rows(committer, rows, range(30))
    stale = dataset.table(NAME)
    fenced(dataset.table(NAME))
    table = dataset.table(NAME)
    assert compact.compact(table)
    with pytest.raises(CommitConflictError):
        fenced(stale)


def test_tables_with_payload_are_left_alone(dataset, rows, committer):
    table = dataset.table(rows.table)
    assert compact.has_blobs(table)
    assert not compact.compact(table)


def test_plain_tables_are_not_taken_for_payload(tmp_path):
    table = lance.write_dataset(pa.table({"x": [1]}), str(tmp_path / "t.lance"))
    assert not compact.has_blobs(table)
