"""Columns with Arrow type, unit and meaning; they travel in the tables' field metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from schemas import SCHEMA_VERSION
from schemas.errors import SchemaMismatch

VERSION_KEY = b"vidpipe.schema_version"
TABLE_KEY = b"vidpipe.table"
FINGERPRINT_KEY = b"vidpipe.fingerprint"
BLOB_KEY = b"vidpipe.blob"

ID = pa.binary(16)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table.

    Attributes:
        unit: `s`, `px`, `fraction`, `pts`, `bytes`, ...; empty where there is none.
        meaning: one sentence: definition, range, and what null means.
        blob: stored as a Lance blob v2 column (raw bytes, read by row); the type is then large_binary.
    """

    name: str
    type: pa.DataType
    meaning: str
    unit: str = ""
    nullable: bool = True
    blob: bool = False

    def field(self) -> pa.Field:
        """Arrow field with unit and meaning in its metadata."""
        metadata = {b"unit": self.unit.encode(), b"meaning": self.meaning.encode()}
        if self.blob:
            metadata[BLOB_KEY] = b"true"
        return pa.field(self.name, self.type, self.nullable, metadata)


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """A kind of table: its columns and the column that identifies a row.

    `key` has one row a value within one fingerprint.
    """

    name: str
    key: str
    meaning: str
    columns: tuple[Column, ...]

    def with_columns(self, extra: Iterable[Column]) -> TableSpec:
        """Same table with more columns, such as the scorers' of an analyze pass."""
        extra = tuple(extra)
        known = {c.name for c in self.columns}
        for column in extra:
            if column.name in known:
                raise SchemaMismatch(f"table {self.name}: column {column.name!r} is declared twice")
            known.add(column.name)
        return TableSpec(name=self.name, key=self.key, meaning=self.meaning, columns=(*self.columns, *extra))

    def schema(self, metadata: Mapping[bytes, bytes] | None = None) -> pa.Schema:
        """Arrow schema; metadata carries the schema version and the table's name."""
        base: dict[bytes | str, bytes | str] = {
            VERSION_KEY: str(SCHEMA_VERSION).encode(),
            TABLE_KEY: self.name.encode(),
        }
        base.update((metadata or {}).items())
        return pa.schema([c.field() for c in self.columns], base)


def check_version(metadata: Mapping[bytes, bytes] | None, where: str) -> None:
    """Raise SchemaMismatch if a table's metadata names a newer schema version than this code knows, or none."""
    text = (metadata or {}).get(VERSION_KEY)
    if text is None:
        raise SchemaMismatch(f"{where}: no schema version in its metadata; it was not written by vidpipe")
    if not text.isdigit() or int(text) > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"{where}: schema version {text.decode(errors='replace')}, but this release reads up to {SCHEMA_VERSION}; "
            "upgrade vidpipe"
        )
    if int(text) < SCHEMA_VERSION:
        raise SchemaMismatch(
            f"{where}: schema version {text.decode()}, but this release reads {SCHEMA_VERSION}; build the dataset again"
        )
