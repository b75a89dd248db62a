"""score: a scorer that is run later than the analyze pass, into a table of its own; nothing else is touched."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from schemas import layout, tables
from schemas.columns import TableSpec
from schemas.outcomes import Outcome
from vidpipe.analyze import AnalyzeConfig, analyze_video, fingerprint_params, scorer_columns
from vidpipe.media.errors import MediaError
from vidpipe.sections import ScoreConfig
from vidpipe.stages.base import Context, Result, Row, Stage, Unit, batched_by, table_from
from vidpipe.stages.view import View
from vidpipe.store.reconcile import KeptRows

UNIT_SECONDS = 300.0
FACTS = ("video_id", "stream_index", "time_base_num", "time_base_den", "kind", "uris", "etags")


@dataclass(frozen=True, kw_only=True)
class Score(Stage):
    """Runs one scorer over the clips that exist; each video is decoded once for all its clips of a unit."""

    version = 1
    upstream = ("analyze",)
    config: ScoreConfig

    @property
    def name(self) -> str:  # type: ignore[override]
        """`score-<scorer>`, a stage of its own for each scorer."""
        return f"score-{self.config.name}"

    @property
    def where(self) -> str:  # type: ignore[override]
        """Selection expression."""
        return self.config.where

    @property
    def analyze(self) -> AnalyzeConfig:
        """An analyze pass with this scorer alone."""
        params = {self.config.name: self.config.params} if self.config.params else {}
        return AnalyzeConfig(scorers=(self.config.name,), scorer_params=params)

    def params(self) -> Mapping[str, Any]:
        return fingerprint_params(self.analyze)

    @property
    def table_name(self) -> str:
        """`scores/<scorer>`."""
        return layout.scores_name(self.config.name)

    def spec(self) -> TableSpec:
        """The scores table with the scorer's columns."""
        return tables.SCORES.with_columns(scorer_columns(self.analyze))

    def tables(self) -> dict[str, tuple[TableSpec, dict[bytes, bytes]]]:
        return {self.table_name: (self.spec(), {})}

    def kept_rows(self) -> dict[str, KeptRows]:
        return {self.table_name: KeptRows(id_column="clip_id")}

    def candidates(self, view: View) -> str | None:
        if not view.has("clips") or not view.has("videos"):
            return None
        theirs = [*FACTS, "width", "height"]
        facts = ", ".join(f'v."{c}"' for c in theirs)
        ours = ", ".join(f'c."{c}"' for c in view.columns["clips"] if c not in theirs)
        return (
            f'SELECT c.clip_id AS id, {ours}, {facts} FROM "cur/clips" c '
            'JOIN "cur/videos" v ON c.video_id = v.video_id ORDER BY c.video_id, c.start_pts'
        )

    def units(self, rows: Iterable[Row], view: View, final: bool) -> Iterator[Unit | Result]:
        for batch in batched_by(rows, UNIT_SECONDS, "duration_seconds", view.slots):
            yield self.make_unit(view.accepted[self.name][0], batch)

    def process(self, unit: Unit, context: Context) -> Result:
        from vidpipe.media.identity import location
        from vidpipe.sandbox import progress

        result = Result()
        scored: list[Row] = []
        names = ["clip_id", *(c.name for c in scorer_columns(self.analyze))]
        done = 0
        for _, group in itertools.groupby(unit.rows, key=lambda r: r["video_id"]):
            rows = list(group)
            progress(done)
            done += len(rows)
            start = time.perf_counter()
            spans = [
                {"start_seconds": r["start_seconds"], "end_seconds": r["end_seconds"], "crop_xywh": r["user_crop"]}
                for r in rows
            ]
            try:
                found = analyze_video(location(rows[0]), rows[0], self.analyze, spans, decoder=context.decoder).clips
            except MediaError as error:
                for row in rows:
                    result.outcomes += self.failed(row, error.reason, str(error))
                continue
            seconds = (time.perf_counter() - start) / len(rows)
            by_id = {c["clip_id"]: c for c in found}
            for row in rows:
                clip = by_id.get(row["id"])
                if clip is None:
                    message = (
                        f"{row['uris'][0]}, {row['start_seconds']:.3f} s: its frames are not where analyze found them"
                    )
                    result.outcomes += self.failed(row, "span_moved", message, seconds)
                    continue
                scored.append({n: clip[n] for n in names})
                result.outcomes.append(Outcome(id=row["id"], status="kept", seconds=seconds))
        if scored:
            result.rows[self.table_name] = table_from(self.spec(), scored)
        return result
