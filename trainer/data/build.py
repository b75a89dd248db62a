"""Build an index: join the tables by id under the filter expression, with DuckDB, which spills to disk.

Clip columns are joined and filtered first; then each bucket's table is read once, without its payload, joined to what
was kept and written in table order, so that memory stays bounded whatever the number of rows.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from schemas import expressions, layout
from schemas.buckets import Bucket
from schemas.errors import SchemaMismatch, UserError, nearest
from schemas.latent_spaces import LatentSpace
from trainer.data.index import (
    ARRAYS,
    NO_TEXT,
    DataConfig,
    DatasetConfig,
    Index,
    Stream,
    TextTable,
    config_key,
    config_values,
    hash_arrays,
)
from trainer.data.tables import BlobFiles, Source, choose_fingerprint

log = logging.getLogger(__name__)

LATENT_COLUMNS = ("frames_dropped", "scale", "cropped_fraction")
"""Columns of latent tables that a filter may name, beside `bucket`; `fps` and `start_seconds` are the clip's."""
BATCH_ROWS = 1 << 17


def build_index(
    config: DataConfig,
    cache_dir: str | Path,
    *,
    space: LatentSpace | None = None,
    versions: Mapping[str, int] | None = None,
    tag: bool = True,
    memory_limit: str = "4GB",
) -> Index:
    """Build, or find in `cache_dir`, the index of a mix.

    Args:
        space: what the model was made for; tables of another space are refused.
        versions: `dataset number/table` -> version, as `Index.versions` has them, to build a checkpoint's index again;
            the newest otherwise.
        tag: tag the latent and text versions that it reads, so that `vidpipe clean` keeps them.
        memory_limit: what DuckDB may use before it spills to disk.
    Raises:
        UserError: no such dataset, no such bucket, no row left, an expression that is not SQL.
        LatentSpaceMismatch: a table holds latents of another space.
        UnknownColumn: the filter names a column that the joined tables do not have.
    """
    cache_dir = Path(cache_dir)
    pinned = dict(versions or {})
    readers = [_DatasetReader(i, d, config, pinned) for i, d in enumerate(config.datasets)]
    found = {key: value for reader in readers for key, value in reader.versions().items()}
    folder = cache_dir / f"index-{config_key(config, found)}"
    if not (folder / "index.json").exists():
        _publish(readers, config, found, folder, memory_limit)
    index = Index(folder, config)
    if space is not None:
        space.require(index.space, f"index of {', '.join(d.path for d in config.datasets)}")
    for note in index.notes:
        log.info(note)
    if tag:
        for reader in readers:
            reader.tag(f"trainer-{folder.name}")
    return index


