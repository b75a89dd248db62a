"""Checking a dataset against itself: payload checksums, keys, outcomes, references between tables.

Lance has no checksums of its own and does not notice a payload file that was cut, changed or lost, so every payload is
read and its crc32 compared; values that are not finite are told too. What cannot be trained on is written to
`quarantine.jsonl`, which readers leave out.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from schemas import conditioning, latent_spaces
from schemas.errors import SchemaMismatch
from schemas.layout import QUARANTINE, TEXT_ENCODER_KEY, outcomes_name
from vidpipe.store.create import KEY_KEY
from vidpipe.store.dataset import SENTINEL, Dataset
from vidpipe.store.lease import registered
from vidpipe.store.query import plain_columns, units_without_outcomes

if TYPE_CHECKING:
    import lance

_BATCH_BYTES = 64 << 20
REFERENCES = {
    "clips": ("video_id", "videos"),
    "captions": ("clip_id", "clips"),
    "latents": ("clip_id", "clips"),
    "scores": ("clip_id", "clips"),
    "tables": ("clip_id", "clips"),
}
"""Table or folder of tables -> the column that refers to another table's key, and that table."""


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """A row whose payload cannot be trusted; a line of `quarantine.jsonl`.

    Attributes:
        table: name.
        version: of the table when the row was read.
        row_id: stable row id.
        key: the row's key, in hex.
        reason: what is wrong with it.
    """

    table: str
    version: int
    row_id: int
    key: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that should not be.

    Attributes:
        kind: `unreadable`, `payload`, `duplicate_key`, `no_outcome`, `no_row` or `dangling`.
        table: name.
        count: rows (units for `no_outcome`) that have it.
        message: a sentence, with up to a few examples.
    """

    kind: str
    table: str
    count: int
    message: str


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What was read and what was found."""

    problems: list[Problem]
    quarantined: list[Quarantined]
    num_payloads: int
    payload_bytes: int


def verify(
    dataset: Dataset,
    tables: Sequence[str] | None = None,
    *,
    payloads: bool = True,
    processes: int = 0,
    progress: Callable[[str, int, int], None] = lambda name, done, of: None,
) -> Verified:
    """Check tables; changes nothing (see `write_quarantine`).

    Args:
        tables: names; all of them if None.
        payloads: read every payload and compare its checksum: all bytes of the dataset.
        processes: that read; 0 for one a core, 1 for none beside this one.
        progress: called with a table's name, fragments read and fragments in all.
    """
    names = dataset.names() if tables is None else list(tables)
    problems: list[Problem] = []
    bad: list[Quarantined] = []
    num_payloads = payload_bytes = 0
    unreadable = {problem.table: problem for name in names for problem in _unreadable(dataset, name)}
    for name in names:
        if name in unreadable:
            problems.append(unreadable[name])
            continue
        problems += _duplicates(dataset, name)
        if not unreadable:  # what refers to a table that cannot be read is not known
            problems += [*_dangling(dataset, name), *_outcomes(dataset, name)]
        if not payloads:
            continue
        for found, num, size in _payloads(dataset, name, processes or os.cpu_count() or 1, progress):
            bad += found
            num_payloads += num
            payload_bytes += size
        mine = [row for row in bad if row.table == name]
        if mine:
            shown = "; ".join(f"{row.key}: {row.reason}" for row in mine[:3])
            problems.append(
                Problem(kind="payload", table=name, count=len(mine), message=f"unreadable payload: {shown}")
            )
    return Verified(problems=problems, quarantined=bad, num_payloads=num_payloads, payload_bytes=payload_bytes)


def _unreadable(dataset: Dataset, name: str) -> Iterator[Problem]:
    """Whether a table's columns, its payloads aside, can be read from beginning to end."""
    if not dataset.has(name):
        dataset.table(name)  # says that there is none, and which there are
    try:
        table = dataset.table(name)
        for _ in table.scanner(columns=plain_columns(table)).to_batches():
            pass
    except SchemaMismatch:
        raise
    except (OSError, ValueError) as error:
        told = str(error).splitlines()[0][:300]
        yield Problem(kind="unreadable", table=name, count=1, message=f"cannot be read: {told}")


def read_quarantine(dataset: Dataset) -> list[Quarantined]:
    """Rows that an earlier verification found bad."""
    text = dataset.files.read(QUARANTINE) or b""
    return [Quarantined(**json.loads(line)) for line in text.splitlines() if line.strip()]


