"""The engine: asks each stage what is not done, has workers do it, and commits what comes back exactly once.

One loop over all stages. Rows are streamed from a query, cut into units, and a bounded number of units is in flight,
so the coordinator's memory does not grow with the dataset. A stage is asked again while its upstream stages still
commit, so stages overlap; table stages wait for theirs to be complete. First run, resume after a crash, new files and
a changed parameter are all the same query: rows without an outcome under the stage's fingerprint.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from schemas import expressions, ids, layout, tables
from schemas.errors import UserError
from schemas.outcomes import Outcome
from vidpipe.executor import Done, Executor, Ticket
from vidpipe.interrupts import Interrupts
from vidpipe.redo import NOTHING, accepted_fingerprints
from vidpipe.sandbox import UnitLost, UnitTimeout
from vidpipe.sections import EngineConfig
from vidpipe.stages.base import Context, Result, Row, Stage, Unit, with_provenance
from vidpipe.stages.view import View
from vidpipe.store.commit import Committer, StagedUnit
from vidpipe.store.dataset import Dataset
from vidpipe.store.lease import Lease, LeaseConfig
from vidpipe.store.reconcile import reconcile

REQUERY_SECONDS = 3.0
OUTCOME_BATCH = 50_000
COMMIT_ROWS = 100_000
OWN_FAULTS = ("crashed", "deadline", "error")
"""Reasons that may be our fault rather than the file's: they count against the error budget, and can be retried."""
ANSWERLESS = ("captioner_failed",)
"""Reasons that may be a server's fault: they count against the error budget too."""
RETRIED = (*OWN_FAULTS, *ANSWERLESS, "io_error", "changed")
"""Reasons that may be gone another time: `retry_failed` asks such rows again."""


class Display(Protocol):
    """What shows progress."""

    def update(
        self,
        stage: str,
        *,
        kept: int = 0,
        rejected: int = 0,
        failed: int = 0,
        total: int = 0,
        footage_seconds: float = 0,
    ) -> None:
        """Set a stage's counts so far."""

    def log(self, line: str) -> None:
        """Print a line that stays."""


def run_unit(stage: Stage, unit: Unit, context: Context) -> Result:
    """Process one unit; this is the task that workers run."""
    return stage.process(unit, context)


@dataclass(kw_only=True)
class _Ready:
    """A result that waits for its commit."""

    unit_id: str
    result: Result
    replaces: tuple[tuple[bytes, str], ...] = ()
    ids: frozenset[bytes] = frozenset()


class Tally(Counter[str]):
    """Outcomes by status.

    Attributes:
        reasons: by status, how many for which reason, or by which term of an expression.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Count some more."""
        for outcome in outcomes:
            self[outcome.status] += 1
            if outcome.status != "kept":
                what = f"{outcome.rule} is false" if outcome.rule else outcome.reason
                self.reasons[outcome.status][what] += 1


@dataclass(kw_only=True)
class StageRun:
    """A stage in this run."""

    stage: Stage
    accepted: list[str]
    limit: int | None = None
    lease: Lease | None = None
    committer: Committer | None = None
    queue: Iterator[Unit | Result] | None = None
    view: View | None = None
    final: bool = False
    skipped: int = 0
    dirty: bool = True
    complete: bool = False
    queried_at: float = -1e9
    query_seconds: float = 0.0
    committed_at: float = field(default_factory=time.monotonic)
    taken: int = 0
    running: dict[Ticket, Unit] = field(default_factory=dict)
    again: deque[Unit] = field(default_factory=deque)
    ready: list[_Ready] = field(default_factory=list)
    counts: Tally = field(default_factory=Tally)
    own_faults: int = 0
    footage_seconds: float = 0.0
    total: int = 0

    @property
    def fingerprint(self) -> str:
        """Ours; `accepted` may hold adopted ones too."""
        return self.accepted[0]

    def busy_ids(self) -> set[bytes]:
        """Rows handed out whose outcomes are not committed yet."""
        units = itertools.chain(self.running.values(), self.again)
        found = {r["id"] for u in units for r in u.rows if "id" in r}
        return found.union(*(r.ids for r in self.ready))