def _publish(
    readers: list[_DatasetReader], config: DataConfig, versions: dict[str, int], folder: Path, memory_limit: str
) -> None:
    """Write the index under a temporary name, then rename: an index is whole or absent."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        _write(readers, config, versions, work, memory_limit)
        try:
            work.rename(folder)
        except OSError:
            if not (folder / "index.json").exists():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write(
    readers: list[_DatasetReader], config: DataConfig, versions: dict[str, int], work: Path, memory_limit: str
) -> None:
    writer = _ArrayWriter(work)
    streams: list[Stream] = []
    texts: list[TextTable] = []
    notes: list[str] = []
    for reader in readers:
        con = _connect(work / f"spill-{reader.number}", memory_limit)
        reader.read(con, writer, streams, texts, notes)
        con.close()
        shutil.rmtree(work / f"spill-{reader.number}", ignore_errors=True)
    writer.append("caption_starts", np.array([writer.num_captions], np.uint64))
    writer.close()
    if not streams:
        raise UserError(
            f"data: no row of split {config.split!r} is left under filter {config.filter!r} in "
            f"{', '.join(d.path for d in config.datasets)}; widen the filter, or see `vidpipe status` for what is there"
        )
    space = _one_space(readers)
    facts: dict[str, Any] = {
        "space": dataclasses.asdict(space),
        "streams": [dataclasses.asdict(s) for s in streams],
        "texts": [dataclasses.asdict(t) for t in texts],
    }
    content_hash = hash_arrays(work, facts)
    facts |= {"config": config_values(config), "versions": versions, "notes": notes, "content_hash": content_hash}
    (work / "index.json").write_text(json.dumps(facts))


def _one_space(readers: list[_DatasetReader]) -> LatentSpace:
    """The space of all tables, or LatentSpaceMismatch naming the two that differ."""
    found = [(space, where) for reader in readers for where, space in reader.spaces.items()]
    first, _ = found[0]
    for space, where in found[1:]:
        first.require(space, where)
    return first


def _connect(spill: Path, memory_limit: str) -> Any:
    import duckdb

    con = duckdb.connect()
    con.execute(f"SET memory_limit = '{memory_limit}'")
    con.execute(f"SET temp_directory = '{spill}'")
    con.execute(f"SET threads = {min(8, os.cpu_count() or 1)}")
    con.execute("SET preserve_insertion_order = false")
    return con


class _ArrayWriter:
    """Appends to `.npy` files whose length is known only at the end."""

    HEADER_BYTES = 128

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lengths = dict.fromkeys(ARRAYS, 0)
        self._files = {name: open(folder / f"{name}.npy", "wb") for name in ARRAYS}  # noqa: SIM115
        for file in self._files.values():
            file.write(b"\0" * self.HEADER_BYTES)

    @property
    def num_captions(self) -> int:
        return self.lengths["caption_texts"]

    def append(self, name: str, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values, dtype=ARRAYS[name])
        self.lengths[name] += len(values)
        self._files[name].write(values.tobytes())

    def close(self) -> None:
        for name, file in self._files.items():
            text = repr({"descr": ARRAYS[name], "fortran_order": False, "shape": (self.lengths[name],)})
            header = text.ljust(self.HEADER_BYTES - 11).encode() + b"\n"
            file.seek(0)
            file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
            file.close()


class _DatasetReader:
    """Reads one dataset of a mix into the arrays."""

    def __init__(self, number: int, dataset: DatasetConfig, config: DataConfig, pinned: Mapping[str, int]) -> None:
        self.number = number
        self.dataset = dataset
        self.config = config
        self.source = Source(root=dataset.path, storage_options=dataset.storage_options)
        names = self.source.names()
        self.latents = self._choose_buckets(names)
        self._latent_columns: set[str] = set()  # that the filter names
        wanted = [n for n in names if n in ("clips", "videos", "captions") or n.startswith(("scores/", "tables/"))]
        if config.text_encoder:
            wanted.append(self._text_name(names))
        prefix = f"{number}/"
        self.tables = {n: self.source.open(n, pinned.get(prefix + n)) for n in [*wanted, *self.latents]}
        self.spaces = {
            layout.table_uri(dataset.path, n): LatentSpace.from_metadata(self.tables[n].schema.metadata, n)
            for n in self.latents
        }

    def _choose_buckets(self, names: list[str]) -> list[str]:
        prefix = layout.latents_name(self.config.latents, "")
        found = {n.removeprefix(prefix): n for n in names if n.startswith(prefix)}
        if not found:
            spaces = sorted({n.split("/")[1] for n in names if n.startswith("latents/")})
            raise UserError(
                f"dataset {self.dataset.path}: no latents of space {self.config.latents!r}"
                f"{nearest(self.config.latents, spaces)}; run `vidpipe run` with that VAE"
            )
        wanted = self.dataset.buckets or self.config.buckets or tuple(found)
        for bucket in wanted:
            if bucket not in found:
                raise UserError(f"dataset {self.dataset.path}: no bucket {bucket!r}{nearest(bucket, found)}")
        return [found[b] for b in sorted(wanted, key=Bucket.parse)]

    def _text_name(self, names: list[str]) -> str:
        name = layout.text_name(self.config.text_encoder)
        if name not in names:
            known = [n.removeprefix("text/") for n in names if n.startswith("text/")]
            raise UserError(
                f"dataset {self.dataset.path}: no text embeddings of {self.config.text_encoder!r}"
                f"{nearest(self.config.text_encoder, known)}"
            )
        return name

    def versions(self) -> dict[str, int]:
        """Version of every table that is read, by `dataset number/table`."""
        return {f"{self.number}/{name}": table.version for name, table in self.tables.items()}

    def tag(self, name: str) -> None:
        """Tag the versions whose payload is read during training."""
        for table_name, table in self.tables.items():
            if table_name.startswith(("latents/", "text/")):
                known = table.tags.list()
                if name not in known:
                    table.tags.create(name, table.version)

    def read(
        self, con: Any, writer: _ArrayWriter, streams: list[Stream], texts: list[TextTable], notes: list[str]
    ) -> None:
        """Append this dataset's streams and texts."""
        latent_filter = self._keep_clips(con, notes)
        empty = self._read_texts(con, writer, texts, notes) if self.config.text_encoder else NO_TEXT
        for name in self.latents:
            stream = self._read_bucket(con, name, latent_filter, empty, writer, notes)
            if stream.num_rows:
                streams.append(stream)

    def _fingerprint(self, con: Any, name: str, notes: list[str]) -> str | None:
        wanted = self.dataset.fingerprints.get(name)
        where = layout.table_uri(self.dataset.path, name)
        chosen, counts = choose_fingerprint(con, self.tables[name], where, wanted)
        if len(counts) > 1:
            listed = ", ".join(f"{f} ({c:,} rows)" for f, c in sorted(counts.items()) if f != chosen)
            notes.append(f"{where}: fingerprint {chosen} is read; not read: {listed}")
        return chosen

    def _keep_clips(self, con: Any, notes: list[str]) -> str:
        """Make table `kept`, a row a clip of the split that may pass; return the condition left for latent columns."""
        expression = f"({self.config.filter}\n) AND ({self.dataset.filter}\n)"
        names = [n for n in self.tables if not n.startswith(("latents/", "text/", "captions"))]
        available = {n: [c for c in self.tables[n].schema.names if not _is_blob(self.tables[n], c)] for n in names}
        _, columns = expressions.clip_view(available)
        own = [c for c in LATENT_COLUMNS if c not in columns]
        used = expressions.check(con.cursor(), expression, [*columns, *own, "bucket"])
        split = [] if self.config.split == "all" else [c for c in columns if c == "split"]
        lower = {c.lower() for c in [*used, *split]}
        needed = {n: [c for c in available[n] if c.lower() in lower or c in ("clip_id", "video_id")] for n in names}
        needed = {n: c for n, c in needed.items() if n == "clips" or any(i.lower() in lower for i in c)}
        for name in needed:
            self._register(con, name, needed[name], notes)
        view, kept_columns = expressions.clip_view(needed)
        latent_only = {c.lower() for c in [*own, "bucket"]} & {c.lower() for c in used}
        self._latent_columns = latent_only
        where = "true" if latent_only else f"coalesce(({expression}\n), false)"
        if split:
            where += f" AND coalesce(split, 'train') = '{self.config.split}'"
        elif self.config.split == "heldout":
            raise UserError(f"dataset {self.dataset.path}: no split table: nothing is held out; run the `split` stage")
        listed = ", ".join(f'"{c}"' for c in kept_columns if c == "clip_id" or (latent_only and c.lower() in lower))
        con.execute(f"CREATE TEMP TABLE kept AS SELECT DISTINCT {listed} FROM ({view}) WHERE {where}")
        return f"coalesce(({expression}\n), false)" if latent_only else "true"

    def _register(self, con: Any, name: str, columns: list[str], notes: list[str]) -> None:
        """Give DuckDB a table's columns under the table's name: one fingerprint, no sentinel."""
        chosen = self._fingerprint(con, name, notes)
        condition = "unit_id != ''" + (f" AND fingerprint = '{chosen}'" if chosen is not None else "")
        con.register(name, self.tables[name].scanner(columns=columns, filter=condition).to_reader())

    def _read_texts(self, con: Any, writer: _ArrayWriter, texts: list[TextTable], notes: list[str]) -> int:
        """Append the embeddings' places, make table `caps` (clip_id, texts, shares); return the empty text's row."""
        name = layout.text_name(self.config.text_encoder)
        table = self.tables[name]
        facts = json.loads((table.schema.metadata or {}).get(layout.TEXT_ENCODER_KEY, b"null"))
        if not facts:
            raise SchemaMismatch(f"{name}: no text encoder in the table's metadata; it is not a table of embeddings")
        columns = ["text_id", "text", "num_tokens", "embedding_crc32", "embedding"]
        self._scan(con, name, columns, notes, "text_scan")
        start = writer.lengths["text_row_ids"]
        con.execute(
            "CREATE TEMP TABLE texts AS SELECT *, row_number() OVER (ORDER BY address) - 1 AS number FROM text_scan"
        )
        files = BlobFiles(table, "embedding")
        for batch in _batches(con, "SELECT * EXCLUDE (text_id, text, number) FROM texts ORDER BY number"):
            writer.append("text_row_ids", batch["row_id"])
            writer.append("text_tokens", batch["num_tokens"])
            writer.append("text_crc32s", batch["embedding_crc32"])
            writer.append("text_files", files.number(batch["address"], batch["kind"], batch["blob_id"]))
            writer.append("text_positions", batch["position"])
        found = con.execute("SELECT number FROM texts WHERE text = ''").fetchall()
        empty = start + found[0][0] if found else NO_TEXT
        stop = writer.lengths["text_row_ids"]
        place = {"dataset": self.number, "table": name, "version": table.version, "start": start, "stop": stop}
        kind = {"dim": facts["dim"], "dtype": facts["dtype"], "metadata": json.dumps(facts), "empty": empty}
        texts.append(TextTable(**place, **kind, files=tuple(files.paths)))
        self._read_captions(con, start, notes)
        return empty

    def _read_captions(self, con: Any, first_text: int, notes: list[str]) -> None:
        if "captions" not in self.tables:
            raise UserError(f"dataset {self.dataset.path}: no captions; run the `caption` stage or train without text")
        columns = ["clip_id", "text_id", "source", "fingerprint"]
        scan = self.tables["captions"].scanner(columns=columns, filter="unit_id != ''", with_row_id=True)
        con.register("captions_scan", scan.to_reader())
        con.execute("CREATE TEMP TABLE all_captions AS SELECT * FROM captions_scan SEMI JOIN kept USING (clip_id)")
        newest = con.execute(
            "SELECT source, arg_max(fingerprint, _rowid), count(DISTINCT fingerprint) FROM all_captions GROUP BY 1"
        ).fetchall()
        weights = self.config.captions or {source: 1.0 for source, *_ in newest}
        for source in weights:
            if newest and source not in {s for s, *_ in newest}:
                known = nearest(source, [s for s, *_ in newest])
                notes.append(f"dataset {self.dataset.path}: no caption of source {source!r}{known}")
        wanted = self.dataset.fingerprints.get("captions")
        con.execute("CREATE TEMP TABLE sources (source VARCHAR, fingerprint VARCHAR, weight DOUBLE)")
        for source, fingerprint, count in newest:
            if source in weights:
                con.execute("INSERT INTO sources VALUES (?, ?, ?)", [source, wanted or fingerprint, weights[source]])
            if count > 1:
                notes.append(f"captions of {source!r}: {count} fingerprints, {wanted or fingerprint} is read")
        con.execute(f"""
            CREATE TEMP TABLE caps AS SELECT clip_id, list(number ORDER BY source, number) AS texts,
                list(share ORDER BY source, number) AS shares
            FROM (SELECT clip_id, source, number + {first_text} AS number,
                         weight / count(*) OVER (PARTITION BY clip_id, source) AS share
                  FROM all_captions JOIN sources USING (source, fingerprint) JOIN texts USING (text_id))
            GROUP BY clip_id""")

    def _scan(self, con: Any, name: str, columns: list[str], notes: list[str], view: str) -> None:
        """Register a blob table as `view`, its descriptor split into kind, position, size and blob_id."""
        chosen = self._fingerprint(con, name, notes)
        condition = "unit_id != ''" + (f" AND fingerprint = '{chosen}'" if chosen is not None else "")
        scanner = self.tables[name].scanner(
            columns=columns, filter=condition, with_row_id=True, with_row_address=True, scan_in_order=False
        )
        con.register(f"{view}_raw", scanner.to_reader())
        blob = columns[-1]
        listed = ", ".join(f'"{c}"' for c in columns[:-1])
        con.execute(f"""
            CREATE OR REPLACE TEMP VIEW {view} AS SELECT {listed}, _rowid AS row_id, _rowaddr AS address,
                "{blob}".kind AS kind, "{blob}".position AS position, "{blob}".size AS size, "{blob}".blob_id AS blob_id
            FROM {view}_raw""")

    def _read_bucket(
        self, con: Any, name: str, latent_filter: str, empty: int, writer: _ArrayWriter, notes: list[str]
    ) -> Stream:
        table = self.tables[name]
        space = self.spaces[layout.table_uri(self.dataset.path, name)]
        bucket = Bucket.parse((table.schema.metadata or {})[layout.BUCKET_KEY].decode()).check(space, self.config.patch)
        own = [c for c in LATENT_COLUMNS if c in self._latent_columns]
        self._scan(con, name, ["latent_id", "clip_id", "latent_crc32", *own, "latent"], notes, "latent_scan")
        start = writer.lengths["row_ids"]
        files = BlobFiles(table, "latent")
        captioned = bool(self.config.text_encoder)
        sql = "SELECT l.*" + (", coalesce(c.texts, []) AS texts, coalesce(c.shares, []) AS shares" if captioned else "")
        sql += " FROM (SELECT *, ? AS bucket FROM latent_scan) l JOIN kept USING (clip_id)"
        if captioned:
            keep_all = empty != NO_TEXT and self.config.captionless == "empty"
            sql += f" {'LEFT' if keep_all else 'INNER'} JOIN caps c USING (clip_id)"
        sql += f" WHERE {latent_filter} ORDER BY address"
        shape = bucket.latent_shape(space)
        stored = math.prod(shape) * space.element_bytes * (2 if space.posterior == "mean_logvar" else 1)
        for batch in _batches(con, sql, [str(bucket)]):
            wrong = np.flatnonzero(batch["size"] != stored)
            if wrong.size:
                raise SchemaMismatch(
                    f"{name}: row {batch['row_id'][wrong[0]]} holds {batch['size'][wrong[0]]} bytes, but a latent of "
                    f"bucket {bucket} has {stored}; run `vidpipe verify {self.dataset.path}`"
                )
            writer.append("row_ids", batch["row_id"])
            writer.append("latent_ids", batch["latent_id"])
            writer.append("crc32s", batch["latent_crc32"])
            writer.append("files", files.number(batch["address"], batch["kind"], batch["blob_id"]))
            writer.append("positions", batch["position"])
            _append_captions(writer, batch, len(batch["row_id"]), empty)
        grid = tuple(size // patch for size, patch in zip(shape[1:], self.config.patch))
        return Stream(
            dataset=self.number,
            table=name,
            version=table.version,
            bucket=str(bucket),
            weight=self.dataset.weight,
            start=start,
            stop=writer.lengths["row_ids"],
            shape_CTHW=shape,
            grid_THW=grid,
            latent_bytes=stored,
            files=tuple(files.paths),
        )


def _is_blob(table: Any, column: str) -> bool:
    return b"lance-encoding:blob" in (table.schema.field(column).metadata or {})


def _append_captions(writer: _ArrayWriter, batch: Mapping[str, Any], num_rows: int, empty: int) -> None:
    """Append each row's captions; a row without any gets the empty text, if the table has it."""
    if "texts" not in batch:
        writer.append("caption_starts", np.full(num_rows, writer.num_captions, np.uint64))
        return
    starts, texts, shares = batch["texts.offsets"], batch["texts"], batch["shares"]
    counts = np.diff(starts)
    missing = np.flatnonzero(counts == 0)
    if missing.size:
        texts = np.insert(texts, starts[missing], empty)
        shares = np.insert(shares, starts[missing], 1.0)
        counts = np.maximum(counts, 1)
    ends = np.cumsum(counts)
    total = np.cumsum(shares, dtype=np.float64)
    before = np.concatenate([[0.0], total])[ends - counts]
    whole = total[ends - 1] - before
    cumulative = (total - np.repeat(before, counts)) / np.repeat(whole, counts)
    cumulative[ends - 1] = 1.0
    writer.append("caption_starts", writer.num_captions + ends - counts)
    writer.append("caption_texts", texts)
    writer.append("caption_shares", cumulative)


def _batches(con: Any, sql: str, parameters: list[Any] | None = None) -> Iterator[dict[str, np.ndarray]]:
    """Run a query and give its columns as numpy arrays a batch; a list column also gives `NAME.offsets`."""
    for batch in con.sql(sql, params=parameters or None).to_arrow_reader(BATCH_ROWS):
        columns: dict[str, np.ndarray] = {}
        for name, column in zip(batch.schema.names, batch.columns):
            if pa.types.is_list(column.type):
                offsets = column.offsets.to_numpy()  # they start anywhere in a sliced batch
                columns[name] = column.values.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy()
                columns[f"{name}.offsets"] = offsets - offsets[0]
            elif pa.types.is_binary(column.type) or pa.types.is_fixed_size_binary(column.type):
                fixed = column.cast(pa.binary(16))
                columns[name] = np.frombuffer(fixed.buffers()[1], "V16", len(fixed) + fixed.offset)[fixed.offset :]
            else:
                columns[name] = column.to_numpy(zero_copy_only=False)
        yield columns
