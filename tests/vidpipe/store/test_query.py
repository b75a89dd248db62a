"""DuckDB over the tables: one view each, without sentinel and payload."""

from __future__ import annotations

import pytest

from schemas.layout import outcomes_name
from schemas.tables import CLIPS
from vidpipe.store.fence import fenced
from vidpipe.store.query import plain_columns
from vidpipe.store.write import write_fragments

NAME = outcomes_name("encode")


@pytest.fixture
def filled(dataset, rows):
    from schemas.tables import OUTCOMES

    dataset.ensure(NAME, OUTCOMES)
    dataset.ensure("clips", CLIPS)
    fenced(dataset.table(rows.table), write_fragments(dataset.root, rows.table, rows.latents("a", [1, 2, 3])))
    fenced(dataset.table(NAME), write_fragments(dataset.root, NAME, rows.outcomes("a", [1, 2])))
    return dataset


def test_views_are_named_as_the_tables_and_hide_the_sentinel(filled, rows):
    con = filled.connect()
    assert con.execute('SELECT count(*) FROM "latents/toy/1x8x8"').fetchone() == (3,)
    assert con.execute("SELECT count(*) FROM clips").fetchone() == (0,)
    joined = f'SELECT clip_id FROM "{rows.table}" WHERE clip_id NOT IN (SELECT id FROM "{NAME}")'
    assert con.execute(joined).fetchall() == [(rows.id(3),)]


def test_payload_is_not_in_the_views(filled, rows):
    columns = [row[0] for row in filled.connect().execute(f'DESCRIBE "{rows.table}"').fetchall()]
    assert "latent_crc32" in columns
    assert "latent" not in columns
    assert "latent" not in plain_columns(filled.table(rows.table))


def test_pinned_views(filled, rows):
    version = filled.table(rows.table).version
    fenced(filled.table(rows.table), write_fragments(filled.root, rows.table, rows.latents("b", [4])))
    sql = f'SELECT count(*) FROM "{rows.table}"'
    assert filled.connect().execute(sql).fetchone() == (4,)
    assert filled.connect({rows.table: version}).execute(sql).fetchone() == (3,)


def test_read(filled, rows):
    assert filled.read(rows.table, ["clip_id"], "unit_id = 'a' AND latent_id > X'" + "00" * 15 + "01'").num_rows == 2
    assert "latent" not in filled.read(rows.table).column_names
    assert filled.read(rows.table, ["latent"])["latent"].to_pylist() == [b"latent 1", b"latent 2", b"latent 3"]
