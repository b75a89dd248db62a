"""ingest: list sources, name them by content, probe headers. No pixels.

Every regular file ends as a row of `videos`. Equal content is one row with a list of its uris, so rows are merged
with what is there already right before they are committed.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from schemas import ids, tables
from schemas.columns import TableSpec
from schemas.errors import UserError
from schemas.outcomes import Outcome
from vidpipe.sections import IngestConfig
from vidpipe.stages.base import Context, Result, Row, Stage, Unit, batched_by, table_from
from vidpipe.stages.view import View
from vidpipe.store.reconcile import KeptRows

if TYPE_CHECKING:
    from vidpipe.media.sources import SourceFile

LIST_BATCH = 20_000
NOT_FOOTAGE = {"sidecar", "clip_table", "not_media"}
"""Reasons that say a file was never meant to be footage: rejected, not failed."""

ASKED_AGAIN = {"io_error", "crashed", "deadline", "error"}
"""Reasons of rows that are named by uri: once the file can be read, it has a row of its own name."""


@dataclass(frozen=True, kw_only=True)
class Ingest(Stage):
    """Probes files that are not in `videos` yet, or whose size or mtime changed.

    Attributes:
        sources: paths, globs, list files or prefixes, as given by the user.
        clip_table: the clip table that named `sources`, if one did.
        output: the dataset's own root; what lies in it is no source, should it stand inside a source folder.
    """

    name = "ingest"
    version = 1
    config: IngestConfig
    sources: tuple[str, ...]
    clip_table: str = ""
    output: str = ""

    def tables(self) -> dict[str, tuple[TableSpec, dict[bytes, bytes]]]:
        return {"videos": (tables.VIDEOS, {})}

    def kept_rows(self) -> dict[str, KeptRows]:
        return {"videos": KeptRows(id_column="video_id")}

    def candidates(self, view: View) -> str | None:
        return None  # the file system is the input

    def listing(self) -> Iterator[Row]:
        """All files, folder by folder, each with its sidecars known."""
        from vidpipe.media.identity import etag_of
        from vidpipe.media.sources import find_sidecars

        seen: set[str] = set()
        for folder, group in itertools.groupby(self._files(), key=lambda f: f.uri.rpartition("/")[0]):
            if self.output and _is_within(folder, self.output):
                continue
            members = []
            for file in group:
                if file.uri not in seen:
                    seen.add(file.uri)
                    members.append(file)
            sidecars = {uri for found in find_sidecars(members).values() for uri in found}
            for file in members:
                used = file.uri in sidecars or (file.uri.endswith(".jsonl") and _is_caption_map(file.uri))
                hint = "sidecar_used" if used else file.kind_hint
                yield {"uri": file.uri, "size_bytes": file.size_bytes, "etag": file.etag, "hint": hint}
        if self.clip_table and self.clip_table not in seen and Path(self.clip_table).exists():
            size = Path(self.clip_table).stat().st_size
            etag = etag_of(self.clip_table)
            yield {"uri": self.clip_table, "size_bytes": size, "etag": etag, "hint": "clip_table_used"}

    def _files(self) -> Iterator[SourceFile]:
        from vidpipe.media.sources import SourceFile, list_sources

        for source in self.sources:
            try:
                yield from list_sources(source, recursive=self.config.recursive)
            except UserError:
                if not self.clip_table:
                    raise
                # one missing file of a clip table is a row with a reason, not the end of the run
                yield SourceFile(uri=source, size_bytes=-1, etag="missing", kind_hint="other")

    def fresh(self, view: View) -> Iterator[Row]:
        """Listed files that `videos` does not have with this etag, or whose failure is to be asked again."""
        listing = self.listing()
        known = view.has("videos")
        if known:
            view.con.execute(
                "CREATE OR REPLACE TABLE known AS SELECT unnest(uris) AS uri, unnest(etags) AS etag, "
                'CASE WHEN video_id IN (SELECT id FROM ruled) THEN unit_id END AS failed_in FROM "cur/videos"'
            )
        while batch := list(itertools.islice(listing, LIST_BATCH)):
            if known:
                found = pa.table({"uri": [r["uri"] for r in batch], "etag": [r["etag"] for r in batch]})
                view.con.register("found", found)
                sql = "SELECT uri, failed_in FROM found JOIN known USING (uri, etag)"
                have = dict(view.con.execute(sql).fetchall())
                batch = [
                    {**r, "failed_in": have.get(r["uri"])} for r in batch if have.get(r["uri"]) or r["uri"] not in have
                ]
            yield from batch

    def estimate(self, view: View) -> dict[str, Any]:
        sizes = [row["size_bytes"] for row in self.fresh(view)]
        return {"rows": len(sizes), "source_bytes": sum(sizes)}

    def units(self, rows: Iterable[Row], view: View, final: bool) -> Iterator[Unit | Result]:
        fingerprint = view.accepted[self.name][0]
        for batch in batched_by(self.fresh(view), self.config.files_per_unit, slots=view.slots):
            yield self._unit(fingerprint, batch)

    def _unit(self, fingerprint: str, rows: Sequence[Row], attempt: int = 0) -> Unit:
        keys = [f"{r['uri']}\0{r['etag']}\0{r.get('failed_in') or ''}".encode() for r in rows]
        return Unit(
            unit_id=ids.unit_id(self.name, fingerprint, keys),
            rows=tuple(rows),
            attempt=attempt,
            replaces=tuple((_lost_id(r), "") for r in rows),  # where it could not be read before
        )

    def make_unit(self, fingerprint: str, rows: Sequence[Row], group: str = "", attempt: int = 0) -> Unit:
        return self._unit(fingerprint, rows, attempt)

    def process(self, unit: Unit, context: Context) -> Result:
        from vidpipe.sandbox import progress

        found = []
        for i, row in enumerate(unit.rows):
            progress(i)
            found.append(examine(row))
        return self._result(found)

    def _result(self, found: list[Row]) -> Result:
        return Result(rows={"videos": table_from(tables.VIDEOS, found)}, outcomes=[_outcome(r) for r in found])

    def given_up(self, row: Row, reason: str, message: str) -> Result:
        """Row and outcome of a file that hung or crashed the probe: still a row of `videos`."""
        base = {"kind": "other", "status": "failed", "reason": reason, "message": message}
        named = {
            "video_id": _lost_id(row),
            "uris": [row["uri"]],
            "etags": [row["etag"]],
            "size_bytes": row["size_bytes"],
        }
        return self._result([{**base, **named}])

    def merge(self, rows: dict[str, pa.Table], view: View) -> tuple[dict[str, pa.Table], list[bytes]]:
        """Join rows of equal content, with each other and with those committed before."""
        if "videos" not in rows:
            return rows, []
        merged: dict[bytes, Row] = {}
        for row in rows["videos"].to_pylist():
            _add(merged, row)
        deleted = []
        for old in self._touched(rows["videos"], view):
            deleted.append(old["video_id"])
            moved = {uri for row in merged.values() if row["video_id"] != old["video_id"] for uri in row["uris"]}
            pairs = [(u, e) for u, e in zip(old["uris"], old["etags"]) if u not in moved]
            if pairs or old["reason"] not in ASKED_AGAIN:
                _add(merged, {**old, "uris": [p[0] for p in pairs], "etags": [p[1] for p in pairs]})
        found = [{k: v for k, v in row.items() if k not in ("unit_id", "fingerprint")} for row in merged.values()]
        return {**rows, "videos": table_from(tables.VIDEOS, found)}, deleted

    @staticmethod
    def _touched(new: pa.Table, view: View) -> list[Row]:
        """Committed rows with the content, or with a uri, of new ones."""
        if not view.has("videos"):
            return []
        uris = [uri for row in new["uris"].to_pylist() for uri in row or ()]
        view.con.register("new_ids", pa.table({"video_id": new["video_id"]}))
        view.con.register("new_uris", pa.table({"uri": pa.array(uris, pa.string())}))
        return (
            view.con.sql(
                'SELECT * FROM "cur/videos" v WHERE video_id IN (SELECT video_id FROM new_ids) '
                "OR EXISTS (SELECT 1 FROM new_uris n WHERE list_contains(v.uris, n.uri))"
            )
            .to_arrow_table()
            .to_pylist()
        )


def _is_within(folder: str, root: str) -> bool:
    """Whether a folder is `root` or below it; both are paths or object store URIs."""
    if "://" in folder or "://" in root:
        return f"{folder.rstrip('/')}/".startswith(f"{root.rstrip('/')}/")
    return Path(os.path.realpath(folder or ".")).is_relative_to(os.path.realpath(root))


def _add(merged: dict[bytes, Row], row: Row) -> None:
    have = merged.get(row["video_id"])
    if have is None:
        merged[row["video_id"]] = row
        return
    pairs = dict(zip(row["uris"], row["etags"])) | dict(zip(have["uris"], have["etags"]))
    # facts come from whichever uri sorts first, so that the order of arrival leaves no trace
    first = min(have, row, key=lambda r: (r["uris"] or ["\U0010ffff"])[0])
    merged[row["video_id"]] = {**first, "uris": sorted(pairs), "etags": [pairs[u] for u in sorted(pairs)]}


def _lost_id(row: Row) -> bytes:
    """Id of a file that could not be read: by uri and etag, since its content cannot be had."""
    return ids.text_id(f"{row['uri']}\0{row['etag']}\0unreadable")


def _outcome(row: Row) -> Outcome:
    return Outcome(
        id=row["video_id"],
        status=row["status"],
        reason=row["reason"],
        message=row["message"],
        seconds=row.get("seconds", 0.0),
    )


def _is_caption_map(uri: str) -> bool:
    """Whether a `.jsonl` file's first line names a file and a caption."""
    from vidpipe.captioners.sidecar import is_map_entry
    from vidpipe.media.files import open_bytes

    try:
        with open_bytes(uri) as file:
            return is_map_entry(json.loads(file.readline()))
    except (OSError, ValueError):
        return False


