"""Cleaning removes what nothing refers to, and nothing else."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from schemas.layout import outcomes_name
from vidpipe.store import create
from vidpipe.store.clean import clean
from vidpipe.store.commit import Committer, StagedUnit
from vidpipe.store.lease import Lease, LeaseConfig, LeaseHeld
from vidpipe.store.write import write_fragments

NAME = outcomes_name("encode")
NOW = datetime.timedelta(0)
PATIENT = LeaseConfig(lease_seconds=10, beat_seconds=0.1)


@pytest.fixture
def worked(dataset, rows):
    """Ten commits, the fifth tagged, and a fragment that was never committed."""
    with Lease.acquire(dataset, "encode") as lease:
        committer = Committer(dataset, "encode", lease)
        for n in range(10):
            fragments = {rows.table: write_fragments(dataset.root, rows.table, rows.latents(f"u{n}", [n]))}
            committer.commit(
                [StagedUnit(unit_id=f"u{n}", fragments=fragments, rows={NAME: rows.outcomes(f"u{n}", [n])})]
            )
            if n == 4:
                table = dataset.table(rows.table)
                table.tags.create("run-1", table.version)
    write_fragments(dataset.root, rows.table, rows.latents("lost", [99]))
    return dataset


def payload_files(dataset, rows) -> int:
    return len(list(Path(dataset.uri(rows.table)).rglob("*.blob")))


def test_old_versions_go_and_tagged_ones_stay(worked, rows):
    before = worked.read(rows.table, ["latent_id"])
    found = {c.name: c for c in clean(worked, older_than=NOW)}
    table = worked.table(rows.table)
    assert sorted(v["version"] for v in table.version_refs()) == [table.tags.get_version("run-1"), table.version]
    assert found[rows.table].num_versions > 5
    assert found[rows.table].size_bytes > 0
    assert worked.read(rows.table, ["latent_id"]).equals(before)
    assert worked.read(rows.table, ["latent_id"], version="run-1").num_rows == 5
    assert payload_files(worked, rows) == 12  # sentinel, ten units, and the one that a worker may yet hand in


def test_a_young_version_stays(worked, rows):
    num = len(worked.table(rows.table).version_refs())
    clean(worked)
    assert len(worked.table(rows.table).version_refs()) == num


def test_abandoned_files_go_under_the_lease(worked, rows):
    worked.files.write(".tmp-x", b"1")
    (Path(worked.root) / f"{create.TEMPORARY}1").mkdir()
    (Path(worked.root) / f"{create.TEMPORARY}1" / "file").write_bytes(b"123")
    (Path(worked.uri(rows.table)) / "data" / ".tmpAbC").write_bytes(b"12")
    for path in (".tmp-x", f"{create.TEMPORARY}1", f"{rows.table}.lance/data/.tmpAbC"):
        old = time.time() - 7200
        os.utime(Path(worked.root) / path, (old, old))
    (Path(worked.root) / f"{create.TEMPORARY}2").mkdir()  # young: someone is creating a table
    told = clean(worked, older_than=NOW, abandoned=True, dry_run=True)
    assert payload_files(worked, rows) == 12
    done = clean(worked, older_than=NOW, abandoned=True, lease=PATIENT)
    assert [c.name for c in told] == [c.name for c in done]
    assert payload_files(worked, rows) == 11
    hidden = [p.name for p in Path(worked.root).rglob(".*")]
    assert hidden == [f"{create.TEMPORARY}2"]
    assert worked.read(rows.table, ["latent"]).num_rows == 10


def test_abandoned_files_stay_while_a_stage_runs(worked, rows):
    with Lease.acquire(worked, "encode", PATIENT), pytest.raises(LeaseHeld, match="stage encode"):
        clean(worked, older_than=NOW, abandoned=True, lease=PATIENT)
    assert payload_files(worked, rows) == 12


def test_nothing_is_removed_by_a_dry_run(worked, rows):
    files = sorted(Path(worked.root).rglob("*"))
    told = clean(worked, older_than=NOW, dry_run=True)
    assert sum(c.num_versions for c in told) > 10
    assert sorted(Path(worked.root).rglob("*")) == files


def test_what_a_killed_writer_leaves_goes(dataset, rows):
    code = f"""
import numpy as np, pyarrow as pa, sys
from vidpipe.store.write import write_fragments
data = [np.random.default_rng(0).bytes(4 << 20)] * 60
n = len(data)
ids = pa.array([i.to_bytes(16, "big") for i in range(n)], pa.binary(16))
table = pa.table({{"latent_id": ids, "clip_id": ids, "latent_crc32": pa.array([0] * n, pa.uint32()),
    "latent": pa.array(data, pa.large_binary()), "fingerprint": ["f"] * n, "unit_id": ["u"] * n}})
print("writing", flush=True)
write_fragments(sys.argv[1], "{rows.table}", table)
"""
    process = subprocess.Popen([sys.executable, "-c", code, dataset.root], stdout=subprocess.PIPE)
    data = Path(dataset.uri(rows.table)) / "data"
    deadline = time.monotonic() + 60
    while not list(data.rglob(".tmp*")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.005)
    process.kill()
    process.communicate()
    left = list(data.rglob(".tmp*"))
    assert left
    for path in left:
        os.utime(path, (0, 0))
    clean(dataset, older_than=NOW, abandoned=True)
    assert not list(data.rglob(".tmp*"))
    assert payload_files(dataset, rows) == 1
