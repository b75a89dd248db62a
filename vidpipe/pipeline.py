"""From a recipe to stages, and `vidpipe run` without its command line: for the CLI, tests and notebooks alike."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from schemas import expressions
from schemas.errors import UserError, nearest
from vidpipe import recipe as recipes
from vidpipe.engine import Display, Engine, Tally, dry_run
from vidpipe.executor import Executor, InlineExecutor, LazyExecutor
from vidpipe.recipe import Recipe
from vidpipe.redo import adopt, adoptable, check_redo, fingerprints
from vidpipe.stages.analyze import Analyze, read_spans
from vidpipe.stages.base import Stage
from vidpipe.stages.caption import Caption, load_captioner
from vidpipe.stages.checksum import Checksum
from vidpipe.stages.embed import Embed, load_encoder
from vidpipe.stages.encode import Encode
from vidpipe.stages.ingest import Ingest
from vidpipe.stages.score import Score
from vidpipe.stages.table_stages import NearDuplicates, Split
from vidpipe.stages.view import of_a_clip
from vidpipe.store.dataset import Dataset

CLIP_TABLES = (".csv", ".tsv", ".parquet")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What the command line adds to a recipe.

    Attributes:
        sources: paths, globs, list files, prefixes, or one clip table (CSV or Parquet, or JSONL with start and end).
        scheduler: address of a Dask scheduler, `sync`, or empty for an embedded cluster.
        workers: worker processes of the embedded cluster; 0 takes the recipe's.
        limit: rows that each stage takes at most.
        only: stages to run, of the recipe's; empty for all.
        redo, adopt: stages that may do again, or take over, what exists under another fingerprint.
        retry_failed: ask rows again that crashed, hung, raised, could not be read or got no answer of a captioner.
    """

    sources: tuple[str, ...] = ()
    scheduler: str = ""
    workers: int = 0
    limit: int | None = None
    only: tuple[str, ...] = ()
    redo: tuple[str, ...] = ()
    adopt: tuple[str, ...] = ()
    retry_failed: bool = False


def make_stages(recipe: Recipe, sources: Sequence[str], output: str = "", only: Sequence[str] = ()) -> list[Stage]:
    """Stages of a recipe in pipeline order; raise UserError on what cannot work.

    Args:
        output: the dataset's root.
        only: make these and those whose rows they take, since the weights of others may be out of reach; empty for all.
    """
    clip_table = _clip_table(sources)
    spans, spans_hash = read_spans(clip_table) if clip_table else ({}, "")
    listed = tuple(spans) if clip_table else tuple(sources)
    embeds = "embed" in recipe.stages and (not only or "embed" in only)
    encoder = load_encoder(recipe.embed, "cpu") if embeds else None
    clip_stages = ("analyze", *(f"score-{s.name}" for s in recipe.score), "near_duplicates", "split")
    made: dict[str, list[Stage]] = {
        "ingest": [Ingest(config=recipe.ingest, sources=listed, clip_table=clip_table, output=output)],
        "checksum": [Checksum()],
        "analyze": [
            Analyze(config=recipe.analyze, unit_minutes=recipe.engine.unit_minutes, spans=spans, spans_hash=spans_hash)
        ],
        "score": [Score(config=s) for s in recipe.score],
        "near_duplicates": [NearDuplicates(config=recipe.near_duplicates)],
        "split": [Split(config=recipe.split)],
        "caption": [
            Caption(
                config=recipe.caption,
                sources=tuple(load_captioner(c).source for c in recipe.caption.captioners),
                upstream=clip_stages,
            )
        ],
        "embed": [Embed(config=recipe.embed, encoder_name=encoder.name, metadata=encoder.metadata())]
        if encoder
        else [],
        "encode": [Encode(config=recipe.encode, unit_mb=recipe.engine.unit_mb, upstream=clip_stages)],
    }
    stages = [stage for name in recipes.STAGES if name in recipe.stages for stage in made[name]]
    needed = set(only)
    for stage in reversed(stages):
        if stage.name in needed:
            needed.update(stage.upstream, stage.computes_from)
    return [s for s in stages if not only or s.name in needed]


def stage_names(recipe: Recipe) -> list[str]:
    """Names of a recipe's stages, in its order."""
    scores = [f"score-{s.name}" for s in recipe.score]
    return [name for stage in recipe.stages for name in (scores if stage == "score" else [stage])]


def _clip_table(sources: Sequence[str]) -> str:
    tables = [s for s in sources if s.lower().endswith(CLIP_TABLES) or _is_clip_jsonl(s)]
    if tables and len(sources) > 1:
        raise UserError(f"--source {tables[0]}: a clip table names its own files; give it alone")
    return tables[0] if tables else ""


def _is_clip_jsonl(source: str) -> bool:
    if not source.lower().endswith(".jsonl"):
        return False
    try:
        with open(source) as file:
            first = json.loads(file.readline())
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and bool({"start", "start_seconds"} & first.keys())


