"""The HTML report of a dataset: one file, no scripts, nothing loaded from elsewhere.

Tables and charts are aggregates by DuckDB, so the page costs the same at any size; pictures are decoded from the
sources, a few dozen clips chosen by hash, so that the same dataset shows the same ones.
"""

from __future__ import annotations

import datetime
import html
import importlib.resources
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from schemas import layout, tables
from schemas.errors import UserError
from vidpipe.progress import duration_text
from vidpipe.report import charts, pictures
from vidpipe.report.snapshot import Snapshot
from vidpipe.report.status import bytes_text, gather
from vidpipe.store.dataset import Dataset

NUM_CLIPS = 24
NUM_EXAMPLES = 3
NUM_FAILURES = 100
NUM_RULES = 12


def write_report(root: str, path: str | None = None) -> str:
    """Write the report of a dataset; return where it is.

    Args:
        path: a file; `report.html` in the dataset by default.
    Raises:
        UserError: no dataset there, or the file cannot be written.
    """
    dataset = Dataset(root).open()
    text = render(dataset)
    try:
        if path is None:
            dataset.files.write("report.html", text.encode())
            return dataset.files.path("report.html")
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"report {path or root}: cannot be written: {error}") from None
    return path


def render(dataset: Dataset) -> str:
    """The page as text."""
    with Snapshot(dataset) as snapshot:
        found = gather(snapshot)
        parts = [
            _head(found),
            _stages(found),
            _sources(snapshot),
            _refusals(snapshot, found),
            _histograms(snapshot, found),
            _contact_sheet(snapshot),
            _captions(snapshot, found),
            _buckets(found),
            _groups(snapshot),
            _times(snapshot, found),
            _failures(snapshot),
            _recipe(dataset),
        ]
    css = importlib.resources.files("vidpipe.report").joinpath("page.css").read_text(encoding="utf-8")
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(Path(dataset.root).name)} — vidpipe report</title><style>\n{css}</style></head><body><main>\n"
        + "\n".join(part for part in parts if part)
        + f"\n<footer>Written by vidpipe, {now}.</footer>\n</main></body></html>\n"
    )


# -- pieces of HTML


def escape(value: Any) -> str:
    """Text as HTML."""
    return html.escape(str(value))


def shortened(text: str, limit: int = 110) -> str:
    """The first clause of a column's meaning, in at most `limit` characters."""
    return textwrap.shorten(re.split(r"[;:] ", text)[0], limit, placeholder=" …")


