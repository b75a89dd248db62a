"""DuckDB over a Lance table: registered as it is (columns pushed down) against read into Arrow first.

    python tests/bench/duckdb_views.py [--rows 1000000] [--repeats 5]

Interleaved; prints one JSON line a query with the median seconds of either way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time

import duckdb
import lance
import numpy as np
import pyarrow as pa

SCORES = 20
QUERIES = {
    "filter and mean": (["s1", "s3", "unit_id"], "SELECT count(*), avg(s3) FROM v WHERE s1 > 0.9 AND unit_id != ''"),
    "half of the rows": (["clip_id", "s1", "unit_id"], "SELECT clip_id, s1 FROM v WHERE s1 > 0.5 AND unit_id != ''"),
    "self join on id": (["clip_id"], "SELECT count(*) FROM v a JOIN v b USING (clip_id)"),
    "ten rows": (None, "SELECT * FROM v LIMIT 10"),
}


def make(folder: str, num_rows: int) -> lance.LanceDataset:
    """A table like `clips` with scores: ten fragments."""
    rng = np.random.default_rng(0)
    ids = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), num_rows, [None, pa.py_buffer(rng.bytes(16 * num_rows))])
    columns = {"clip_id": ids, **{f"s{i}": pa.array(rng.random(num_rows)) for i in range(SCORES)}}
    columns["unit_id"] = pa.array([f"{i // 100:032x}" for i in range(num_rows)])
    options = {"data_storage_version": "2.2", "max_rows_per_file": max(1, num_rows // 10)}
    return lance.write_dataset(pa.table(columns), f"{folder}/t.lance", **options)


def seconds(relation: object, sql: str, columns: list[str] | None = None) -> float:
    """Time of one query on a fresh connection, reading included."""
    con = duckdb.connect()
    start = time.perf_counter()
    con.register("v", relation.to_table(columns=columns) if columns is not None else relation)
    con.sql(sql).to_arrow_table()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = make(folder, args.rows)
        for name, (columns, sql) in QUERIES.items():
            names = columns or table.schema.names
            pairs = [(seconds(table, sql), seconds(table, sql, names)) for _ in range(args.repeats)]
            registered, read = (statistics.median(side) for side in zip(*pairs))
            print(json.dumps({"query": name, "registered_s": round(registered, 3), "read_first_s": round(read, 3)}))


if __name__ == "__main__":
    main()