def selected(stages: Sequence[Stage], only: Sequence[str]) -> list[Stage]:
    """Stages named by `only`; all if it is empty."""
    return [s for s in stages if not only or s.name in only]


def run(recipe: Recipe, output: str, options: RunOptions, display: Display) -> dict[str, Tally]:
    """Do what is not done; return outcome counts by stage of this run.

    Raises:
        UserError: a wrong recipe, source or output; a redo that nobody asked for; too many faults.
    """
    stages, chosen = _checked(recipe, output, options)
    dataset = Dataset(output)
    dataset.check_place()
    _check_sources(chosen)
    dataset.create()
    adopting = _adopting(dataset, stages, options)
    check_redo(dataset, chosen, stages, options.redo, adopting)
    adopt(dataset, stages, adopting)
    keep_recipe(dataset, recipe, stages)
    with _executor(recipe, options) as executor:
        engine = Engine(
            dataset,
            chosen,
            stages,
            recipe.engine,
            executor,
            display,
            device=recipe.engine.device,
            limit=options.limit,
            retry_failed=options.retry_failed,
        )
        return engine.run()


def plan(recipe: Recipe, output: str, options: RunOptions) -> tuple[list[dict[str, object]], str]:
    """What `run` would do, stage by stage, without writing anything; and why it would refuse, if it would."""
    stages, chosen = _checked(recipe, output, options)
    _check_sources(chosen)
    dataset = Dataset(output)
    adopting = _adopting(dataset, stages, options)
    refused = ""
    try:
        check_redo(dataset, chosen, stages, options.redo, adopting)
    except UserError as error:
        refused = str(error)
    return [dict(r) for r in dry_run(dataset, chosen, stages, adopting)], refused


def _adopting(dataset: Dataset, stages: Sequence[Stage], options: RunOptions) -> dict[str, list[str]]:
    """Fingerprints that each stage of `options.adopt` would take over."""
    return {name: adoptable(dataset, selected(stages, [name])[0], stages) for name in options.adopt}


def _checked(recipe: Recipe, output: str, options: RunOptions) -> tuple[list[Stage], list[Stage]]:
    """Stages that matter and those that run; raise UserError on a name or an expression that cannot work."""
    names = stage_names(recipe)
    named = (*options.only, *options.redo, *options.adopt)
    for name in named:
        if name not in names:
            raise UserError(f"stage {name!r} is not in the recipe{nearest(name, names)}")
    stages = make_stages(recipe, options.sources, output, named if options.only else ())
    check_expressions(stages)
    return stages, selected(stages, options.only)


def check_expressions(stages: Sequence[Stage]) -> None:
    """Check selection expressions against the columns that the recipe's own stages declare, before any work."""
    import duckdb

    declared = {n: [c.name for c in spec.columns] for s in stages for n, (spec, _) in s.tables().items()}
    if "clips" not in declared:
        return
    _, known = expressions.clip_view(of_a_clip(declared))
    for stage in stages:
        if stage.where != expressions.ALL:
            try:
                expressions.check(duckdb.connect(), stage.where, [*known, "id"])
            except UserError as error:
                raise UserError(f"{stage.name}.where: {error}") from None


def _check_sources(stages: Sequence[Stage]) -> None:
    for stage in stages:
        if isinstance(stage, Ingest):
            if not stage.sources:
                raise UserError("ingest wants --source: a folder, a glob, a list file, a prefix or a clip table")
            if next(stage.listing(), None) is None:
                raise UserError(f"source {', '.join(stage.sources)}: no files there")


def keep_recipe(dataset: Dataset, recipe: Recipe, stages: Sequence[Stage]) -> str:
    """Write the resolved recipe, with its stages' fingerprints as comments; return its name."""
    text = recipes.to_toml(recipe)
    prints = "".join(f"# {name}: {fingerprint}\n" for name, fingerprint in fingerprints(stages).items())
    name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    dataset.files.write(f"recipes/{name}.toml", f"# fingerprints\n{prints}\n{text}".encode())
    return name


@contextmanager
def _executor(recipe: Recipe, options: RunOptions) -> Iterator[Executor]:
    if options.scheduler == "sync":
        yield InlineExecutor()
        return
    workers = options.workers or recipe.engine.workers or os.cpu_count() or 1

    def start() -> Executor:
        from vidpipe.devices import local_gpus
        from vidpipe.graph import DaskExecutor

        gpus = () if options.scheduler else local_gpus(recipe.engine.device)
        return DaskExecutor(options.scheduler, workers, gpus)

    executor = LazyExecutor(start, workers)
    if options.scheduler:
        executor.connect()  # a wrong address is told at once
    try:
        yield executor
    except BaseException:
        old = signal.getsignal(signal.SIGINT)
        executor.close(cancel=True)
        signal.signal(signal.SIGINT, old)
        raise
    executor.close()
