"""Verification finds what was broken on purpose, and nothing in a sound dataset."""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from schemas.columns import SCHEMA_VERSION, VERSION_KEY
from schemas.latent_spaces import METADATA_KEY, LatentSpace
from schemas.layout import outcomes_name
from schemas.tables import CLIPS, LATENTS, OUTCOMES, VIDEOS
from vidpipe.cli import main
from vidpipe.store.commit import Committer, StagedUnit
from vidpipe.store.dataset import Dataset
from vidpipe.store.fence import RowKeys, fenced
from vidpipe.store.lease import Lease
from vidpipe.store.verify import Quarantined, read_quarantine, verify, write_quarantine
from vidpipe.store.write import write_fragments

NAME = outcomes_name("encode")
SPACE = LatentSpace(
    name="toy", vae="dct", revision="1", channels=1, stride_t=1, stride_h=8, stride_w=8, mean=(0.0,), std=(1.0,)
)


def clip_rows(rows, numbers):
    num = len(numbers)
    ids = pa.array([rows.id(n) for n in numbers], pa.binary(16))
    return pa.table({"clip_id": ids, "video_id": ids, "fingerprint": ["f"] * num, "unit_id": ["c"] * num})


def add(dataset, name, table):
    fenced(dataset.table(name), write_fragments(dataset.root, name, table))


@pytest.fixture
def worked(dataset, rows):
    """Thirty latents in three fragments, their outcomes, clips and videos."""
    dataset.ensure("clips", CLIPS)
    dataset.ensure("videos", VIDEOS)
    add(dataset, "clips", clip_rows(rows, range(30)))
    add(dataset, "videos", clip_rows(rows, range(30)).drop_columns(["clip_id"]))
    with Lease.acquire(dataset, "encode") as lease:
        for n in range(3):
            numbers = range(10 * n, 10 * n + 10)
            fragments = {rows.table: write_fragments(dataset.root, rows.table, rows.latents(f"u{n}", numbers))}
            unit = StagedUnit(unit_id=f"u{n}", fragments=fragments, rows={NAME: rows.outcomes(f"u{n}", numbers)})
            Committer(dataset, "encode", lease).commit([unit])
    return dataset


def kinds(found):
    return sorted((p.kind, p.table, p.count) for p in found.problems)


def payload_file(dataset, rows, number: int) -> Path:
    """Of the unit that holds this row: its payloads are `latent N` one after another."""
    text = f"latent {number}".encode()
    [path] = [p for p in Path(dataset.uri(rows.table)).rglob("*.blob") if text in p.read_bytes()]
    return path


