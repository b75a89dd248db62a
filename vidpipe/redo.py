"""Fingerprints of a recipe's stages, and what a changed one would do again.

A run that would redo more than 1% of what exists says so and stops, unless `--redo STAGE` asks for it, or
`--adopt STAGE` lets the rows of the older fingerprint count as done. Adoption is a small file beside the recipes: no
row is rewritten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from schemas import layout
from schemas.errors import UserError
from vidpipe.stages.base import Stage
from vidpipe.store.dataset import Dataset

NOTHING: Mapping[str, list[str]] = MappingProxyType({})


def fingerprints(stages: Sequence[Stage]) -> dict[str, str]:
    """Fingerprint of each stage; stages come in pipeline order."""
    found: dict[str, str] = {}
    for stage in stages:
        found[stage.name] = stage.fingerprint(found)
    return found


def _adopted_path(fingerprint: str) -> str:
    return f"recipes/{fingerprint}.adopts.json"


def accepted_fingerprints(
    dataset: Dataset, stages: Sequence[Stage], adopting: Mapping[str, list[str]] = NOTHING
) -> dict[str, list[str]]:
    """For each stage its fingerprint, then those that it adopted, or would by `adopting`."""
    accepted = {}
    for name, fingerprint in fingerprints(stages).items():
        text = dataset.files.read(_adopted_path(fingerprint))
        accepted[name] = [fingerprint, *(adopting.get(name) or (json.loads(text) if text else []))]
    return accepted


@dataclass(frozen=True, kw_only=True)
class Redo:
    """What a changed fingerprint would do again."""

    stage: str
    rows: int
    share: float
    hours: float
    size_bytes: int

    def __str__(self) -> str:
        size = f", {self.size_bytes / 1e9:.2f} GB of cached data" if self.size_bytes else ""
        return f"{self.stage}: {self.rows} rows ({self.share:.0%} of what is done), {self.hours:.2f} h of footage{size}"


def find_redo(dataset: Dataset, stages: Sequence[Stage], accepted: Mapping[str, list[str]]) -> list[Redo]:
    """Stages whose fingerprint changed, with what they would do again."""
    con = dataset.connect()
    names = set(dataset.names())
    found = []
    for stage in stages:
        table = layout.outcomes_name(stage.name)
        if table not in names or stage.replaces_table:
            continue
        ours = ", ".join(f"'{f}'" for f in accepted[stage.name])
        settled = f"SELECT DISTINCT id FROM \"{table}\" WHERE status <> 'rejected' AND fingerprint"
        old = f"{settled} NOT IN ({ours}) EXCEPT {settled} IN ({ours})"
        total = _value(con, f'SELECT count(DISTINCT id) FROM "{table}"')
        rows = _value(con, f"SELECT count(*) FROM ({old})")
        if rows > 0.01 * total:
            hours = _hours(con, names, old)
            found.append(
                Redo(stage=stage.name, rows=rows, share=rows / total, hours=hours, size_bytes=_bytes(dataset, stage))
            )
    con.close()
    return found


def _hours(con: Any, names: set[str], ids_sql: str) -> float:
    seconds = 0.0
    for table, key in (("videos", "video_id"), ("clips", "clip_id")):
        if table in names:
            once = f'SELECT max(duration_seconds) s FROM "{table}" WHERE "{key}" IN ({ids_sql}) GROUP BY "{key}"'
            seconds += _value(con, f"SELECT sum(s) FROM ({once})") or 0.0
    return seconds / 3600


def _value(con: Any, sql: str) -> Any:
    return con.execute(sql).fetchone()[0]


def _bytes(dataset: Dataset, stage: Stage) -> int:
    """Bytes of the stage's blob tables."""
    if not dataset.files.local:
        return 0
    folders = [
        Path(dataset.uri(name)) for name, (spec, _) in stage.tables().items() if any(c.blob for c in spec.columns)
    ]
    return sum(p.stat().st_size for folder in folders for p in folder.rglob("*") if p.is_file())


def adoptable(dataset: Dataset, stage: Stage, known: Sequence[Stage]) -> list[str]:
    """The stage's newest other fingerprint, and those that it adopted itself.

    Raises:
        UserError: there is none.
    """
    fingerprint = fingerprints(known)[stage.name]
    con = dataset.connect()
    table = layout.outcomes_name(stage.name)
    if table not in dataset.names():
        raise UserError(f"--adopt {stage.name}: the dataset has no rows of that stage")
    sql = (
        f"SELECT fingerprint FROM \"{table}\" WHERE fingerprint <> '{fingerprint}' "
        "GROUP BY 1 ORDER BY max(finished_at) DESC"
    )
    rows = con.execute(sql).fetchall()
    if not rows:
        raise UserError(f"--adopt {stage.name}: there is no other fingerprint to adopt")
    newest = rows[0][0]
    text = dataset.files.read(_adopted_path(newest))
    return [newest, *(json.loads(text) if text else [])]


def adopt(dataset: Dataset, known: Sequence[Stage], adopting: Mapping[str, list[str]]) -> None:
    """Let rows under the named fingerprints count as done under the stage's own, from now on."""
    ours = fingerprints(known)
    for name, adopted in adopting.items():
        dataset.files.write(_adopted_path(ours[name]), json.dumps(adopted).encode())


def check_redo(
    dataset: Dataset,
    stages: Sequence[Stage],
    known: Sequence[Stage],
    redo: Sequence[str],
    adopting: Mapping[str, list[str]] = NOTHING,
) -> None:
    """Raise UserError if more than 1% of a stage would be done again and nobody asked for it."""
    allowed = set(redo)
    for stage in known:
        if allowed & set(stage.computes_from):
            allowed.add(stage.name)
    accepted = accepted_fingerprints(dataset, known, adopting)
    refused = [r for r in find_redo(dataset, stages, accepted) if r.stage not in allowed]
    if refused:
        first = refused[0].stage
        raise UserError(
            "this recipe would do again what exists under other parameters: "
            + "; ".join(map(str, refused))
            + f". Say `--redo {first}` to do it, or `--adopt {first}` to count the existing rows as done"
        )
