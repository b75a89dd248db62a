"""Fragments are unseen until they are committed, and rows that do not fit their table are refused."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pyarrow as pa
import pytest

from schemas.errors import SchemaMismatch
from schemas.tables import OUTCOMES
from vidpipe.store.fence import fenced
from vidpipe.store.write import conform, write_fragments, written_rows


def test_fragments_are_small_messages_and_unseen(dataset, rows):
    texts = write_fragments(dataset.root, rows.table, rows.latents("a", range(100)))
    assert len(texts) == 1
    assert len(texts[0]) < 600
    assert dataset.read(rows.table).num_rows == 0
    assert write_fragments(dataset.root, rows.table, rows.latents("a", [])) == []


def test_fragments_can_be_read_before_they_are_committed(dataset, rows):
    dataset.ensure("outcomes/s", OUTCOMES)
    texts = write_fragments(dataset.root, "outcomes/s", rows.outcomes("a", range(100)))
    keys = written_rows(dataset, "outcomes/s", texts, ["unit_id", "id"])
    assert keys["id"].to_pylist() == [rows.id(n) for n in range(100)]


@pytest.mark.parametrize("num_bytes", [1, 1000, 100_000, 5_000_000])
def test_payloads_of_any_size_are_packed_and_come_back(dataset, rows, num_bytes):
    payloads = [np.random.default_rng(i).bytes(num_bytes) for i in range(3)]
    table = rows.latents("a", range(3))
    table = table.set_column(
        table.column_names.index("latent"), "latent", pa.chunked_array([payloads[:1], payloads[1:]])
    )
    fenced(dataset.table(rows.table), write_fragments(dataset.root, rows.table, table))
    found = dataset.read(rows.table, ["latent"])["latent"].to_pylist()
    assert [zlib.crc32(p) for p in found] == [zlib.crc32(p) for p in payloads]
    described = dataset.table(rows.table).to_table(columns=["latent"])["latent"].to_pylist()
    assert [d["kind"] for d in described] == [1] * 4  # all packed, the sentinel too: what fast readers rely on


def test_columns_may_come_in_any_order_and_nullable_ones_not_at_all(dataset, rows):
    schema = dataset.table(rows.table).schema
    table = rows.latents("a", [1])
    made = conform(table.select(list(reversed(table.column_names))), schema, "t")
    assert made.schema.names == schema.names
    assert made["fps"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.append_column("x", pa.array([1])), "unknown column 'x'"),
        (lambda t: t.drop_columns(["clip_id"]), "column 'clip_id' is missing"),
        (lambda t: t.set_column(0, "latent_id", pa.nulls(1, pa.binary(16))), "1 nulls in column 'latent_id'"),
        (lambda t: t.set_column(0, "latent_id", pa.array([b"short"])), "'latent_id' is binary, expected"),
        (lambda t: t.append_column("fps", pa.array(["fast"])), "'fps' is string, expected double"),
        (lambda t: t.set_column(3, "latent", pa.array([b""], pa.large_binary())), "an empty value in blob column"),
        (lambda t: t.set_column(3, "latent", pa.nulls(1, pa.large_binary())), "1 nulls in column 'latent'"),
    ],
)
def test_rows_that_do_not_fit_are_refused(dataset, rows, change, message):
    with pytest.raises(SchemaMismatch, match=message) as error:
        write_fragments(dataset.root, rows.table, change(rows.latents("a", [1])))
    assert f"table {rows.table} of {dataset.root}" in str(error.value)


def test_the_message_survives_json(dataset, rows):
    [text] = write_fragments(dataset.root, rows.table, rows.latents("a", [1, 2]))
    assert json.loads(text)["physical_rows"] == 2
