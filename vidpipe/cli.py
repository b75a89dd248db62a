"""The `vidpipe` command. Imports of weight happen inside the commands: `vidpipe --help` answers at once."""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import click

from schemas.errors import UserError

SHOWN_REASONS = 3


class _Group(click.Group):
    """Says what went wrong in one line; exit status 2 for a user's error, 130 after Ctrl-C, 143 after SIGTERM."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            click.echo(f"vidpipe: {error}", err=True)
            sys.exit(2)
        except KeyboardInterrupt as error:
            from vidpipe.interrupts import Terminated

            click.echo("vidpipe: stopped; everything that was committed stays, run again to go on", err=True)
            sys.exit(143 if isinstance(error, Terminated) else 130)
        except Exception as error:
            told = _unreadable(error)
            if not told:
                raise
            click.echo(f"vidpipe: a table cannot be read: {told}; `vidpipe verify DATASET` says which", err=True)
            sys.exit(2)


def _unreadable(error: Exception) -> str:
    """What Lance says of a damaged or lost file, through whichever library; empty for any other error."""
    text = " ".join(str(error).split())
    if not re.search(r"LanceError\(|/rust/lance", text):
        return ""
    return re.sub(r", /\S+\.rs:\d+:\d+", "", text)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vidpipe")
def main() -> None:
    """From raw video to cached latents: find what is not done yet, do it, say how far it is."""


def _recipe_options(function: Callable[..., Any]) -> Callable[..., Any]:
    @click.argument("recipe", type=click.Path(dir_okay=False))
    @click.option(
        "--source", "sources", multiple=True, help="Folder, glob, list file, prefix or clip table; repeatable."
    )
    @click.option("--output", required=True, metavar="DATASET", help="Folder or object store URI of the dataset.")
    @click.option("--set", "overrides", multiple=True, metavar="A.B=VALUE", help="Override a key of the recipe.")
    @functools.wraps(function)
    def wrapped(**options: Any) -> Any:
        return function(**options)

    return wrapped


@main.command()
@_recipe_options
@click.option("--scheduler", default="", help="Address of a Dask scheduler, or `sync` to run in this process.")
@click.option("--workers", type=click.IntRange(min=1), help="Worker processes of the embedded cluster.")
@click.option("--limit", type=click.IntRange(min=1), help="Take at most this many rows a stage.")
@click.option("--stages", default="", help="Run only these stages, comma-separated.")
@click.option("--redo", multiple=True, metavar="STAGE", help="Do a stage again whose parameters changed.")
@click.option("--adopt", multiple=True, metavar="STAGE", help="Count a stage's rows of other parameters as done.")
@click.option(
    "--retry-failed",
    is_flag=True,
    help="Ask rows again that crashed, hung, raised, could not be read or got no answer of a captioner.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and how large it gets; write nothing.")
@click.option("--no-report", is_flag=True, help="Do not write report.html at the end.")
def run(
    recipe: str,
    sources: tuple[str, ...],
    output: str,
    overrides: tuple[str, ...],
    scheduler: str,
    workers: int | None,
    limit: int | None,
    stages: str,
    redo: tuple[str, ...],
    adopt: tuple[str, ...],
    retry_failed: bool,
    dry_run: bool,
    no_report: bool,
) -> None:
    """Do everything of RECIPE that is not done yet.

    First run, resume after a crash, new files and a changed parameter are all this command.
    """
    from vidpipe import pipeline
    from vidpipe.recipe import load

    loaded = load(recipe, overrides)
    only = tuple(s.strip() for s in stages.split(",") if s.strip())
    if stages and not only:
        raise UserError(f"--stages {stages!r}: names no stage")
    options = pipeline.RunOptions(
        sources=sources,
        scheduler=scheduler,
        workers=workers or 0,
        limit=limit,
        only=only,
        redo=redo,
        adopt=adopt,
        retry_failed=retry_failed,
    )
    if dry_run:
        reports, refused = pipeline.plan(loaded, output, options)
        _print_plan(reports)
        if refused:
            click.echo(f"without --dry-run this would be refused: {refused}")
        return
    from vidpipe.progress import Progress

    names = [n for n in loaded.stages if not options.only or n in options.only]
    with Progress(names) as progress:
        counts = pipeline.run(loaded, output, options, progress)
    _print_counts(counts)
    if not no_report and (any(counts.values()) or not _has_report(output)):
        _write_report(output, None)


def _print_plan(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        parts = [f"{report['rows']} rows to do"]
        if report.get("rejected"):
            parts.append(f"{report['rejected']} newly rejected by the expression")
        if report.get("hours"):
            parts.append(f"{report['hours']:.2f} h of footage")
        if report.get("source_bytes"):
            parts.append(f"{report['source_bytes'] / 1e6:.1f} MB of files")
        if report.get("bytes"):
            parts.append(f"{report['bytes'] / 1e6:.1f} MB to write")
        if not report["exact"]:
            parts.append("and what the stages before it add")
        click.echo(f"{report['stage']:16} {', '.join(parts)}")


def _print_counts(counts: dict[str, Any]) -> None:
    if not any(counts.values()):
        click.echo("nothing to do: every row has its outcome")
    for stage, found in counts.items():
        if found:
            parts = [f"{found[s]} {s}{_why(found.reasons[s])}" for s in ("kept", "rejected", "failed") if found[s]]
            click.echo(f"{stage:16} {', '.join(parts)}")


def _why(reasons: Counter[str]) -> str:
    """The most frequent reasons, with their counts where there are several."""
    if not reasons:
        return ""
    if len(reasons) == 1:
        return f" ({next(iter(reasons))})"
    shown = [f"{what} {count}" for what, count in reasons.most_common(SHOWN_REASONS)]
    return f" ({', '.join(shown)}{', ...' if len(reasons) > SHOWN_REASONS else ''})"


def _has_report(dataset: str) -> bool:
    from vidpipe.store.dataset import Dataset

    return Dataset(dataset).files.exists("report.html")


def _write_report(dataset: str, path: str | None) -> None:
    from vidpipe.report import write_report

    click.echo(f"report: {write_report(dataset, path)}")


@main.command()
@click.argument("dataset")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(dataset: str, as_json: bool) -> None:
    """Say how far DATASET is, what was rejected and why, and how large it is."""
    from vidpipe.report import print_status, status

    found = status(dataset)
    if as_json:
        click.echo(json.dumps(found, indent=2, default=str))
    else:
        print_status(found)


@main.command()
@click.argument("dataset")
@click.option("--output", help="Where to write the page; DATASET/report.html by default.")
def report(dataset: str, output: str | None) -> None:
    """Write the HTML report of DATASET."""
    _write_report(dataset, output)


@main.command()
@click.argument("dataset")
@click.argument("sql")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Rows to print.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a row.")
def query(dataset: str, sql: str, limit: int, as_json: bool) -> None:
    """Run SQL over the tables of DATASET: `vidpipe query D 'SELECT count(*) FROM clips'`."""
    import duckdb

    from vidpipe.store.dataset import Dataset

    con = Dataset(dataset).open().connect()
    try:
        relation = con.sql(sql)
        if relation is None:
            return
        names = relation.columns
        rows = relation.limit(limit).fetchall()
    except duckdb.Error as error:
        raise UserError(f"query: {error}") from None
    if as_json:
        for row in rows:
            click.echo(json.dumps({n: _shown(v, as_json=True) for n, v in zip(names, row)}, default=str))
        return
    click.echo("\t".join(names))
    for row in rows:
        click.echo("\t".join(str(_shown(v)) for v in row))


SHOWN_BYTES = 32
"""Of a longer value a table shows no more: an id has 16 bytes, `clips.packets` hundreds."""


def _shown(value: Any, *, as_json: bool = False) -> Any:
    """Ids as hex, within lists and structs too; for JSON, null for what it has no number for."""
    if isinstance(value, dict):
        return {str(k) if as_json else k: _shown(v, as_json=as_json) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(v, as_json=as_json) for v in value]
    if as_json and isinstance(value, float) and not math.isfinite(value):
        return None
    if not isinstance(value, (bytes, bytearray)):
        return value
    whole = as_json or len(value) <= SHOWN_BYTES
    return value.hex() if whole else f"{value[:SHOWN_BYTES].hex()}... ({len(value)} bytes)"


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a check.")
def doctor(as_json: bool) -> None:
    """Say which decoders, models and libraries work here, why others do not, and what to do about it."""
    from vidpipe.media.doctor import facts

    for check in facts():
        if as_json:
            click.echo(json.dumps(check.__dict__))
            continue
        mark = click.style("ok  ", fg="green") if check.ok else click.style("miss", fg="yellow")
        click.echo(f"{mark} {check.name:22} {check.detail}")
        if not check.ok and check.remedy:
            click.echo(f"     {'':22} -> {check.remedy}")


@main.command("audit-decoders")
@click.argument("source")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Files to look at.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a file and back end.")
def audit_decoders(source: str, limit: int, as_json: bool) -> None:
    """Decode a sample of SOURCE with every back end at hand; print agreement and speed by codec."""
    from vidpipe.media.audit import audit, print_audit

    rows = audit(source, limit=limit)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, default=str))
    else:
        print_audit(list(rows))


@main.command()
@click.argument("dataset")
@click.option(
    "--older-than-days",
    type=click.FloatRange(min=0, max=36_500),
    default=7.0,
    show_default=True,
    help="Age of versions and files to remove.",
)
@click.option("--abandoned", is_flag=True, help="Also what killed processes left, at once; nothing may be running.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed.")
def clean(dataset: str, older_than_days: float, abandoned: bool, dry_run: bool) -> None:
    """Remove old versions and files that no table names; tagged versions stay."""
    import datetime

    from vidpipe.store.clean import clean
    from vidpipe.store.dataset import Dataset

    age = datetime.timedelta(days=older_than_days)
    found = clean(Dataset(dataset).open(), older_than=age, abandoned=abandoned, dry_run=dry_run)
    for item in found:
        if item.num_versions or item.num_files:
            sizes = f"{item.num_versions} versions, {item.num_files} files, {item.size_bytes / 1e6:.1f} MB"
            click.echo(f"{item.name or 'hidden files':32} {sizes}")
    total = sum(item.size_bytes for item in found)
    click.echo(f"{total / 1e6:.1f} MB {'would be ' if dry_run else ''}removed")


@main.command()
@click.argument("dataset")
@click.option("--table", "tables", multiple=True, help="Only this table; repeatable.")
@click.option("--no-payloads", is_flag=True, help="Leave out the checksums, which read all bytes.")
@click.option("--quarantine", is_flag=True, help="List bad rows in DATASET/quarantine.jsonl, which trainers leave out.")
def verify(dataset: str, tables: tuple[str, ...], no_payloads: bool, quarantine: bool) -> None:
    """Read every row: checksums, duplicate keys, missing outcomes. Exit status 1 if something is wrong."""
    from vidpipe.store.dataset import Dataset
    from vidpipe.store.verify import verify, write_quarantine

    if quarantine and no_payloads:
        raise UserError("--quarantine lists what reading the payloads shows; leave --no-payloads out")
    opened = Dataset(dataset).open()
    found = verify(opened, tables or None, payloads=not no_payloads)
    for problem in found.problems:
        click.echo(f"{problem.table}: {problem.kind}: {problem.message}")
    for row in found.quarantined:
        click.echo(f"{row.table}: row {row.row_id} (key {row.key}): {row.reason}")
    if quarantine:
        unread = {p.table for p in found.problems if p.kind == "unreadable"}
        write_quarantine(opened, found.quarantined, set(tables or opened.names()) - unread)
    count = len(found.problems) + len(found.quarantined)
    click.echo(f"{found.num_payloads} payloads read ({found.payload_bytes / 1e6:.1f} MB); {count} problems")
    if count:
        sys.exit(1)


@main.command()
@click.argument("dataset")
@click.argument("clip_id")
@click.option("--output", default="preview.mp4", show_default=True)
def preview(dataset: str, clip_id: str, output: str) -> None:
    """Write source and decoded latent of CLIP_ID (hex, or a prefix) side by side as MP4, with PSNR."""
    from vidpipe.preview import preview

    for line in preview(dataset, clip_id, output):
        click.echo(line)


@main.command("plan-buckets")
@click.argument("dataset")
@click.option("--area", "areas", multiple=True, default=("480x832",), help="Pixel budget HxW; repeatable.")
@click.option("--frames", "frames", multiple=True, type=int, default=(17, 33, 49, 81), help="Frame count; repeatable.")
@click.option("--fps", default="16", show_default=True)
@click.option("--where", default="true", show_default=True, help="Only clips that pass this expression.")
def plan_buckets(dataset: str, areas: tuple[str, ...], frames: tuple[int, ...], fps: str, where: str) -> None:
    """Propose buckets for DATASET with fill, waste and share, before any GPU is used."""
    from vidpipe.plan_buckets import plan_buckets, print_plan

    print_plan(plan_buckets(dataset, areas=areas, frames=frames, fps=fps, where=where))


@main.command()
@click.argument("dataset")
@click.argument("latent_id")
def lineage(dataset: str, latent_id: str) -> None:
    """Say where a latent comes from: clip, span, file, captions, stage fingerprints. LATENT_ID in hex, or a prefix."""
    from vidpipe.lineage import lineage

    click.echo(json.dumps(lineage(dataset, latent_id), indent=2, default=str))


if __name__ == "__main__":
    main()
