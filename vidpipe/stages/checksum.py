"""checksum (optional): read every byte, so that two files of one id and different bytes are found out."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from schemas import layout
from schemas.columns import ID, Column, TableSpec
from schemas.outcomes import Outcome
from schemas.tables import SPLIT
from vidpipe.stages.base import Context, Result, Row, Stage, Unit, batched_by, table_from
from vidpipe.stages.view import View
from vidpipe.store.reconcile import KeptRows

CHECKSUMS = TableSpec(
    name="checksum",
    key="video_id",
    meaning="SHA-256 of each source",
    columns=(
        Column(name="video_id", type=ID, nullable=False, meaning="row of `videos`"),
        Column(name="sha256", type=pa.binary(32), meaning="of all bytes of the first of its uris"),
        *SPLIT.columns[-2:],
    ),
)
UNIT_BYTES = 4 << 30
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Checksum(Stage):
    """Compares all uris of a row; one that differs makes the row `failed` with reason `id_collision`."""

    name = "checksum"
    version = 1
    upstream = ("ingest",)

    @property
    def table_name(self) -> str:
        """`tables/checksum`."""
        return layout.stage_table_name(self.name)

    def tables(self) -> dict[str, tuple[TableSpec, dict[bytes, bytes]]]:
        return {self.table_name: (CHECKSUMS, {})}

    def kept_rows(self) -> dict[str, KeptRows]:
        return {self.table_name: KeptRows(id_column="video_id")}

    def candidates(self, view: View) -> str | None:
        if not view.has("videos"):
            return None
        return "SELECT video_id AS id, uris, size_bytes FROM \"cur/videos\" WHERE status = 'kept' AND len(uris) > 0"

    def units(self, rows: Iterable[Row], view: View, final: bool) -> Iterator[Unit | Result]:
        for batch in batched_by(rows, UNIT_BYTES, "size_bytes", view.slots):
            yield self.make_unit(view.accepted[self.name][0], batch)

    def process(self, unit: Unit, context: Context) -> Result:
        from vidpipe.sandbox import progress

        result, found = Result(), []
        for i, row in enumerate(unit.rows):
            progress(i)
            start = time.perf_counter()
            try:
                digests = {uri: sha256(uri) for uri in row["uris"]}
            except OSError as error:
                result.outcomes += self.failed(row, "io_error", f"{row['uris'][0]}: {error}")
                continue
            seconds = time.perf_counter() - start
            first = row["uris"][0]
            others = [uri for uri, digest in digests.items() if digest != digests[first]]
            if others:
                message = f"{others[0]} has the id of {first}, but other bytes; only {first} is used"
                result.outcomes += self.failed(row, "id_collision", message, seconds)
            else:
                found.append({"video_id": row["id"], "sha256": digests[first]})
                result.outcomes.append(Outcome(id=row["id"], status="kept", seconds=seconds))
        if found:
            result.rows[self.table_name] = table_from(CHECKSUMS, found)
        return result


def sha256(uri: str) -> bytes:
    """SHA-256 of all bytes of a source."""
    from vidpipe.media.files import open_bytes

    digest = hashlib.sha256()
    with open_bytes(uri) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.digest()
