"""How far a dataset is, as one JSON-able dict, and the same for a terminal."""

from __future__ import annotations

from typing import Any

from schemas import layout
from schemas.buckets import Bucket
from vidpipe.report.snapshot import Snapshot
from vidpipe.store.dataset import Dataset
from vidpipe.store.lease import holder

RATE_SECONDS = 600
"""Rates are measured over the last ten minutes of a stage's commits."""

_INPUTS = {
    "checksum": ("videos", "SELECT video_id AS id FROM \"now/videos\" WHERE status = 'kept'"),
    "analyze": ("videos", "SELECT video_id AS id FROM \"now/videos\" WHERE status = 'kept'"),
    "score": ("clips", 'SELECT clip_id AS id FROM "now/clips"'),
    "caption": ("clips", 'SELECT clip_id AS id FROM "now/clips"'),
    "embed": ("captions", 'SELECT DISTINCT text_id AS id FROM "now/captions"'),
    "encode": ("clips", 'SELECT clip_id AS id FROM "now/clips"'),
}


def status(root: str) -> dict[str, Any]:
    """Counts, rates and sizes of a dataset.

    Keys: `stages` (kept, rejected, failed, pending rows; reasons; rates; worker seconds), `tables` (rows, bytes on
    disk), `buckets` (rows, tokens, payload bytes), `videos`, `clips`, `captions`.

    Raises:
        UserError: no dataset there.
    """
    with Snapshot(Dataset(root).open()) as snapshot:
        return gather(snapshot)


def gather(snapshot: Snapshot) -> dict[str, Any]:
    """`status` of an open snapshot."""
    return {
        "dataset": snapshot.dataset.root,
        "stages": [stage_status(snapshot, stage) for stage in snapshot.stages],
        "tables": [
            {
                "table": name,
                "rows": snapshot.value(f'SELECT count(*) FROM "now/{name}"'),
                "bytes": snapshot.table_bytes(name),
            }
            for name in snapshot.names
        ],
        "buckets": [bucket_status(snapshot, name) for name in snapshot.latent_tables],
        "videos": _one(snapshot, "videos", _VIDEOS),
        "clips": _one(snapshot, "clips", _CLIPS),
        "captions": snapshot.rows(_CAPTIONS) if snapshot.has("captions") else [],
    }


_VIDEOS = """
SELECT count(*) AS rows, coalesce(sum(len(uris)), 0) AS files, count(*) FILTER (status = 'kept') AS usable,
       coalesce(sum(size_bytes), 0) AS bytes, coalesce(sum(duration_seconds), 0) / 3600 AS hours
FROM "now/videos"
"""
_CLIPS = """
SELECT count(*) AS rows, coalesce(sum(duration_seconds), 0) / 3600 AS hours,
       median(duration_seconds) AS median_seconds FROM "now/clips"
"""
_CAPTIONS = """
SELECT source, count(*) AS rows, count(DISTINCT clip_id) AS clips, sum(prompt_tokens) AS prompt_tokens,
       sum(completion_tokens) AS completion_tokens FROM "now/captions" GROUP BY source ORDER BY source
"""


def _one(snapshot: Snapshot, table: str, sql: str) -> dict[str, Any]:
    return snapshot.rows(sql)[0] if snapshot.has(table) else {"rows": 0}


def stage_status(snapshot: Snapshot, stage: str) -> dict[str, Any]:
    """One stage: its outcomes, what waits for it, and how fast it went."""
    table = layout.outcomes_name(stage)
    newest = snapshot.fingerprints[stage][:1]
    found = snapshot.rows(
        f"""SELECT count(*) FILTER (status = 'kept') AS kept, count(*) FILTER (status = 'rejected') AS rejected,
            count(*) FILTER (status = 'failed') AS failed, coalesce(sum(seconds), 0) AS worker_seconds,
            min(finished_at) AS started_at, max(finished_at) AS finished_at FROM "now/{table}" """
    )[0]
    process = holder(snapshot.dataset, stage)
    others = snapshot.rows(
        f'SELECT fingerprint, count(*) AS rows FROM "{table}" WHERE fingerprint NOT IN '
        f'(SELECT fingerprint FROM "now/{table}") GROUP BY 1 ORDER BY 1'
    )
    return {
        "stage": stage,
        "fingerprint": newest[0] if newest else "",
        **found,
        "coordinator": f"process {process.pid} on {process.host}" if process else "",
        "pending": _pending(snapshot, stage),
        "rows_per_second": _rate(snapshot, table),
        "reasons": snapshot.rows(
            f"""SELECT status, reason, rule, count(*) AS rows FROM "now/{table}" WHERE status <> 'kept'
                GROUP BY ALL ORDER BY status DESC, rows DESC, reason, rule"""
        ),
        "other_fingerprints": {r["fingerprint"]: r["rows"] for r in others},
    }


def _pending(snapshot: Snapshot, stage: str) -> int | None:
    """Input rows without an outcome; None for a stage whose input no table lists."""
    table, sql = _INPUTS.get(stage.partition("-")[0].partition(":")[0], ("", ""))
    if not table:
        return None
    if not snapshot.has(table):
        return 0
    done = f'"now/{layout.outcomes_name(stage)}"'
    return snapshot.value(f"SELECT count(*) FROM ({sql}) i ANTI JOIN {done} d ON i.id = d.id")


