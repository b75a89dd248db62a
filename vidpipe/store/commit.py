"""Making units visible, exactly once each: data tables first, outcomes last, many units a commit.

A unit is in at most one data table beside the outcomes. Its id names the rows that it was asked to do, so a unit that
is already there is skipped. Why no row appears twice under two units: units are planned from the outcomes, by a
coordinator that holds the lease, after `reconcile` has given every unit in a data table its outcomes; while the lease
holds nobody else commits, and a coordinator that lost it is refused by the fence. `verify` checks it on the rows.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vidpipe.store import failpoints
from vidpipe.store.create import KEY_KEY
from vidpipe.store.fence import RowsToDelete, fenced, units_present
from vidpipe.store.lease import Lease
from vidpipe.store.write import write_to

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

    from vidpipe.store.dataset import Dataset

_ATTEMPTS = 8
_REMEMBERED_UNITS = 100_000
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StagedUnit:
    """What a worker made of a unit, not yet visible.

    Attributes:
        unit_id: in the `unit_id` column of all its rows; not empty.
        fragments: table name -> what `write_fragments` returned; the outcomes table among them.
        rows: table name -> rows that the committer itself writes, all units of a commit in one fragment. For small
            rows, outcomes above all: a fragment a unit would make thousands of them.
        fingerprint: of the stage; `replaces` removes only outcomes of this fingerprint.
        replaces: (id, item) of outcomes that this unit's take the place of, such as rows rejected before.
        replaces_rows: table name -> keys (the table's key column) whose rows this unit's take the place of.
    """

    unit_id: str
    fragments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rows: Mapping[str, pa.Table] = field(default_factory=dict)
    fingerprint: str = ""
    replaces: Sequence[tuple[bytes, str]] = ()
    replaces_rows: Mapping[str, Sequence[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.unit_id:
            raise ValueError("a unit needs an id: the empty one is the sentinel's")

    def tables(self) -> set[str]:
        """Names of the tables that it has something for."""
        return {n for n, texts in self.fragments.items() if texts} | {n for n, t in self.rows.items() if t.num_rows}


class Committer:
    """Commits units of one stage under its lease. Not for several threads at once."""

    def __init__(self, dataset: Dataset, stage: str, lease: Lease):
        if lease.stage != stage:
            raise ValueError(f"the lease is for stage {lease.stage!r}, not {stage!r}")
        self.dataset = dataset
        self.lease = lease
        self.outcomes = lease.table
        self._states: dict[str, _TableState] = {}

    def commit(self, units: Iterable[StagedUnit]) -> None:
        """Make units visible; those that already are, are skipped. When it returns, all of them are.

        Raises:
            LeaseLost: another coordinator took over; units not yet visible are its to do.
            OSError: the storage failed for good; the next start completes what was begun.
        """
        unique = {unit.unit_id: unit for unit in units}
        names = {name for unit in unique.values() for name in unit.tables()} - {self.outcomes}
        for name in sorted(names):
            self._commit_to(name, [u for u in unique.values() if name in u.tables()])
            failpoints.reach("commit:between-data-and-outcomes")
        self._commit_to(self.outcomes, [u for u in unique.values() if self.outcomes in u.tables()])
        failpoints.reach("commit:after-outcomes")

    def _commit_to(self, name: str, units: list[StagedUnit]) -> None:
        if name != self.outcomes:
            self.lease.register(name)
        state = self._states.setdefault(name, _TableState())
        problem: OSError | None = None
        for attempt in range(_ATTEMPTS):
            if problem is not None:
                time.sleep(min(0.05 * 2**attempt, 5.0))
            try:
                self._attempt(name, state, units)
                return
            except OSError as error:  # CommitConflictError is one: either way look again at what is there
                _LOG.info("commit to %s of %s, attempt %d: %s", name, self.dataset.root, attempt + 1, error)
                problem = error
                state.forget()
        assert problem is not None
        raise problem

    def _attempt(self, name: str, state: _TableState, units: list[StagedUnit]) -> None:
        table = self.dataset.table(name)
        failpoints.reach("commit:opened")
        self.lease.check()
        failpoints.reach("commit:checked")
        todo = state.absent(table, units)
        if todo:
            where = f"table {name} of {self.dataset.root}"
            new = fenced(
                table, _fragments(table, name, todo, where), self._deletes(table, name, todo), _properties(todo)
            )
            failpoints.reach("commit:committed")
            table = new
        state.note(table, units)

    def _deletes(self, table: lance.LanceDataset, name: str, units: list[StagedUnit]) -> RowsToDelete | None:
        if name == self.outcomes:
            keys = [(*key, unit.fingerprint) for unit in units for key in unit.replaces]
            columns = ["id", "item", "fingerprint"]
        else:
            keys = [(key,) for unit in units for key in unit.replaces_rows.get(name, ())]
            columns = [(table.schema.metadata or {})[KEY_KEY].decode()]
        return RowsToDelete(keys=dict(zip(columns, zip(*keys)))) if keys else None


class _TableState:
    """What this committer knows of a table, so that it need not look for units that cannot be there."""

    def __init__(self) -> None:
        self.forget()
        self._recent: OrderedDict[str, None] = OrderedDict()

    def forget(self) -> None:
        self._version = -1
        self._last_fragment = -1

    def absent(self, table: lance.LanceDataset, units: list[StagedUnit]) -> list[StagedUnit]:
        """Units that are not in the table; looks at fragments that came since our own last commit."""
        unknown = [u for u in units if u.unit_id not in self._recent]
        if table.version == self._version or not unknown:
            return unknown
        present = units_present(table, [u.unit_id for u in unknown], self._last_fragment)
        return [u for u in unknown if u.unit_id not in present]

    def note(self, table: lance.LanceDataset, units: list[StagedUnit]) -> None:
        self._version = table.version
        self._last_fragment = max(table.fragment_ids())
        self._recent.update((u.unit_id, None) for u in units)
        while len(self._recent) > _REMEMBERED_UNITS:
            self._recent.popitem(last=False)


def _fragments(table: lance.LanceDataset, name: str, units: list[StagedUnit], where: str) -> list:
    import pyarrow as pa
    from lance.fragment import FragmentMetadata

    texts = [text for unit in units for text in unit.fragments.get(name, ())]
    rows = [unit.rows[name] for unit in units if name in unit.rows]
    if rows:
        texts += write_to(table, pa.concat_tables(rows, promote_options="default"), where)
    return [FragmentMetadata.from_json(text) for text in texts]


def _properties(units: list[StagedUnit]) -> dict[str, str]:
    return {"units": json.dumps([unit.unit_id for unit in units])}
