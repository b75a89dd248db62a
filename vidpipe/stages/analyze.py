"""analyze: decode each video once; shots become clips, scorers their columns."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas import tables
from schemas.columns import TableSpec
from schemas.errors import UserError
from schemas.outcomes import Outcome
from vidpipe.analyze import AnalyzeConfig, analyze_video, fingerprint_params, scorer_columns
from vidpipe.media.errors import MediaError
from vidpipe.stages.base import Context, Result, Row, Stage, Unit, batched_by, table_from
from vidpipe.stages.view import View
from vidpipe.store.reconcile import KeptRows


@dataclass(frozen=True, kw_only=True)
class Analyze(Stage):
    """Shots and scores of each usable video.

    Attributes:
        spans: what a clip table gave: uri -> rows of start_seconds, end_seconds, caption; such videos skip shot
            detection and keep their spans.
        spans_hash: of the clip table, part of the fingerprint.
    """

    name = "analyze"
    version = 1
    upstream = ("ingest",)
    config: AnalyzeConfig
    unit_minutes: float = 5.0
    spans: dict[str, list[Row]] = field(default_factory=dict, repr=False)
    spans_hash: str = ""

    def params(self) -> Mapping[str, Any]:
        return {**fingerprint_params(self.config), "spans": self.spans_hash}

    def spec(self) -> TableSpec:
        """The clips table with the scorers' columns."""
        return tables.CLIPS.with_columns(scorer_columns(self.config))

    def tables(self) -> dict[str, tuple[TableSpec, dict[bytes, bytes]]]:
        return {"clips": (self.spec(), {})}

    def kept_rows(self) -> dict[str, KeptRows]:
        return {"clips": KeptRows(id_column="video_id")}

    def candidates(self, view: View) -> str | None:
        if not view.has("videos"):
            return None
        # longest first: the last unit to finish is then a short one
        return (
            "SELECT *, video_id AS id FROM \"cur/videos\" WHERE status = 'kept' AND len(uris) > 0 "
            "ORDER BY duration_seconds DESC, video_id"
        )

    def units(self, rows: Iterable[Row], view: View, final: bool) -> Iterator[Unit | Result]:
        fingerprint = view.accepted[self.name][0]
        for batch in batched_by(rows, self.unit_minutes * 60, "duration_seconds", view.slots):
            if self.spans:
                batch = [{**r, "spans": [s for u in r["uris"] for s in self.spans.get(u, ())]} for r in batch]
            yield self.make_unit(fingerprint, batch)

    def process(self, unit: Unit, context: Context) -> Result:
        from vidpipe.media.identity import location
        from vidpipe.sandbox import progress

        result = Result()
        clips: list[Row] = []
        for i, row in enumerate(unit.rows):
            progress(i)
            start = time.perf_counter()
            try:
                analyzed = analyze_video(
                    location(row), row, self.config, spans=row.get("spans"), decoder=context.decoder
                )
            except MediaError as error:
                seconds = time.perf_counter() - start
                result.outcomes += self.failed(row, error.reason, str(error), seconds)
                continue
            clips += analyzed.clips
            seconds = time.perf_counter() - start
            if analyzed.clips:
                told = analyzed.message  # such as a span of the clip table that has no frames
                result.outcomes.append(Outcome(id=row["id"], status="kept", message=told, seconds=seconds))
            else:
                message = analyzed.message or f"{row['uris'][0]}: no shot is long enough; lower analyze.min_seconds"
                result.outcomes.append(
                    Outcome(id=row["id"], status="rejected", reason="no_clips", message=message, seconds=seconds)
                )
        if clips:
            result.rows["clips"] = table_from(self.spec(), clips)
        return result


def read_spans(path: str) -> tuple[dict[str, list[Row]], str]:
    """Read a clip table into spans by uri, with a hash of them."""
    from schemas.ids import canonical_json, text_id
    from vidpipe.media.sources import read_clip_table

    spans: dict[str, list[Row]] = {}
    for row in read_clip_table(path).to_pylist():
        spans.setdefault(row.pop("uri"), []).append(row)
    if not spans:
        raise UserError(f"clip table {path}: no rows")
    return spans, text_id(canonical_json(spans).decode()).hex()[:16]