def _rate(snapshot: Snapshot, table: str) -> float | None:
    """Outcomes a second between the commits of the last ten minutes of work; None from a single commit."""
    row = snapshot.rows(
        f"""WITH span AS (SELECT max(finished_at) AS last, min(finished_at) AS earliest FROM "now/{table}"),
                 cut AS (SELECT last, greatest(earliest, last - INTERVAL {RATE_SECONDS} SECOND) AS first FROM span)
            SELECT count(*) FILTER (o.finished_at > first) AS rows, epoch(any_value(last) - any_value(first)) AS seconds
            FROM cut LEFT JOIN "now/{table}" o ON true"""
    )[0]
    return row["rows"] / row["seconds"] if row["seconds"] else None


def bucket_status(snapshot: Snapshot, name: str) -> dict[str, Any]:
    """One latent table: rows, tokens at a patch of 1x2x2, payload bytes, and what was lost on the way."""
    _, space_name, bucket_name = name.split("/")
    space, bucket = snapshot.latent_space(name), Bucket.parse(bucket_name)
    channels, frames, height, width = bucket.latent_shape(space)
    parts = 2 if space.posterior == "mean_logvar" else 1
    found = snapshot.rows(
        f"""SELECT count(*) AS rows, count(DISTINCT clip_id) AS clips, sum({bucket.num_frames} / fps) AS video_seconds,
            avg(scale) AS mean_scale, avg(cropped_fraction) AS mean_cropped_fraction,
            avg(frames_dropped) AS mean_frames_dropped FROM "now/{name}" """
    )[0]
    tokens = bucket.num_tokens(space)
    return {
        "table": name,
        "space": space_name,
        "bucket": bucket_name,
        **found,
        "video_seconds": found["video_seconds"] or 0.0,
        "latent_shape": [channels, frames, height, width],
        "tokens_per_row": tokens,
        "tokens": tokens * found["rows"],
        "bytes": found["rows"] * parts * channels * frames * height * width * space.element_bytes,
    }


def bytes_text(size: float) -> str:
    """`512 B`, `3.4 MB`, `1.2 TB`: powers of 1000."""
    units = ["B", "kB", "MB", "GB", "TB", "PB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.3g} {units[0]}"


def print_status(found: dict[str, Any]) -> None:
    """Draw what `status` returned on standard output."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    videos, clips = found["videos"], found["clips"]
    console.print(found["dataset"], style="bold", markup=False)
    if videos["rows"]:
        console.print(
            f"{videos['files']:,} files ({videos['usable']:,} usable videos, {videos['hours']:.3g} h, "
            f"{bytes_text(videos['bytes'])}); {clips['rows']:,} clips"
            + (f", {clips['hours']:.3g} h" if clips["rows"] else "")
        )
    table = Table(box=None, header_style="dim", pad_edge=False)
    for title in ("stage", "pending", "kept", "rejected", "failed", "rows/s", "worker time"):
        table.add_column(title, justify="left" if title == "stage" else "right")
    for stage in found["stages"]:
        rate = stage["rows_per_second"]
        table.add_row(
            stage["stage"],
            "" if stage["pending"] is None else f"{stage['pending']:,}",
            f"{stage['kept']:,}",
            f"[yellow]{stage['rejected']:,}[/yellow]" if stage["rejected"] else "",
            f"[red]{stage['failed']:,}[/red]" if stage["failed"] else "",
            "" if rate is None else f"{rate:,.1f}",
            f"{stage['worker_seconds']:,.1f} s",
        )
    console.print(table)
    for process in sorted({s["coordinator"] for s in found["stages"]} - {""}):
        running = [s["stage"] for s in found["stages"] if s["coordinator"] == process]
        console.print(f"running now: {', '.join(running)} by {process}", markup=False)
    for stage in found["stages"]:
        if others := stage["other_fingerprints"]:
            console.print(
                f"{stage['stage']}: {sum(others.values()):,} more outcomes under other parameters", style="dim"
            )
    _print_reasons(found, console)
    _print_buckets(found, console)


def _print_reasons(found: dict[str, Any], console: Any) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False)
    for title in ("why not kept", "", "rows"):
        table.add_column(title, justify="right" if title == "rows" else "left")
    for stage in found["stages"]:
        for reason in stage["reasons"]:
            what = f"{reason['rule']} is false" if reason["rule"] else reason["reason"]
            table.add_row(f"{stage['stage']}: {reason['status']}", escape(what), f"{reason['rows']:,}")
    if table.row_count:
        console.print()
        console.print(table)


def _print_buckets(found: dict[str, Any], console: Any) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False)
    for title in ("latents", "rows", "tokens", "payload"):
        table.add_column(title, justify="left" if title == "latents" else "right")
    for bucket in found["buckets"]:
        name = f"{bucket['space']} {bucket['bucket']}"
        table.add_row(name, f"{bucket['rows']:,}", f"{bucket['tokens']:,}", bytes_text(bucket["bytes"]))
    if table.row_count:
        console.print()
        console.print(table)
