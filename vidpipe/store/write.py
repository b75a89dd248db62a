"""What a worker does with its rows: Lance fragments that nobody sees until the coordinator commits them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import SchemaMismatch
from vidpipe.store import failpoints
from vidpipe.store.create import STORAGE_VERSION
from vidpipe.store.dataset import Dataset

if TYPE_CHECKING:
    import lance


def write_fragments(
    root: str, name: str, table: pa.Table, storage_options: Mapping[str, str] | None = None
) -> list[str]:
    """Write rows as fragments of an existing table.

    Args:
        table: columns by name in any order; nullable ones may be missing; blob columns as (large_)binary.
    Returns:
        one JSON text of about 400 bytes a fragment, for `StagedUnit.fragments`; empty if there are no rows.
    Raises:
        SchemaMismatch: a column is missing or unknown, of another type, or null where it may not be.
    """
    return write_to(Dataset(root, storage_options).table(name), table, f"table {name} of {root}")


def write_to(target: lance.LanceDataset, table: pa.Table, where: str) -> list[str]:
    """As `write_fragments`, into an open table."""
    from lance.fragment import write_fragments as write

    if table.num_rows == 0:
        return []
    rows = conform(table, target.schema, where)
    failpoints.reach("write:start")
    fragments = write(rows, target, schema=rows.schema, data_storage_version=STORAGE_VERSION)
    failpoints.reach("write:done")
    return [json.dumps(fragment.to_json()) for fragment in fragments]


def written_rows(dataset: Dataset, name: str, fragments: Iterable[str], columns: Sequence[str]) -> pa.Table:
    """Read columns of fragments that are written and not (yet) part of their table, which has no blob column."""
    from lance.file import LanceFileReader

    tables = []
    for text in fragments:
        for file in json.loads(text)["files"]:
            uri = f"{dataset.uri(name)}/data/{file['path']}"
            reader = LanceFileReader(uri, storage_options=dataset.storage_options or None, columns=list(columns))
            tables.append(reader.read_all().to_table())
    return pa.concat_tables(tables)


def conform(table: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """Bring rows into a table's schema: order, types, nulls for missing nullable columns, blobs as Lance wants them."""
    unknown = set(table.column_names) - set(schema.names)
    if unknown:
        raise SchemaMismatch(f"{where}: unknown column {min(unknown)!r}; its columns are {', '.join(schema.names)}")
    arrays = [_column(table, field, where) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _column(table: pa.Table, field: pa.Field, where: str) -> pa.ChunkedArray | pa.Array:
    if field.name not in table.column_names:
        if not field.nullable:
            raise SchemaMismatch(f"{where}: column {field.name!r} is missing and may not be null")
        return pa.nulls(table.num_rows, field.type)
    column = table[field.name]
    if not field.nullable and column.null_count:
        raise SchemaMismatch(f"{where}: {column.null_count} nulls in column {field.name!r}, which has none")
    if isinstance(field.type, pa.ExtensionType):
        return _blobs(column, field, where)
    try:
        return column if column.type == field.type else column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(
            f"{where}: column {field.name!r} is {column.type}, expected {field.type}: {error}"
        ) from None


def _blobs(column: pa.ChunkedArray, field: pa.Field, where: str) -> pa.ChunkedArray:
    if isinstance(column.type, pa.ExtensionType):
        return column
    chunks: list[pa.Array] = []
    chunk: Any
    no_bytes: Any = pa.scalar(0, pa.int64())
    for chunk in column.cast(pa.large_binary()).chunks:
        if pc.any(pc.equal(pc.binary_length(chunk), no_bytes)).as_py():
            raise SchemaMismatch(f"{where}: an empty value in blob column {field.name!r}; Lance loses those")
        num = len(chunk)
        nothing: list[pa.Array] = [pa.nulls(num, pa.utf8()), pa.nulls(num, pa.uint64()), pa.nulls(num, pa.uint64())]
        storage = pa.StructArray.from_arrays([chunk, *nothing], fields=list(field.type.storage_type))
        chunks.append(pa.ExtensionArray.from_storage(field.type, storage))
    return pa.chunked_array(chunks, field.type)