def section(title: str, *parts: str) -> str:
    """A titled card; nothing if it has no parts."""
    body = "".join(parts)
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def table_html(titles: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()) -> str:
    """A table of cells that are HTML already; `numeric` columns align right. Nothing without rows."""
    numeric = set(numeric)
    kind = [' class="n"' if i in numeric else "" for i in range(len(titles))]
    head = "".join(f"<th{k}>{escape(t)}</th>" for k, t in zip(kind, titles))
    body = "".join("<tr>" + "".join(f"<td{k}>{c}</td>" for k, c in zip(kind, row)) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if body else ""


def track(*shares: tuple[str, float]) -> str:
    """A bar of (class, share of the whole) segments."""
    inner = "".join(f'<i class="{name}" style="width:{100 * share:.2f}%"></i>' for name, share in shares if share)
    return f'<div class="track">{inner}</div>'


def clip_figure(clip: dict[str, Any], text: str) -> str:
    """A clip's strip with where it is from; a line of text where its source cannot be shown."""
    try:
        picture = f'<img src="{pictures.strip(clip)}" alt="three frames of the clip">'
    except (UserError, OSError) as error:
        picture = f'<div class="missing">not shown: {escape(error)}</div>'
    name = escape(clip["uris"][0].rpartition("/")[2])
    span = f"{clip['start_seconds']:.2f}-{clip['end_seconds']:.2f} s"
    return f"<figure>{picture}<figcaption><b>{name}</b> {span}<br>{text}</figcaption></figure>"


# -- sections


def _head(found: dict[str, Any]) -> str:
    videos, clips, buckets = found["videos"], found["clips"], found["buckets"]
    tiles = [(f"{videos.get('files', 0):,}", "files"), (f"{videos.get('usable', 0):,}", "usable videos")]
    if videos.get("hours"):
        tiles.append((duration_text(videos["hours"] * 3600), "of footage"))
    if clips["rows"]:
        tiles.append((f"{clips['rows']:,}", f"clips, {duration_text(clips['hours'] * 3600)}"))
    if found["captions"]:
        tiles.append((f"{sum(c['rows'] for c in found['captions']):,}", "captions"))
    if buckets:
        tiles.append((f"{sum(b['rows'] for b in buckets):,}", "cached latents"))
        tiles.append((f"{sum(b['tokens'] for b in buckets):,}", "tokens"))
    tiles.append((bytes_text(sum(t["bytes"] for t in found["tables"])), "on disk"))
    cells = "".join(f'<div class="tile"><b>{escape(n)}</b><span>{escape(t)}</span></div>' for n, t in tiles)
    return f'<h1>{escape(found["dataset"])}</h1><div class="tiles">{cells}</div>'


def _stages(found: dict[str, Any]) -> str:
    rows = []
    for stage in found["stages"]:
        total = (stage["kept"] + stage["rejected"] + stage["failed"]) or 1
        bar = track(*((s, stage[s] / total) for s in ("kept", "rejected", "failed")))
        others = sum(stage["other_fingerprints"].values())
        name = escape(stage["stage"]) + (
            f'<br><span class="soft">{others:,} under other parameters</span>' if others else ""
        )
        pending = "" if stage["pending"] is None else f"{stage['pending']:,}"
        rows.append([name, bar, *(f"{stage[s]:,}" for s in ("kept", "rejected", "failed")), pending])
    legend = (
        '<div class="legend"><i class="kept"></i>kept<i class="rejected"></i>rejected<i class="failed"></i>failed</div>'
    )
    titles = ("stage", "", "kept", "rejected", "failed", "pending")
    return section("What each stage did", legend, table_html(titles, rows, range(2, 6)))


def _sources(snapshot: Snapshot) -> str:
    if not snapshot.has("videos"):
        return ""
    reasons = snapshot.rows(
        """SELECT status, reason, any_value(message ORDER BY uris[1]) AS message, sum(len(uris)) AS files,
           coalesce(sum(size_bytes), 0) AS bytes, coalesce(sum(duration_seconds), 0) AS seconds
           FROM "now/videos" GROUP BY status, reason ORDER BY status = 'kept' DESC, status DESC, files DESC, reason"""
    )
    shown = [
        [
            f'<span class="{r["status"]}">{r["status"]}</span>',
            escape(r["reason"]),
            f"{r['files']:,}",
            duration_text(r["seconds"]) if r["seconds"] else "",
            bytes_text(r["bytes"]),
            f'<span class="soft">{escape(r["message"] or "")}</span>',
        ]
        for r in reasons
    ]
    kinds = snapshot.rows(
        """SELECT codec, width || ' x ' || height AS size, round(avg(avg_fps), 2) AS fps, count(*) AS videos,
           sum(duration_seconds) AS seconds FROM "now/videos" WHERE status = 'kept' GROUP BY codec, width, height
           ORDER BY videos DESC, codec, size LIMIT 15"""
    )
    formats = [
        [
            escape(k["codec"]),
            escape(k["size"]),
            charts.number(k["fps"] or 0),
            f"{k['videos']:,}",
            duration_text(k["seconds"]),
        ]
        for k in kinds
    ]
    return section(
        "What came in",
        table_html(("", "reason", "files", "footage", "bytes", "for example"), shown, (2, 3, 4)),
        "<h3>Formats</h3>" if formats else "",
        table_html(("codec", "displayed size", "mean frames/s", "videos", "footage"), formats, (2, 3, 4)),
    )


def _refusals(snapshot: Snapshot, found: dict[str, Any]) -> str:
    parts = []
    for stage in found["stages"]:
        total = stage["kept"] + stage["rejected"] + stage["failed"]
        reasons = [r for r in stage["reasons"] if r["status"] == "rejected"][:NUM_RULES]
        if stage["stage"] == "ingest" or not reasons:
            continue
        parts.append(f"<h3>{escape(stage['stage'])}</h3>")
        for reason in reasons:
            parts.append(_refusal(snapshot, stage["stage"], reason, total))
    return section("Rejected, and why", *parts)


def _refusal(snapshot: Snapshot, stage: str, reason: dict[str, Any], total: int) -> str:
    outcomes = f'"now/{layout.outcomes_name(stage)}"'
    key = [reason["reason"], reason["rule"]]
    what = f"<code>{escape(reason['rule'] or reason['reason'])}</code>" + (" is false:" if reason["rule"] else ":")
    share = f'<span class="soft">{reason["rows"]:,} of {total:,} ({reason["rows"] / total:.1%})</span>'
    where = "status = 'rejected' AND reason = ? AND rule = ? ORDER BY md5(hex(id))"
    if "clips" in snapshot.names and "uris" in snapshot.clip_columns:
        clips = snapshot.rows(
            f"SELECT c.*, o.value, o.message FROM (SELECT * FROM {outcomes} WHERE {where}) o "
            f"JOIN clip c ON o.id = c.clip_id ORDER BY md5(hex(id)) LIMIT {NUM_EXAMPLES}",
            key,
        )
        if clips:
            figures = "".join(clip_figure(c, f"<code>{escape(c['value'] or c['message'])}</code>") for c in clips)
            return f'<p>{what} {share}</p><div class="clips">{figures}</div>'
    examples = snapshot.rows(f"SELECT message FROM {outcomes} WHERE {where} LIMIT {NUM_EXAMPLES}", key)
    lines = "<br>".join(escape(e["message"]) for e in examples)
    return f'<p>{what} {share}<br><span class="soft">{lines}</span></p>'


def _kept_clips(snapshot: Snapshot) -> str:
    """SQL of the ids of clips that the last clip stage kept."""
    for stage in ("encode", "caption"):
        table = f"now/{layout.outcomes_name(stage)}"
        if snapshot.has(layout.outcomes_name(stage)) and snapshot.value(f'SELECT count(*) FROM "{table}"'):
            return f"SELECT id FROM \"{table}\" WHERE status = 'kept'"
    return "SELECT clip_id FROM clip"


def _score_columns(snapshot: Snapshot) -> dict[str, Any]:
    """Arrow fields of floating-point columns that say something of a clip's content."""
    import pyarrow as pa

    fields = {"duration_seconds": tables.CLIPS.schema().field("duration_seconds")}
    fixed = {c.name for c in tables.CLIPS.columns} - {"damaged_fraction"}
    for name in snapshot.names:
        if name == "clips" or name.startswith("scores/"):
            for field in snapshot.dataset.table(name).schema:
                if pa.types.is_floating(field.type) and field.name not in fixed:
                    fields.setdefault(field.name, field)
    return {name: field for name, field in fields.items() if name in snapshot.clip_columns}


def _histograms(snapshot: Snapshot, found: dict[str, Any]) -> str:
    if not snapshot.clip_columns:
        return ""
    kept_sql = _kept_clips(snapshot)
    marks = charts.thresholds([r["rule"] for s in found["stages"] for r in s["reasons"]])
    figures = []
    for name, field in _score_columns(snapshot).items():
        chart = charts.histogram(snapshot, name, kept_sql)
        if chart is None:
            continue
        metadata = field.metadata or {}
        unit = metadata.get(b"unit", b"").decode()
        meaning = metadata.get(b"meaning", b"").decode()
        nulls = f"; {chart.nulls:,} without" if chart.nulls else ""
        figures.append(
            f'<figure>{charts.draw(chart, marks.get(name, ()))}<figcaption title="{escape(meaning)}">'
            f"<b>{escape(name)}</b>{f' ({escape(unit)})' if unit else ''}: {escape(shortened(meaning))}{nulls}"
            "</figcaption></figure>"
        )
    if not figures:
        return ""
    legend = (
        '<div class="legend"><i class="kept"></i>clips kept to the end<i style="background:var(--bar)"></i>the others;'
        " dashed lines are thresholds that rejected something</div>"
    )
    return section("Scores", legend, f'<div class="charts">{"".join(figures)}</div>')


def _contact_sheet(snapshot: Snapshot) -> str:
    if "uris" not in snapshot.clip_columns:
        return ""
    clips = snapshot.rows(
        f"""SELECT * FROM clip WHERE clip_id IN ({_kept_clips(snapshot)}) AND len(uris) > 0
            QUALIFY row_number() OVER (PARTITION BY video_id ORDER BY md5(hex(clip_id))) <= 2
            ORDER BY row_number() OVER (PARTITION BY video_id ORDER BY md5(hex(clip_id))), md5(hex(clip_id))
            LIMIT {NUM_CLIPS}"""
    )
    captions = {}
    if snapshot.has("captions"):
        captions = dict(
            snapshot.con.execute(
                'SELECT clip_id, min(text) FROM "now/captions" WHERE list_contains(?, clip_id) GROUP BY clip_id',
                [[c["clip_id"] for c in clips]],
            ).fetchall()
        )
    figures = [clip_figure(c, escape(captions.get(c["clip_id"], ""))) for c in clips]
    return section(
        "Some of the clips that were kept", f'<div class="clips">{"".join(figures)}</div>' if figures else ""
    )


def _captions(snapshot: Snapshot, found: dict[str, Any]) -> str:
    rows = [
        [
            escape(c["source"]),
            f"{c['rows']:,}",
            f"{c['clips']:,}",
            f"{c['prompt_tokens'] or 0:,}",
            f"{c['completion_tokens'] or 0:,}",
        ]
        for c in found["captions"]
    ]
    return section(
        "Captions", table_html(("source", "captions", "clips", "prompt tokens", "completion tokens"), rows, range(1, 5))
    )


def _buckets(found: dict[str, Any]) -> str:
    total = sum(b["tokens"] for b in found["buckets"]) or 1
    rows = [
        [
            f"{escape(b['space'])} <b>{escape(b['bucket'])}</b>",
            f"{b['rows']:,}",
            f"{b['tokens_per_row']:,}",
            f"{b['tokens']:,}",
            bytes_text(b["bytes"]),
            duration_text(b["video_seconds"]),
            charts.number(b["mean_scale"] or 0),
            f"{b['mean_cropped_fraction'] or 0:.1%}",
            charts.number(b["mean_frames_dropped"] or 0),
            track(("accent", b["tokens"] / total)),
        ]
        for b in found["buckets"]
        if b["rows"]
    ]
    titles = (
        "bucket",
        "rows",
        "tokens each",
        "tokens",
        "payload",
        "footage",
        "scale",
        "cropped",
        "frames dropped",
        "share of tokens",
    )
    note = '<p class="soft">Tokens at a patch of 1x2x2. Scale, cropped area and trailing frames dropped are means.</p>'
    body = table_html(titles, rows, range(1, 9))
    return section("Cached latents", body, note if body else "")


def _groups(snapshot: Snapshot) -> str:
    rows = []
    if snapshot.has("tables/near_duplicates"):
        found = snapshot.rows(
            """SELECT count(*) AS clips, count(DISTINCT duplicate_group) AS groups,
               count(*) FILTER (is_duplicate) AS duplicates FROM "now/tables/near_duplicates" """
        )[0]
        rows.append(["near-duplicate groups", f"{found['groups']:,}"])
        rows.append(["clips that another one stands for", f"{found['duplicates']:,}"])
    if snapshot.has("tables/split"):
        for row in snapshot.rows(
            'SELECT split, count(*) AS clips FROM "now/tables/split" GROUP BY split ORDER BY split DESC'
        ):
            rows.append([f"clips in <code>{escape(row['split'])}</code>", f"{row['clips']:,}"])
    return section("Near-duplicates and split", table_html(("", "count"), rows, (1,)))


def _times(snapshot: Snapshot, found: dict[str, Any]) -> str:
    most = max((s["worker_seconds"] for s in found["stages"]), default=0.0) or 1.0
    footage = {
        "analyze": found["videos"].get("hours", 0.0) * 3600,
        "encode": sum(b["video_seconds"] for b in found["buckets"]),
    }
    rows = []
    for stage in found["stages"]:
        seconds = stage["worker_seconds"]
        done = stage["kept"] + stage["rejected"] + stage["failed"]
        ratio = footage.get(stage["stage"], 0.0) / seconds if seconds else 0.0
        rows.append(
            [
                escape(stage["stage"]),
                f"{seconds:,.1f} s",
                f"{1000 * seconds / done:,.1f} ms" if done else "",
                f"{ratio:,.1f}" if ratio else "",
                "" if stage["rows_per_second"] is None else f"{stage['rows_per_second']:,.1f}",
                track(("accent", seconds / most)),
            ]
        )
    titles = ("stage", "worker time", "each", "video-h a worker-h", "rows/s of late", "")
    return section("Time", table_html(titles, rows, range(1, 5)))


def _failures(snapshot: Snapshot) -> str:
    queries = [
        f"SELECT '{stage}' AS stage, reason, message, finished_at FROM \"now/{layout.outcomes_name(stage)}\" "
        "WHERE status = 'failed'"
        for stage in snapshot.stages
    ]
    if not queries:
        return ""
    union = " UNION ALL ".join(queries)
    total = snapshot.value(f"SELECT count(*) FROM ({union})")
    found = snapshot.rows(f"SELECT * FROM ({union}) ORDER BY stage, reason, message LIMIT {NUM_FAILURES}")
    rows = [[escape(f["stage"]), f"<code>{escape(f['reason'])}</code>", escape(f["message"])] for f in found]
    more = f'<p class="soft">The first {len(rows)} of {total:,}.</p>' if total > len(rows) else ""
    return section("Failures", table_html(("stage", "reason", "message"), rows), more)


def _recipe(dataset: Dataset) -> str:
    """The newest recipe that ran, every default written out."""
    names = [name for name in dataset.files.list("recipes") if name.endswith(".toml")]
    if not names:
        return ""
    texts = {name: (dataset.files.read(f"recipes/{name}") or b"").decode(errors="replace") for name in sorted(names)}
    blocks = "".join(
        f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>" for name, text in texts.items()
    )
    return section("Recipes that ran", blocks)
