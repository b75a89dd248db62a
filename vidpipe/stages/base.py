"""What the engine asks of a stage.

A stage names its candidates by SQL over the dataset's tables; the engine subtracts what has an outcome under the
stage's fingerprint, applies the selection expression, cuts the rest into units, and has workers process those.
Metadata rows travel back to the coordinator, which writes one fragment a commit for many units (thousands of tiny
fragments make every later scan slow); rows with blobs are written by the workers, and only fragment metadata travels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from schemas import ids
from schemas.columns import TableSpec
from schemas.outcomes import Outcome

if TYPE_CHECKING:
    from vidpipe.stages.view import View
    from vidpipe.store.reconcile import KeptRows

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Some rows for one task.

    Attributes:
        rows: input rows; `id` and `item` name each.
        footage_seconds: video that they hold, for deadlines and rates.
        group: what the rows have in common, such as the bucket.
        replaces: (id, item) of outcomes that this unit's outcomes take the place of.
        attempt: how often it was lost before.
    """

    unit_id: str
    rows: tuple[Row, ...]
    footage_seconds: float = 0.0
    group: str = ""
    replaces: tuple[tuple[bytes, str], ...] = ()
    attempt: int = 0


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where a worker finds things."""

    root: str
    fingerprint: str
    unit_id: str = ""
    device: str = "cpu"
    decoder: str = "auto"


@dataclass(kw_only=True)
class Result:
    """What processing a unit gave.

    Attributes:
        rows: metadata rows by table, without provenance columns.
        fragments: Lance fragment JSON by table, written by the worker with provenance.
        outcomes: one for each input row and item.
        replaces: (id, item) of outcomes that these take the place of, where no unit says so.
    """

    rows: dict[str, pa.Table] = field(default_factory=dict)
    fragments: dict[str, list[str]] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    replaces: list[tuple[bytes, str]] = field(default_factory=list)


class Stage:
    """Base of all stages; see the module's docstring.

    Attributes:
        name: as in `outcomes/<name>`.
        version: raised by hand when the output changes for the same input and parameters.
        upstream: stages whose rows this one takes; it is complete only after them.
        computes_from: those of `upstream` whose columns shape the output: their fingerprints enter ours.
        barrier: wait until every upstream stage is complete before the first query.
        gpu: share of a GPU that a unit takes, where there are any; two of 0.5 run at once in one process.
        single_item: each row has one outcome, so that rows with one need not be looked at again.
        lazy_tables: tables are made when the first unit needs them, since most may never be.
        replaces_table: a table stage: each result replaces all rows of its table.
        where: selection expression.
    """

    name: str
    version: ClassVar[int]
    upstream: tuple[str, ...] = ()
    computes_from: ClassVar[tuple[str, ...]] = ()
    barrier: ClassVar[bool] = False
    gpu: ClassVar[float] = 0.0
    single_item: ClassVar[bool] = True
    lazy_tables: ClassVar[bool] = False
    replaces_table: ClassVar[bool] = False
    where: str = "true"

    def params(self) -> Mapping[str, Any]:
        """Parameters that shape the output: JSON values."""
        return {}

    def fingerprint(self, upstream: Mapping[str, str]) -> str:
        """Fingerprint under those of the upstream stages."""
        return ids.fingerprint(self.name, self.version, self.params(), [upstream[s] for s in self.computes_from])

    def tables(self) -> dict[str, tuple[TableSpec, dict[bytes, bytes]]]:
        """Tables that this stage alone appends to, with their metadata."""
        raise NotImplementedError

    def tables_of(self, unit: Unit) -> Sequence[str]:
        """Tables that a unit may write to."""
        return list(self.tables())

    def kept_rows(self) -> dict[str, KeptRows]:
        """For each table, how its rows tell which input rows were kept, should a crash cut off their outcomes."""
        raise NotImplementedError

    def candidates(self, view: View) -> str | None:
        """SQL of the input rows, with `id` and whatever the stage needs; None while there are no tables to read.

        Columns that only `where` reads must be there too.
        """
        raise NotImplementedError

    def items(self, row: Row) -> Sequence[str]:
        """Items wanted of a row; one empty item unless a row has several outcomes."""
        return ("",)

    def units(self, rows: Iterable[Row], view: View, final: bool) -> Iterator[Unit | Result]:
        """Cut selected rows that are not done into units.

        A Result among them holds outcomes that need no worker. `final` tells that no more rows will come: until
        then a stage may leave out rows that do not fill a unit.
        """
        raise NotImplementedError

    def process(self, unit: Unit, context: Context) -> Result:
        """Do the work, in a worker."""
        raise NotImplementedError

    def merge(self, rows: dict[str, pa.Table], view: View) -> tuple[dict[str, pa.Table], list[bytes]]:
        """Adjust metadata rows right before they are committed; return them with keys of rows that they replace."""
        return rows, []

    def failed(self, row: Row, reason: str, message: str, seconds: float = 0.0) -> list[Outcome]:
        """Outcomes of a row that was given up on."""
        return [
            Outcome(id=row["id"], item=item, status="failed", reason=reason, message=message, seconds=seconds)
            for item in row.get("wanted_items") or ("",)
        ]

    def given_up(self, row: Row, reason: str, message: str) -> Result:
        """What is recorded of a row that crashed, hung or raised twice."""
        return Result(outcomes=self.failed(row, reason, message))

    def estimate(self, view: View) -> dict[str, Any]:
        """For `--dry-run`: rows to do, rows the expression rejects, hours of footage, bytes to be written."""
        candidates = self.candidates(view)
        if candidates is None:
            return {"rows": 0}
        passing = view.passing_sql(candidates, self.where, self.single_item)
        rejected = view.value(f"SELECT count(*) FROM ({view.failing_sql(candidates, self.where)})")
        rows = seconds = size = 0.0
        for row in view.rows(passing):
            done = set(row.pop("done_items") or ())
            wanted = [i for i in self.items(row) if i not in done]
            rows += bool(wanted)
            seconds += (row.get("duration_seconds") or 0.0) if wanted else 0.0
            size += sum(map(self.item_bytes, wanted))
        return {"rows": int(rows), "rejected": rejected, "hours": seconds / 3600, "bytes": int(size)}

    def item_bytes(self, item: str) -> int:
        """Payload bytes that one item writes; 0 for metadata rows."""
        return 0

    def make_unit(self, fingerprint: str, rows: Sequence[Row], group: str = "", attempt: int = 0) -> Unit:
        """A unit named by its rows and the units that they were in before, since a name is committed once."""
        keys = [group.encode(), *(k for r in rows for k in (r["id"], ",".join(r.get("wanted_items") or ()).encode()))]
        keys += sorted({r["stale_unit"].encode() for r in rows if r.get("stale_unit")})
        return Unit(
            unit_id=ids.unit_id(self.name, fingerprint, keys),
            rows=tuple(rows),
            footage_seconds=sum(r.get("duration_seconds") or 0.0 for r in rows),
            group=group,
            replaces=tuple((r["id"], i) for r in rows if r.get("stale") for i in {"", *(r.get("wanted_items") or ())}),
            attempt=attempt,
        )


UNITS_A_SLOT = 2
"""Units for each slot at least, where there are rows enough: one that meets harder footage holds up less."""
MOST_ROWS = 4096
"""Rows a unit at most, however little they weigh."""


def shared_out(
    rows: Iterable[Row], limit: float, weigh: Callable[[Row], float], slots: Callable[[], int]
) -> tuple[Iterator[Row], float]:
    """The rows, and what a unit of them shall weigh: `limit`, or less where there is not enough for all slots.

    Looks ahead no further than that needs; `slots` is asked once there is a row.
    """
    rows = iter(rows)
    head = list(itertools.islice(rows, 1))
    if not head:
        return rows, limit
    at_once = slots()
    wanted, total = (UNITS_A_SLOT * at_once if at_once > 1 else 1), weigh(head[0])
    for row in rows:
        head.append(row)
        total += weigh(row)
        if total >= wanted * limit or len(head) >= MOST_ROWS:
            return itertools.chain(head, rows), limit
    return iter(head), min(limit, total / wanted) if total else limit


def batched_by(
    rows: Iterable[Row], limit: float, weight: str | None = None, slots: Callable[[], int] = lambda: 1
) -> Iterator[list[Row]]:
    """Cut rows into runs whose `weight` column (or count) reaches `limit`, or less: see `shared_out`."""

    def weigh(row: Row) -> float:
        return (row.get(weight) or 0.0) if weight else 1.0

    batch: list[Row] = []
    total = 0.0
    rows, limit = shared_out(rows, limit, weigh, slots)
    for row in rows:
        batch.append(row)
        total += weigh(row)
        if total >= limit or len(batch) >= MOST_ROWS:
            yield batch
            batch, total = [], 0.0
    if batch:
        yield batch


def table_from(spec: TableSpec, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Arrow table of a spec's columns but provenance, from dict rows; a missing key is null."""
    fields = [c.field() for c in spec.columns if c.name not in ("fingerprint", "unit_id")]
    return pa.table({f.name: pa.array([r.get(f.name) for r in rows], f.type) for f in fields}, schema=pa.schema(fields))


def with_provenance(table: pa.Table, fingerprint: str, unit_id: str) -> pa.Table:
    """Add the two provenance columns."""
    count = table.num_rows
    for name, value in (("fingerprint", fingerprint), ("unit_id", unit_id)):
        table = table.append_column(pa.field(name, pa.string(), False), pa.array([value] * count, pa.string()))
    return table