class Engine:
    """Runs stages over a dataset.

    Args:
        stages: in pipeline order; an upstream stage that is not among them counts as complete.
        known: all stages of the recipe with their fingerprints, also of those that do not run now.
        limit: rows that each stage takes at most in this run.
        retry_failed: ask rows again whose failure may be gone: those of `RETRIED`.
    """

    def __init__(
        self,
        dataset: Dataset,
        stages: Sequence[Stage],
        known: Sequence[Stage],
        config: EngineConfig,
        executor: Executor,
        display: Display,
        *,
        device: str = "cpu",
        limit: int | None = None,
        retry_failed: bool = False,
    ) -> None:
        self.dataset, self.config, self.executor, self.display = dataset, config, executor, display
        self.device, self.retry_failed = device, retry_failed
        self._ensured: set[str] = set()
        self.accepted = accepted_fingerprints(dataset, known)
        self.writers = {name: s.name for s in known for name in (*s.tables(), layout.outcomes_name(s.name))}
        self.runs = {s.name: StageRun(stage=s, accepted=self.accepted[s.name], limit=limit) for s in stages}

    def run(self) -> dict[str, Tally]:
        """Do everything that is not done; return outcome counts by stage.

        Raises:
            KeyboardInterrupt: after what was finished has been committed.
            UserError: a wrong configuration, or too many failures that may be ours.
            LeaseHeld, LeaseLost: another coordinator has a stage.
        """
        with Interrupts() as interrupts:
            try:
                for run in self.runs.values():
                    interrupts.check()
                    self._open_stage(run)
                while not all(run.complete for run in self.runs.values()):
                    interrupts.check()
                    self._turn()
            except KeyboardInterrupt:
                self.display.log("stopping; another Ctrl-C or SIGTERM stops at once")
                self._commit_finished()
                raise
            finally:
                for run in self.runs.values():
                    if run.view is not None:
                        run.view.close()
                    if run.lease is not None:
                        run.lease.release()
        return {name: run.counts for name, run in self.runs.items()}

    def _open_stage(self, run: StageRun) -> None:
        name = run.stage.name
        outcomes = layout.outcomes_name(name)
        self.dataset.ensure(outcomes, tables.OUTCOMES)
        if not run.stage.lazy_tables:
            self._ensure(run.stage, list(run.stage.tables()))
        seconds = self.config.lease_seconds
        run.lease = Lease.acquire(
            self.dataset, name, LeaseConfig(lease_seconds=seconds, beat_seconds=min(5.0, seconds / 6))
        )
        run.committer = Committer(self.dataset, name, run.lease)
        completed = reconcile(run.committer, run.stage.kept_rows())
        if completed:
            self.display.log(f"{name}: completed {completed} units that an earlier run was cut off in")

    def _ensure(self, stage: Stage, names: Sequence[str]) -> None:
        """Make tables that are not there yet."""
        missing = [n for n in names if n not in self._ensured]
        for name in missing:
            spec, metadata = stage.tables()[name]
            self.dataset.ensure(name, spec, metadata)
            self._ensured.add(name)

    # -- one turn of the loop

    def _turn(self) -> None:
        progressed = self._fill()
        busy = any(run.running for run in self.runs.values())
        for done in self.executor.wait(0.25 if busy and not progressed else 0.0):
            self._finish(done)
        for run in self.runs.values():
            if run.ready and self._commit_due(run):
                self._commit(run)
            self._settle(run)
            self._show(run)
        if not busy and not progressed:
            time.sleep(0.02)

    def _fill(self) -> bool:
        """Hand out units until enough are in flight, downstream stages first, so that little waits in between."""
        room = self.executor.slots() * self.config.in_flight - sum(len(r.running) for r in self.runs.values())
        progressed = False
        for run in reversed(self.runs.values()):
            while room > 0 and (item := self._next(run)) is not None:
                progressed = True
                if isinstance(item, Result):
                    self._take_result(run, item)
                else:
                    self._submit(run, item)
                    room -= 1
        return progressed

    def _next(self, run: StageRun) -> Unit | Result | None:
        if run.complete:
            return None
        if run.again:
            return run.again.popleft()
        if sum(len(r.result.outcomes) for r in run.ready) > COMMIT_ROWS:
            return None  # commit first
        if run.queue is None and self._should_query(run):
            self._query(run)
        if run.queue is None:
            return None
        item = next(run.queue, None)
        if item is None:
            self._close_query(run)
        return item

    def _upstream_complete(self, run: StageRun) -> bool:
        return all(self.runs[s].complete for s in run.stage.upstream if s in self.runs)

    def _should_query(self, run: StageRun) -> bool:
        complete = self._upstream_complete(run)
        if run.stage.barrier and not complete:
            return False
        if complete and not run.final:
            return True
        if run.final:  # again only for rows that were skipped because they were in flight
            return run.skipped > 0 and not run.running and not run.ready
        wait = max(REQUERY_SECONDS, 10 * run.query_seconds)
        return run.dirty and time.monotonic() - run.queried_at > wait

    def _query(self, run: StageRun) -> None:
        started = time.monotonic()
        busy = run.busy_ids()
        run.final, run.dirty, run.skipped = self._upstream_complete(run), False, 0
        stage = run.stage
        view = run.view = self._view()
        view.slots = functools.partial(self.executor.slots, stage.gpu)
        view.use_outcomes(stage.name, RETRIED if self.retry_failed else ())
        parts: list[Iterator[Unit | Result]] = []
        candidates = stage.candidates(view)
        rows: Iterator[Row] = iter(())
        if candidates is not None:
            self._check_expression(view, candidates, stage)
            passing = view.passing_sql(candidates, stage.where, stage.single_item)
            if stage.single_item:
                count = view.value(f"SELECT count(*) FROM ({passing})")
                run.total = sum(run.counts.values()) + count
            rows = self._wanted(run, view.rows(passing), busy)
            if stage.where != expressions.ALL:
                parts.append(self._rejections(run, view, candidates, busy))
        parts.append(stage.units(rows, view, run.final))
        run.queue = itertools.chain(*parts)
        run.queried_at = time.monotonic()
        run.query_seconds = run.queried_at - started

    def _view(self) -> View:
        return View(self.dataset, self.accepted, self.writers)

    @staticmethod
    def _check_expression(view: View, candidates: str, stage: Stage) -> None:
        known = [row[0] for row in view.con.execute(f"DESCRIBE {candidates}").fetchall()]
        try:
            expressions.check(view.con, stage.where, known)
        except UserError as error:
            raise UserError(f"{stage.name}.where: {error}") from None

    def _close_query(self, run: StageRun) -> None:
        run.queue = None
        if run.view is not None:
            run.view.close()
            run.view = None

    def _wanted(self, run: StageRun, rows: Iterator[Row], busy: set[bytes]) -> Iterator[Row]:
        for row in rows:
            if run.limit is not None and run.taken >= run.limit:
                return
            if row["id"] in busy:
                run.skipped += 1
                continue
            done = set(row.pop("done_items") or ())
            items = tuple(i for i in run.stage.items(row) if i not in done)
            if items:
                run.taken += 1
                yield {**row, "wanted_items": items}

    def _rejections(self, run: StageRun, view: View, candidates: str, busy: set[bytes]) -> Iterator[Result]:
        """Outcomes of rows that the expression turns away; no worker is needed."""
        expression = run.stage.where
        digest = expressions.expression_hash(expression)
        rows: Iterator[Row] = (r for r in view.rows(view.failing_sql(candidates, expression)) if r["id"] not in busy)
        if run.limit is not None:
            rows = itertools.islice(rows, run.limit)
        while batch := list(itertools.islice(rows, OUTCOME_BATCH)):
            outcomes = [
                Outcome(
                    id=r["id"],
                    status="rejected",
                    reason="expression",
                    rule=r["rule"],
                    value=r["value"],
                    expression_hash=digest,
                    message=f"{r['rule']} is false ({r['value']})",
                )
                for r in batch
            ]
            yield Result(outcomes=outcomes, replaces=[(r["id"], "") for r in batch if r["stale"]])

    # -- tasks

    def _submit(self, run: StageRun, unit: Unit) -> None:
        config = self.config
        self._ensure(run.stage, run.stage.tables_of(unit))
        context = Context(
            root=self.dataset.root,
            fingerprint=run.fingerprint,
            unit_id=unit.unit_id,
            device=self.device,
            decoder=config.decoder,
        )
        longest = max((r.get("duration_seconds") or 0.0 for r in unit.rows), default=0.0)
        ticket = self.executor.submit(
            run_unit,
            run.stage,
            unit,
            context,
            deadline_seconds=config.deadline_seconds + config.deadline_per_minute * unit.footage_seconds / 60,
            row_deadline_seconds=config.row_deadline_seconds + config.deadline_per_minute * longest / 60,
            gpu=run.stage.gpu,
        )
        run.running[ticket] = unit

    def _finish(self, done: Done) -> None:
        run = next((r for r in self.runs.values() if done.ticket in r.running), None)
        if run is None:
            return
        unit = run.running.pop(done.ticket)
        if done.error is None:
            found = frozenset(r["id"] for r in unit.rows if "id" in r)
            run.ready.append(_Ready(unit_id=unit.unit_id, result=done.value, replaces=unit.replaces, ids=found))
            self._count(run, done.value, unit.footage_seconds)
            refused = [o for o in done.value.outcomes if o.reason in ANSWERLESS]
            if refused:
                self._note_faults(run, len(refused), refused[-1].message)
        elif isinstance(done.error, UserError):
            raise done.error
        else:
            self._lost(run, unit, done.error)

    def _lost(self, run: StageRun, unit: Unit, error: BaseException) -> None:
        """Retry a unit that gave no result, then narrow it down to the row at fault, which becomes an outcome."""
        row = error.row if isinstance(error, UnitLost) else getattr(error, "unit_row", None)
        rows = list(unit.rows)
        if len(rows) == 1:
            if unit.attempt:
                self._give_up(run, unit, error)
            else:
                run.again.append(replace(unit, attempt=1))
            return
        if row is not None and row < len(rows):
            parts, attempts = [rows[:row] + rows[row + 1 :], [rows[row]]], (0, 1)
        elif unit.attempt:
            parts, attempts = [rows[: len(rows) // 2], rows[len(rows) // 2 :]], (1, 1)
        else:
            run.again.append(replace(unit, attempt=1))
            return
        for part, attempt in zip(parts, attempts):
            made = run.stage.make_unit(run.fingerprint, part, unit.group, attempt)
            run.again.append(made)

    def _give_up(self, run: StageRun, unit: Unit, error: BaseException) -> None:
        if isinstance(error, UnitTimeout):
            reason = "deadline"
        elif isinstance(error, UnitLost):
            reason = "crashed"
        else:
            reason = "error"
        row = unit.rows[0]
        text = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        where = (row.get("uris") or [row.get("uri", "")])[0]
        message = f"{where}: {type(error).__name__ if reason == 'error' else reason}: {text}"
        self.display.log(f"{run.stage.name}: gave up on {message}")
        result = run.stage.given_up(row, reason, message)
        found = frozenset([row["id"]]) if "id" in row else frozenset()
        run.ready.append(_Ready(unit_id=unit.unit_id, result=result, replaces=unit.replaces, ids=found))
        self._count(run, result, 0.0)
        self._note_faults(run, 1, message)

    def _note_faults(self, run: StageRun, count: int, message: str) -> None:
        """Count faults that may be our own, or a server's; stop where they are too many."""
        run.own_faults += count
        finished = sum(run.counts.values())
        if finished >= 20 and run.own_faults > self.config.max_error_fraction * finished:
            self._commit_finished()
            raise UserError(
                f"stage {run.stage.name}: {run.own_faults} of {finished} rows crashed, hung, raised or got no answer, "
                f"more than engine.max_error_fraction = {self.config.max_error_fraction}; last: {message}"
            )

    def _take_result(self, run: StageRun, result: Result) -> None:
        keys = [o.id + f"{o.item}{o.expression_hash}".encode() for o in result.outcomes]
        unit_id = ids.unit_id(run.stage.name, run.fingerprint, keys)
        found = frozenset(o.id for o in result.outcomes)
        run.ready.append(_Ready(unit_id=unit_id, result=result, replaces=tuple(result.replaces), ids=found))
        self._count(run, result, 0.0)

    def _count(self, run: StageRun, result: Result, footage_seconds: float) -> None:
        run.counts.add(result.outcomes)
        run.footage_seconds += footage_seconds

    # -- commits

    def _commit_due(self, run: StageRun) -> bool:
        idle = not run.running and run.queue is None and not run.again
        # a reader downstream waits for the first rows: commit soon, then seldom
        seconds = min(self.config.commit_seconds, max(0.5, time.monotonic() - run.queried_at))
        outcomes = sum(len(r.result.outcomes) for r in run.ready)
        return idle or outcomes >= COMMIT_ROWS or time.monotonic() - run.committed_at >= seconds

    def _commit_finished(self) -> None:
        """Commit what workers have finished, before stopping."""
        for done in self.executor.wait(0.0):
            run = next((r for r in self.runs.values() if done.ticket in r.running), None)
            if run is not None and done.error is None:
                self._finish(done)
        for run in self.runs.values():
            if run.ready:
                self._commit(run)

    def _commit(self, run: StageRun) -> None:
        ready, run.ready = run.ready, []
        assert run.committer is not None
        if type(run.stage).merge is not Stage.merge:
            staged = [self._merged(run, ready)]
        else:
            staged = [self._staged(run, r) for r in ready]
        run.committer.commit(staged)
        run.committed_at = time.monotonic()
        for other in self.runs.values():
            other.dirty |= run.stage.name in other.stage.upstream

    def _staged(self, run: StageRun, ready: _Ready) -> StagedUnit:
        stage, unit_id = run.stage, ready.unit_id
        rows = {n: with_provenance(t, run.fingerprint, unit_id) for n, t in ready.result.rows.items()}
        rows[layout.outcomes_name(stage.name)] = self._outcomes(run, unit_id, ready.result.outcomes)
        return StagedUnit(
            unit_id=unit_id,
            fragments=ready.result.fragments,
            rows=rows,
            fingerprint=run.fingerprint,
            replaces=ready.replaces,
            replaces_all=stage.replaces_table,
        )

    def _merged(self, run: StageRun, ready: list[_Ready]) -> StagedUnit:
        """Many units as one, since their rows join with each other and with those committed before."""
        stage = run.stage
        unit_id = ids.unit_id(stage.name, run.fingerprint, [r.unit_id.encode() for r in ready])
        names = {name for r in ready for name in r.result.rows}
        rows = {n: pa.concat_tables([r.result.rows[n] for r in ready if n in r.result.rows]) for n in names}
        view = self._view()
        rows, deletes = stage.merge(rows, view)
        view.close()
        rows = {name: with_provenance(table, run.fingerprint, unit_id) for name, table in rows.items()}
        outcomes = list({(o.id, o.item): o for r in ready for o in r.result.outcomes}.values())
        rows[layout.outcomes_name(stage.name)] = self._outcomes(run, unit_id, outcomes)
        return StagedUnit(
            unit_id=unit_id,
            rows=rows,
            fingerprint=run.fingerprint,
            replaces=[*(key for r in ready for key in r.replaces), *((o.id, o.item) for o in outcomes)],
            replaces_rows={name: deletes for name in rows if name in stage.tables() and deletes},
        )

    def _outcomes(self, run: StageRun, unit_id: str, outcomes: Sequence[Outcome]) -> pa.Table:
        return with_provenance(outcome_table(outcomes), run.fingerprint, unit_id)

    # -- bookkeeping

    def _settle(self, run: StageRun) -> None:
        """Mark a stage complete once nothing of it is left anywhere."""
        idle = run.queue is None and not run.running and not run.ready and not run.again
        full = run.limit is not None and run.taken >= run.limit
        if not run.complete and idle and run.final and (run.skipped == 0 or full) and self._upstream_complete(run):
            run.complete = True

    def _show(self, run: StageRun) -> None:
        c = run.counts
        self.display.update(
            run.stage.name,
            kept=c["kept"],
            rejected=c["rejected"],
            failed=c["failed"],
            total=max(run.total, sum(c.values())),
            footage_seconds=run.footage_seconds,
        )


def outcome_table(outcomes: Sequence[Outcome]) -> pa.Table:
    """Rows of an outcomes table, without provenance."""
    import datetime
    import socket

    from vidpipe.stages.base import table_from

    now, host = datetime.datetime.now(datetime.UTC), socket.gethostname()
    return table_from(tables.OUTCOMES, [{**o.__dict__, "host": host, "finished_at": now} for o in outcomes])


def dry_run(
    dataset: Dataset, stages: Sequence[Stage], known: Sequence[Stage], adopting: Mapping[str, list[str]] = NOTHING
) -> list[Mapping[str, Any]]:
    """What each stage would do now, as far as the tables tell; stages after one with work to do will see more."""
    accepted = accepted_fingerprints(dataset, known, adopting)
    writers = {name: s.name for s in known for name in (*s.tables(), layout.outcomes_name(s.name))}
    found: list[Mapping[str, Any]] = []
    exact = True
    for stage in stages:
        view = View(dataset, accepted, writers)
        view.use_outcomes(stage.name, ())
        report = {"stage": stage.name, **stage.estimate(view), "exact": exact}
        found.append(report)
        exact &= not report.get("rows")
        view.close()
    return found
