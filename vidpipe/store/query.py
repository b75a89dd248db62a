"""Reading: scans without the sentinel row and without payload, and DuckDB views over all tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from vidpipe.store.dataset import SENTINEL

if TYPE_CHECKING:
    import duckdb
    import lance

    from vidpipe.store.dataset import Dataset


def plain_columns(table: lance.LanceDataset) -> list[str]:
    """Names of the columns that are no blobs."""
    return [f.name for f in table.schema if not isinstance(f.type, pa.ExtensionType)]


def scan(
    table: lance.LanceDataset, columns: Sequence[str] | None = None, filter: str | None = None, **options: Any
) -> lance.LanceScanner:
    """Scan a table without its sentinel; blob columns only if named, then as bytes."""
    where = f"({SENTINEL}) AND ({filter})" if filter else SENTINEL
    names = plain_columns(table) if columns is None else list(columns)
    return table.scanner(columns=names, filter=where, blob_handling="all_binary", **options)


def connect(dataset: Dataset, versions: Mapping[str, int | str]) -> duckdb.DuckDBPyConnection:
    """Implement `Dataset.connect`: DuckDB pushes columns and filters of a query down into Lance's scan."""
    import duckdb

    connection = duckdb.connect()
    for i, name in enumerate(dataset.names()):
        table = dataset.table(name, versions.get(name))
        columns = ", ".join(f'"{c}"' for c in plain_columns(table))
        connection.register(f"_lance_{i}", table)
        connection.execute(f'CREATE VIEW "{name}" AS SELECT {columns} FROM _lance_{i} WHERE {SENTINEL}')
    return connection


def units_without_outcomes(dataset: Dataset, table: str, outcomes: str) -> list[str]:
    """Units that have rows in `table` and none in `outcomes`, sorted."""
    import duckdb

    con = duckdb.connect()
    con.register("rows", dataset.table(table))
    con.register("outcomes", dataset.table(outcomes))
    sql = f"SELECT DISTINCT unit_id FROM rows WHERE {SENTINEL} AND unit_id NOT IN (SELECT unit_id FROM outcomes)"
    return [row[0] for row in con.execute(f"{sql} ORDER BY 1").fetchall()]