def write_quarantine(dataset: Dataset, rows: Iterable[Quarantined], checked: Iterable[str]) -> None:
    """Replace what the quarantine says of the `checked` tables by `rows`; the other tables' lines stay."""
    checked = set(checked)
    kept = [row for row in read_quarantine(dataset) if row.table not in checked]
    lines = [json.dumps(asdict(row)) for row in [*kept, *rows]]
    dataset.files.write(QUARANTINE, "".join(line + "\n" for line in lines).encode())


# ---- payloads


def blob_columns(table: lance.LanceDataset) -> list[str]:
    """Blob columns that have a checksum column beside them."""
    blobs = [f.name for f in table.schema if isinstance(f.type, pa.ExtensionType)]
    return [name for name in blobs if f"{name}_crc32" in table.schema.names]


def _payloads(
    dataset: Dataset, name: str, processes: int, progress: Callable[[str, int, int], None]
) -> Iterator[tuple[list[Quarantined], int, int]]:
    table = dataset.table(name)
    if not blob_columns(table):
        return
    fragments = list(table.fragment_ids())
    jobs = [(dataset, name, table.version, number) for number in fragments]
    if processes == 1 or len(jobs) == 1:
        results: Iterator[Any] = map(check_fragment, jobs)
        yield from _counted(results, name, len(jobs), progress)
        return
    context = multiprocessing.get_context("spawn")  # Lance does not survive a fork
    with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=context) as pool:
        yield from _counted(pool.map(check_fragment, jobs), name, len(jobs), progress)


def _counted(results: Iterable[Any], name: str, total: int, progress: Callable[[str, int, int], None]) -> Iterator[Any]:
    for done, result in enumerate(results, 1):
        progress(name, done, total)
        yield result


def check_fragment(job: tuple[Dataset, str, int, int]) -> tuple[list[Quarantined], int, int]:
    """Read the payloads of one fragment; bad rows, number of payloads, bytes."""
    dataset, name, version, number = job
    table = dataset.table(name, version)
    fragment = table.get_fragment(number)
    assert fragment is not None
    key, dtypes = _key(table), _dtypes(table)
    bad: list[Quarantined] = []
    num = size = 0
    for column in blob_columns(table):
        columns = [*([key] if key else []), f"{column}_crc32", column]
        rows: Any = fragment.scanner(columns=columns, filter=SENTINEL, with_row_id=True).to_table()
        for start, end in _groups(rows[column]):
            part = rows.slice(start, end - start)
            for row_id, row_key, crc, data in _read(table, column, part, key):
                num += 1
                size += len(data) if isinstance(data, bytes) else 0
                reason = _reason(data, crc, dtypes.get(column, ""))
                if reason:
                    text = f"{column}: {reason}"
                    bad.append(Quarantined(table=name, version=version, row_id=row_id, key=row_key.hex(), reason=text))
    return bad, num, size


def _key(table: lance.LanceDataset) -> str:
    """Key column; empty for a table that does not name one, which other tools may have written."""
    return (table.schema.metadata or {}).get(KEY_KEY, b"").decode()


def _dtypes(table: lance.LanceDataset) -> dict[str, str]:
    """What the payload columns hold, as far as the table's metadata says."""
    metadata = table.schema.metadata or {}
    found = {c.column: c.dtype for c in conditioning.from_metadata(metadata)}
    if latent_spaces.METADATA_KEY in metadata:
        found["latent"] = json.loads(metadata[latent_spaces.METADATA_KEY])["dtype"]
    if TEXT_ENCODER_KEY in metadata:
        found["embedding"] = json.loads(metadata[TEXT_ENCODER_KEY])["dtype"]
    return found


def _groups(descriptors: Any) -> Iterator[tuple[int, int]]:
    """Runs of rows of about 64 MB, by the sizes that the descriptors state."""
    start = size = 0
    sizes = [d["size"] for d in descriptors.to_pylist()]
    for i, length in enumerate(sizes):
        if size and size + length > _BATCH_BYTES:
            yield start, i
            start, size = i, 0
        size += length
    if sizes:
        yield start, len(sizes)


def _read(table: lance.LanceDataset, column: str, rows: Any, key: str) -> Iterator[tuple[int, bytes, int, Any]]:
    """Row id, key, checksum and payload, or the error that reading it raised."""
    row_ids = rows["_rowid"].to_pylist()
    keys = rows[key].to_pylist() if key else [b""] * len(row_ids)
    described = zip(row_ids, keys, rows[f"{column}_crc32"].to_pylist())
    try:
        payloads: list[Any] = [data for _, data in table.read_blobs(column, ids=row_ids, preserve_order=True)]
    except (OSError, ValueError):  # one of them is bad: find out which
        payloads = [_read_one(table, column, row_id) for row_id in row_ids]
    for (row_id, row_key, crc), data in zip(described, payloads):
        yield row_id, row_key, crc, data


