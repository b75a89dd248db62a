"""Units become visible once, data before outcomes, and a coordinator that lost its lease commits nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from schemas.layout import outcomes_name
from schemas.tables import LATENTS
from vidpipe.store import failpoints
from vidpipe.store.commit import Committer, StagedUnit
from vidpipe.store.fence import fence
from vidpipe.store.lease import Lease, LeaseConfig, LeaseLost
from vidpipe.store.reconcile import KeptRows, reconcile
from vidpipe.store.write import write_fragments

STAGE = "encode"
OUTCOMES_NAME = outcomes_name(STAGE)


@pytest.fixture
def committer(dataset):
    with Lease.acquire(dataset, STAGE) as lease:
        yield Committer(dataset, STAGE, lease)


def staged(dataset, rows, unit, numbers, rejected=(), **kwargs):
    fragments = {rows.table: write_fragments(dataset.root, rows.table, rows.latents(unit, numbers))}
    outcomes = [rows.outcomes(unit, numbers), rows.outcomes(unit, rejected, "rejected")]
    texts = [t for table in outcomes for t in write_fragments(dataset.root, OUTCOMES_NAME, table)]
    return StagedUnit(unit_id=unit, fragments={**fragments, OUTCOMES_NAME: texts}, fingerprint="f1", **kwargs)


def ids(dataset, rows, name, column):
    return sorted(int.from_bytes(v, "big") for v in dataset.read(name, [column])[column].to_pylist())


def test_commit_makes_units_visible(dataset, rows, committer):
    units = [staged(dataset, rows, "a", [1, 2], rejected=[3]), staged(dataset, rows, "b", [4])]
    assert dataset.read(rows.table).num_rows == 0
    committer.commit(units)
    assert ids(dataset, rows, rows.table, "latent_id") == [1, 2, 4]
    assert ids(dataset, rows, OUTCOMES_NAME, "id") == [1, 2, 3, 4]
    assert dataset.read(rows.table, ["latent"])["latent"].to_pylist() == [b"latent 1", b"latent 2", b"latent 4"]


def test_units_already_there_are_skipped(dataset, rows, committer):
    committer.commit([staged(dataset, rows, "a", [1, 2])])
    committer.commit([staged(dataset, rows, "a", [1, 2]), staged(dataset, rows, "b", [3])])
    fresh = Committer(dataset, STAGE, committer.lease)  # remembers nothing: has to look
    fresh.commit([staged(dataset, rows, "b", [3]), staged(dataset, rows, "c", [4])])
    assert ids(dataset, rows, rows.table, "latent_id") == [1, 2, 3, 4]
    assert ids(dataset, rows, OUTCOMES_NAME, "id") == [1, 2, 3, 4]


def test_rows_written_by_the_committer_share_a_fragment(dataset, rows, committer):
    units = [
        StagedUnit(unit_id=f"u{i}", rows={OUTCOMES_NAME: rows.outcomes(f"u{i}", [i], "failed")}) for i in range(20)
    ]
    committer.commit(units)
    assert len(dataset.table(OUTCOMES_NAME).get_fragments()) == 2  # the sentinel's and one for all
    assert ids(dataset, rows, OUTCOMES_NAME, "id") == list(range(20))


def test_replaced_outcomes_go_in_the_same_commit(dataset, rows, committer):
    committer.commit([staged(dataset, rows, "a", [1], rejected=[2, 3])])
    other = StagedUnit(unit_id="x", rows={OUTCOMES_NAME: rows.outcomes("x", [2], "rejected", fingerprint="f2")})
    committer.commit([other])
    before = dataset.table(OUTCOMES_NAME).version
    committer.commit([staged(dataset, rows, "b", [2], replaces=[(rows.id(2), "")])])
    assert dataset.table(OUTCOMES_NAME).version == before + 1
    found = dataset.read(OUTCOMES_NAME, ["id", "status", "fingerprint"]).to_pylist()
    seen = sorted((int.from_bytes(r["id"], "big"), r["status"], r["fingerprint"]) for r in found)
    assert seen == [(1, "kept", "f1"), (2, "kept", "f1"), (2, "rejected", "f2"), (3, "rejected", "f1")]


def test_replaced_data_rows_go_in_the_same_commit(dataset, rows, committer):
    committer.commit([staged(dataset, rows, "a", [1, 2])])
    before = dataset.table(rows.table).version
    committer.commit(
        [staged(dataset, rows, "b", [2], replaces_rows={rows.table: [rows.id(2)]}, replaces=[(rows.id(2), "")])]
    )
    assert dataset.table(rows.table).version == before + 1
    assert ids(dataset, rows, rows.table, "latent_id") == [1, 2]
    assert sorted(dataset.read(rows.table, ["unit_id"])["unit_id"].to_pylist()) == ["a", "b"]


def test_replacing_a_whole_fragment(dataset, rows, committer):
    committer.commit([staged(dataset, rows, "a", [1])])
    committer.commit(
        [staged(dataset, rows, "b", [1], replaces_rows={rows.table: [rows.id(1)]}, replaces=[(rows.id(1), "")])]
    )
    assert dataset.read(rows.table, ["unit_id"])["unit_id"].to_pylist() == ["b"]
    assert dataset.read(OUTCOMES_NAME, ["unit_id"])["unit_id"].to_pylist() == ["b"]


def cut_off(dataset, rows, committer, monkeypatch):
    """Commit unit `b` = row 4, then `a` = rows 1, 2, with 3 rejected, failing between data and outcomes."""
    committer.commit([staged(dataset, rows, "b", [4])])
    monkeypatch.setattr(failpoints, "_plan", {"commit:between-data-and-outcomes": [(1, "raise")]})
    monkeypatch.setattr(failpoints, "_passes", {})
    with pytest.raises(OSError, match="failpoint"):
        committer.commit([staged(dataset, rows, "a", [1, 2], rejected=[3])])
    assert ids(dataset, rows, rows.table, "latent_id") == [1, 2, 4]
    assert ids(dataset, rows, OUTCOMES_NAME, "id") == [4]


def restarted(dataset, rows, committer):
    tables = {
        rows.table: KeptRows(id_column="clip_id", item="1x8x8"),
        "latents/toy/absent": KeptRows(id_column="clip_id"),
    }
    return Committer(dataset, STAGE, committer.lease), tables


def outcomes_of(dataset):
    found = dataset.read(OUTCOMES_NAME, ["id", "item", "status", "unit_id", "fingerprint"]).to_pylist()
    assert {r["fingerprint"] for r in found} == {"f1"}
    return sorted((int.from_bytes(r["id"], "big"), r["item"], r["status"], r["unit_id"]) for r in found)


WHOLE = [(1, "", "kept", "a"), (2, "", "kept", "a"), (3, "", "rejected", "a"), (4, "", "kept", "b")]


def test_reconcile_completes_with_the_staged_outcomes(dataset, rows, committer, monkeypatch):
    cut_off(dataset, rows, committer, monkeypatch)
    fresh, tables = restarted(dataset, rows, committer)
    fence(dataset, rows.table)  # as a takeover makes it: commits that name no outcomes come after the cut-off one
    assert reconcile(fresh, tables) == 1
    assert outcomes_of(dataset) == WHOLE
    assert reconcile(fresh, tables) == 0


def test_staged_outcomes_take_the_place_of_what_came_meanwhile(dataset, rows, committer, monkeypatch):
    cut_off(dataset, rows, committer, monkeypatch)
    fresh, tables = restarted(dataset, rows, committer)
    fresh.commit([StagedUnit(unit_id="m", rows={OUTCOMES_NAME: rows.outcomes("m", [1, 2])})])
    assert reconcile(fresh, tables) == 1
    assert outcomes_of(dataset) == WHOLE


def test_the_next_commit_completes_what_a_failed_one_began(dataset, rows, committer, monkeypatch):
    cut_off(dataset, rows, committer, monkeypatch)
    committer.commit([staged(dataset, rows, "c", [5])])
    assert outcomes_of(dataset) == [*WHOLE, (5, "", "kept", "c")]


def test_reconcile_derives_outcomes_when_the_staged_ones_are_gone(dataset, rows, committer, monkeypatch):
    cut_off(dataset, rows, committer, monkeypatch)
    fresh, tables = restarted(dataset, rows, committer)
    referenced = {f.path for fragment in dataset.table(OUTCOMES_NAME).get_fragments() for f in fragment.data_files()}
    for file in Path(dataset.uri(OUTCOMES_NAME), "data").iterdir():
        if file.name not in referenced:
            file.unlink()
    assert reconcile(fresh, tables) == 1
    assert outcomes_of(dataset) == [(1, "1x8x8", "kept", "a"), (2, "1x8x8", "kept", "a"), (4, "", "kept", "b")]
    assert reconcile(fresh, tables) == 0


@pytest.mark.parametrize("number", [1, 2, 3], ids=["first table", "second table", "outcomes"])
def test_a_commit_that_succeeds_and_reports_an_error_is_not_repeated(dataset, rows, committer, monkeypatch, number):
    other = "latents/toy/2x8x8"
    dataset.ensure(other, LATENTS, rows.metadata)
    units = [staged(dataset, rows, "a", [1]), staged(dataset, rows, "b", [2])]
    there = {other: write_fragments(dataset.root, other, rows.latents("b", [2]))}
    units[1] = dataclasses.replace(units[1], fragments={**there, OUTCOMES_NAME: units[1].fragments[OUTCOMES_NAME]})
    monkeypatch.setattr(failpoints, "_plan", {"commit:committed": [(number, "raise")]})
    monkeypatch.setattr(failpoints, "_passes", {})
    committer.commit(units)
    assert failpoints._passes == {"commit:committed": 4}
    assert ids(dataset, rows, rows.table, "latent_id") == [1]
    assert ids(dataset, rows, other, "latent_id") == [2]
    assert ids(dataset, rows, OUTCOMES_NAME, "id") == [1, 2]


def test_a_unit_may_replace_everything(dataset, rows, committer):
    committer.commit([staged(dataset, rows, f"u{i}", [i]) for i in range(5)])
    version = dataset.table(rows.table).version
    committer.commit([staged(dataset, rows, "all", [7, 8], replaces_all=True)])
    assert dataset.table(rows.table).version == version + 1
    assert ids(dataset, rows, rows.table, "latent_id") == [7, 8]
    assert outcomes_of(dataset) == [(7, "", "kept", "all"), (8, "", "kept", "all")]
    assert dataset.table(rows.table).count_rows() == 3  # the sentinel stays


def test_more_keys_than_fit_a_filter_are_replaced(dataset, rows, committer):
    many = range(6000)
    committer.commit(
        [StagedUnit(unit_id="a", rows={OUTCOMES_NAME: rows.outcomes("a", many, "rejected")}, fingerprint="f1")]
    )
    again = StagedUnit(
        unit_id="b",
        rows={OUTCOMES_NAME: rows.outcomes("b", many, "failed")},
        fingerprint="f1",
        replaces=[(rows.id(n), "") for n in many],
    )
    committer.commit([again])
    found = dataset.read(OUTCOMES_NAME, ["status"])["status"].value_counts().to_pylist()
    assert found == [{"values": "failed", "counts": 6000}]


def test_a_unit_needs_an_id_and_outcomes(dataset, rows):
    with pytest.raises(ValueError, match="needs an id"):
        StagedUnit(unit_id="", rows={OUTCOMES_NAME: rows.outcomes("", [1])})
    with pytest.raises(ValueError, match="has no outcomes"):
        StagedUnit(unit_id="a", rows={rows.table: rows.latents("a", [1])})


def test_a_coordinator_that_lost_its_lease_commits_nothing(dataset, rows):
    old = Lease.acquire(dataset, STAGE)
    committer = Committer(dataset, STAGE, old)
    committer.commit([staged(dataset, rows, "a", [1])])
    old._beat.stop()  # silent, as a paused process is
    new = Lease.acquire(dataset, STAGE, LeaseConfig(lease_seconds=0.4, beat_seconds=0.1))
    assert new.epoch == old.epoch + 1
    with pytest.raises(LeaseLost, match="another one took over"):
        committer.commit([staged(dataset, rows, "b", [2])])
    assert ids(dataset, rows, rows.table, "latent_id") == [1]
    Committer(dataset, STAGE, new).commit([staged(dataset, rows, "b", [2])])
    assert ids(dataset, rows, rows.table, "latent_id") == [1, 2]
    new.release()
