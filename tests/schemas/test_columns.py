"""Columns and tables: what travels in the Arrow schema, and the schema version checked on open."""

from __future__ import annotations

import pyarrow as pa
import pytest

from schemas import SCHEMA_VERSION, tables
from schemas.columns import BLOB_KEY, TABLE_KEY, VERSION_KEY, Column, TableSpec, check_version
from schemas.errors import SchemaMismatch

SPECS = [spec for spec in vars(tables).values() if isinstance(spec, TableSpec)]


def test_field_carries_unit_and_meaning():
    field = Column(name="blur", type=pa.float32(), unit="fraction", meaning="0 is sharp", nullable=False).field()
    assert (field.name, field.type, field.nullable) == ("blur", pa.float32(), False)
    assert field.metadata == {b"unit": b"fraction", b"meaning": b"0 is sharp"}
    blob = Column(name="latent", type=pa.large_binary(), meaning="bytes", blob=True).field()
    assert blob.metadata[BLOB_KEY] == b"true"


def test_schema_metadata_names_version_and_table_and_keeps_the_callers():
    metadata = tables.CLIPS.schema({b"k": b"v"}).metadata
    assert metadata == {VERSION_KEY: str(SCHEMA_VERSION).encode(), TABLE_KEY: b"clips", b"k": b"v"}


def test_with_columns_appends_and_refuses_twins():
    extra = Column(name="blur_score", type=pa.float32(), meaning="x")
    made = tables.CLIPS.with_columns([extra])
    assert made.columns == (*tables.CLIPS.columns, extra)
    assert (made.name, made.key) == ("clips", "clip_id")
    with pytest.raises(SchemaMismatch, match=r"clips.*'clip_id' is declared twice"):
        tables.CLIPS.with_columns([Column(name="clip_id", type=pa.int32(), meaning="x")])
    with pytest.raises(SchemaMismatch, match="'blur_score' is declared twice"):
        tables.CLIPS.with_columns([extra, extra])


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_every_table_has_its_key_provenance_and_meanings(spec):
    names = [c.name for c in spec.columns]
    assert len(names) == len(set(names))
    assert {spec.key, "fingerprint", "unit_id"} <= set(names)
    for column in spec.columns:
        assert column.meaning and not column.meaning.endswith("."), column.name
        assert not column.blob or column.type == pa.large_binary()
        if column.name in (spec.key, "fingerprint", "unit_id"):
            assert not column.nullable


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_names_wear_their_unit(spec):
    """`_seconds` columns are in s, `_bytes` in bytes, and so on; a unit of its own says the same."""
    suffixes = {"_seconds": "s", "_bytes": "bytes", "_pts": "pts", "_fraction": "fraction", "_tokens": "tokens"}
    for column in spec.columns:
        for suffix, unit in suffixes.items():
            if column.name.endswith(suffix):
                assert column.unit == unit, column.name


def test_check_version_takes_this_one_only():
    check_version({VERSION_KEY: str(SCHEMA_VERSION).encode()}, "clips")
    for metadata in (None, {}):
        with pytest.raises(SchemaMismatch, match=r"^clips: no schema version"):
            check_version(metadata, "clips")
    with pytest.raises(SchemaMismatch, match=rf"^clips: schema version {SCHEMA_VERSION + 1}.*upgrade vidpipe"):
        check_version({VERSION_KEY: str(SCHEMA_VERSION + 1).encode()}, "clips")
    with pytest.raises(SchemaMismatch, match="build the dataset again"):
        check_version({VERSION_KEY: b"0"}, "clips")
    with pytest.raises(SchemaMismatch, match="schema version x"):
        check_version({VERSION_KEY: b"x"}, "clips")