def _read_one(table: lance.LanceDataset, column: str, row_id: int) -> bytes | Exception:
    try:
        [(_, data)] = table.read_blobs(column, ids=[row_id])
    except (OSError, ValueError) as error:
        return error
    return data if data is not None else ValueError("null")


def _reason(data: bytes | Exception, crc: int, dtype: str) -> str:
    if isinstance(data, Exception):
        return f"cannot be read: {str(data).splitlines()[0][:200]}"
    found = zlib.crc32(data)
    if found != crc:
        return f"crc32 is {found:08x}, expected {crc:08x}"
    return "" if _is_finite(data, dtype) else "values that are not finite"


def _is_finite(data: bytes, dtype: str) -> bool:
    """Whether no value is infinite or not a number; of what is no such array, nothing is said."""
    if dtype not in ("bfloat16", "float16", "float32") or len(data) % (4 if dtype == "float32" else 2):
        return True
    if dtype == "float32":
        return bool(np.isfinite(np.frombuffer(data, "<f4")).all())
    exponent = 0x7F80 if dtype == "bfloat16" else 0x7C00
    return not bool((np.frombuffer(data, "<u2") & exponent == exponent).any())


# ---- rows


def _connection(dataset: Dataset, **tables: str) -> Any:
    import duckdb

    con = duckdb.connect()
    for alias, name in tables.items():
        con.register(f"_{alias}", dataset.table(name))
        con.execute(f"CREATE VIEW {alias} AS SELECT * FROM _{alias} WHERE {SENTINEL}")
    return con


def _examples(con: Any, sql: str) -> tuple[int, str]:
    """Number of rows of a query of one id column, and a few of them."""
    count = con.execute(f"SELECT count(*) FROM ({sql})").fetchone()[0]
    if not count:
        return 0, ""
    rows = con.execute(f"{sql} LIMIT 3").fetchall()
    return count, ", ".join(value.hex() if isinstance(value, bytes) else str(value) for (value, *_) in rows)


def _duplicates(dataset: Dataset, name: str) -> Iterator[Problem]:
    key = _key(dataset.table(name))
    if not key:
        return
    columns = f"{key}, item, fingerprint" if name.startswith("outcomes/") else f"{key}, fingerprint"
    con = _connection(dataset, t=name)
    count, shown = _examples(con, f"SELECT {key} FROM t GROUP BY {columns} HAVING count(*) > 1")
    if count:
        message = f"{count} keys with more than one row under a fingerprint: {shown}"
        yield Problem(kind="duplicate_key", table=name, count=count, message=message)


def _outcomes(dataset: Dataset, name: str) -> Iterator[Problem]:
    """Units with rows and no outcomes, and with outcomes `kept` and no rows."""
    stage = writers(dataset).get(name)
    if stage is not None:
        units = units_without_outcomes(dataset, name, outcomes_name(stage))
        if units:
            message = f"{len(units)} units have no outcomes (the next run of {stage} adds them): {', '.join(units[:3])}"
            yield Problem(kind="no_outcome", table=name, count=len(units), message=message)
    tables = [table for table, by in writers(dataset).items() if outcomes_name(by) == name and dataset.has(table)]
    if not tables:
        return
    con = _connection(dataset, outcomes=name, **{f"t{i}": table for i, table in enumerate(tables)})
    units_there = " UNION ".join(f"SELECT unit_id FROM t{i}" for i in range(len(tables)))
    kept = "SELECT DISTINCT unit_id FROM outcomes WHERE status = 'kept'"
    count, shown = _examples(con, f"{kept} AND unit_id NOT IN ({units_there})")
    if count:
        message = f"{count} units have outcomes `kept` and no rows in {', '.join(tables)}: {shown}"
        yield Problem(kind="no_row", table=name, count=count, message=message)


def writers(dataset: Dataset) -> dict[str, str]:
    """Which stage commits to each table, as recorded by the leases; tables without a commit are not in it."""
    found = {}
    for name in dataset.names():
        if name.startswith("outcomes/"):
            for table in registered(dataset, name):
                found[table] = name.removeprefix("outcomes/")
    return found


def _dangling(dataset: Dataset, name: str) -> Iterator[Problem]:
    column, target = REFERENCES.get(name.split("/")[0], ("", ""))
    if not column or column not in dataset.table(name).schema.names or not dataset.has(target):
        return
    con = _connection(dataset, t=name, target=target)
    count, shown = _examples(
        con, f"SELECT DISTINCT {column} FROM t WHERE {column} NOT IN (SELECT {column} FROM target)"
    )
    if count:
        message = f"{count} values of {column} that {target} does not have: {shown}"
        yield Problem(kind="dangling", table=name, count=count, message=message)