def test_a_sound_dataset(worked, rows):
    seen = []
    found = verify(worked, progress=lambda *args: seen.append(args))
    assert (found.problems, found.quarantined) == ([], [])
    assert found.num_payloads == 30
    assert found.payload_bytes == sum(len(f"latent {n}") for n in range(30))
    assert seen == [(rows.table, n, 4) for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("processes", [1, 2])
def test_changed_and_cut_payload_is_found_and_quarantined(worked, rows, processes):
    changed = payload_file(worked, rows, 3)
    changed.write_bytes(changed.read_bytes().replace(b"latent 3", b"lament 3"))
    cut = payload_file(worked, rows, 29)
    cut.write_bytes(cut.read_bytes()[:-12])
    found = verify(worked, processes=processes)
    assert kinds(found) == [("payload", rows.table, 3)]
    assert [row.key for row in found.quarantined] == [rows.id(n).hex() for n in (3, 28, 29)]
    assert "crc32 is" in found.quarantined[0].reason
    assert "cannot be read" in found.quarantined[2].reason
    table = worked.table(rows.table)
    ids = [row.row_id for row in found.quarantined]
    keys = table.scanner(columns=["latent_id"], with_row_id=True, filter=f"_rowid IN ({ids[0]}, {ids[2]})").to_table()
    assert keys["latent_id"].to_pylist() == [rows.id(3), rows.id(29)]
    assert {row.version for row in found.quarantined} == {table.version}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_values_that_are_not_finite_are_quarantined_though_their_checksum_is_right(tmp_path, rows, dtype):
    """As the trainer lists them: a verification must not make the next run train on them."""
    made = Dataset(tmp_path / "other").create()
    made.ensure(rows.table, LATENTS, {METADATA_KEY: dataclasses.replace(SPACE, dtype=dtype).to_json().encode()})
    values = np.ones((4, 6), np.float32)
    values[1, 2], values[3, 5] = np.nan, -np.inf
    words = values.view(np.uint32) if dtype == "float32" else (values.view(np.uint32) >> 16).astype(np.uint16)
    payloads = [row.tobytes() for row in words]
    table = rows.latents("u", range(4))
    crcs = pa.array([zlib.crc32(p) for p in payloads], pa.uint32())
    table = table.set_column(table.schema.get_field_index("latent"), "latent", pa.array(payloads, pa.large_binary()))
    table = table.set_column(table.schema.get_field_index("latent_crc32"), "latent_crc32", crcs)
    add(made, rows.table, table)
    found = verify(made, processes=1)
    assert [(row.key, row.reason) for row in found.quarantined] == [
        (rows.id(n).hex(), "latent: values that are not finite") for n in (1, 3)
    ]


def test_a_table_of_another_tool_is_checked_as_far_as_it_tells(dataset, rows):
    """No key is named: payloads are still read, and nothing is said of keys."""
    name = "latents/other/1x8x8"
    columns = {
        "unit_id": pa.array(["u"]),
        "latent_crc32": pa.array([7], pa.uint32()),
        "latent": lance.blob_array([b"x"]),
    }
    fields = [pa.field(n, column.type) for n, column in columns.items()]
    schema = pa.schema(fields, metadata={VERSION_KEY: str(SCHEMA_VERSION).encode()})
    table = pa.Table.from_arrays(list(columns.values()), schema=schema)
    lance.write_dataset(table, dataset.uri(name), data_storage_version="2.2", enable_stable_row_ids=True)
    found = verify(dataset, [name], processes=1)
    assert [(row.key, row.reason) for row in found.quarantined] == [
        ("", "latent: crc32 is 8cdc1683, expected 00000007")
    ]


def test_a_lost_payload_file_is_found(worked, rows):
    payload_file(worked, rows, 15).unlink()
    found = verify(worked, processes=1)
    assert [row.key for row in found.quarantined] == [rows.id(n).hex() for n in range(10, 20)]
    assert verify(worked, payloads=False).problems == []


def test_rows_twice_are_found(worked, rows):
    add(worked, rows.table, rows.latents("u0", [5]))
    add(worked, NAME, rows.outcomes("u1", [15, 16]))
    found = verify(worked, payloads=False)
    assert kinds(found) == [("duplicate_key", rows.table, 1), ("duplicate_key", NAME, 2)]
    assert rows.id(5).hex() in found.problems[0].message
    add(worked, NAME, rows.outcomes("u1", [20], item="other"))  # other items and fingerprints are no duplicates
    add(worked, NAME, rows.outcomes("u1", [20], fingerprint="f2"))
    assert len(verify(worked, payloads=False).problems) == 2


def test_units_without_outcomes_and_without_rows_are_found(worked, rows):
    add(worked, rows.table, rows.latents("new", [30]))
    add(worked, "clips", clip_rows(rows, [30]))
    add(worked, "videos", clip_rows(rows, [30]).drop_columns(["clip_id"]))
    add(worked, NAME, rows.outcomes("gone", [31]))
    add(worked, NAME, rows.outcomes("none", [32], "failed"))
    found = verify(worked, payloads=False)
    assert kinds(found) == [("no_outcome", rows.table, 1), ("no_row", NAME, 1)]
    assert "the next run of encode adds them): new" in found.problems[0].message


def test_dangling_references_are_found(worked, rows):
    keys = RowKeys(("clip_id",), [(rows.id(7),)])
    fenced(worked.table("clips"), [], keys)
    found = verify(worked, payloads=False)
    assert kinds(found) == [("dangling", rows.table, 1)]
    assert found.problems[0].message == f"1 values of clip_id that clips does not have: {rows.id(7).hex()}"


def test_only_the_tables_asked_for_are_checked(worked, rows):
    add(worked, NAME, rows.outcomes("u1", [15]))
    assert verify(worked, ["clips", rows.table], processes=1).problems == []


def test_the_quarantine_keeps_other_tables(dataset):
    def row(table: str, number: int) -> Quarantined:
        return Quarantined(table=table, version=3, row_id=number, key=f"{number:032x}", reason="latent: bad")

    assert read_quarantine(dataset) == []
    write_quarantine(dataset, [row("a", 1), row("b", 2)], ["a", "b"])
    write_quarantine(dataset, [row("a", 3)], ["a"])
    assert read_quarantine(dataset) == [row("b", 2), row("a", 3)]
    write_quarantine(dataset, [], ["a", "b"])
    assert read_quarantine(dataset) == []


def test_a_table_without_rows(dataset):
    dataset.ensure("outcomes/s", OUTCOMES)
    assert verify(dataset, processes=1).problems == []


@pytest.mark.parametrize("lost", ["data", "_versions"])
def test_a_table_that_cannot_be_read_is_one_problem_and_the_others_are_checked(worked, rows, lost):
    for path in Path(worked.uri("clips"), lost).iterdir():
        if path.suffix in (".lance", ".manifest"):
            path.write_bytes(path.read_bytes()[:10])
    payload_file(worked, rows, 12).unlink()
    found = verify(Dataset(worked.root), processes=1)
    assert kinds(found) == [("payload", rows.table, 10), ("unreadable", "clips", 1)]
    assert "cannot be read" in found.problems[0].message


@pytest.mark.parametrize("command", ["status", "verify", "report", "query", "lineage", "plan-buckets"])
def test_commands_say_in_a_line_that_a_table_is_damaged(worked, command):
    for path in Path(worked.uri("clips"), "data").iterdir():
        path.write_bytes(path.read_bytes()[:10])
    extra = {"query": ["SELECT * FROM clips"], "lineage": ["00"]}.get(command, [])
    result = CliRunner().invoke(main, [command, worked.root, *extra])
    if command == "verify":
        assert result.exit_code == 1 and "clips: unreadable: cannot be read" in result.stdout
    else:
        assert result.exit_code == 2 and result.stderr.startswith("vidpipe: "), result.output
        assert len(result.stderr.splitlines()) == 1 and "Lance" in result.stderr, result.stderr


def test_the_quarantine_of_what_was_not_read_stays(worked):
    row = Quarantined(table="clips", version=1, row_id=1, key="ab", reason="known")
    write_quarantine(worked, [row], [])
    result = CliRunner().invoke(main, ["verify", worked.root, "--quarantine", "--no-payloads"])
    assert result.exit_code == 2 and "leave --no-payloads out" in result.stderr
    for path in Path(worked.uri("clips"), "data").iterdir():
        path.write_bytes(b"")
    assert CliRunner().invoke(main, ["verify", worked.root, "--quarantine"]).exit_code == 1
    assert read_quarantine(worked) == [row]