def examine(row: Row) -> Row:
    """Name and probe one file; what is wrong with it becomes its reason."""
    from vidpipe.media.errors import MediaError
    from vidpipe.media.files import open_bytes
    from vidpipe.media.probe import probe

    start = time.perf_counter()
    uri, size = row["uri"], row["size_bytes"]
    base: Row = {"uris": [uri], "etags": [row["etag"]], "size_bytes": size, "reason": "", "message": ""}
    lost = {"video_id": _lost_id(row), "kind": "other", "status": "failed", "reason": "io_error"}
    try:
        with open_bytes(uri) as file:
            if size < 0:
                size = base["size_bytes"] = file.seek(0, os.SEEK_END)
            base["video_id"] = ids.content_id(file, size)
    except (OSError, EOFError, MediaError) as error:
        return {**base, **lost, "message": f"{uri}: {error}"}
    if row["hint"] in ("sidecar_used", "clip_table_used"):
        kind = row["hint"].removesuffix("_used")
        return {**base, "kind": kind, "status": "rejected", "reason": kind, "message": f"{uri}: read as a {kind}"}
    try:
        facts = probe(uri, size).to_row()
        base.update(facts, status="kept")
    except MediaError as error:
        status = "rejected" if error.reason in NOT_FOOTAGE else "failed"
        base.update(kind="other", status=status, reason=error.reason, message=str(error))
    base["seconds"] = time.perf_counter() - start
    return base
