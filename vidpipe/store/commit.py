"""Making units visible, exactly once each: data tables first, outcomes last, many units a commit.

A unit is in at most one data table beside the outcomes. Its id names the rows that it was asked to do, so a unit that
is already there is skipped. Why no row appears twice under two units: units are planned from the outcomes, by a
coordinator that holds the lease, after `reconcile` has given every unit in a data table its outcomes; while the lease
holds nobody else commits, and a coordinator that lost it is refused by the fence. `verify` checks it on the rows.

No transaction spans two tables, so a crash can come between the two commits. The outcomes are therefore written before
the data commit, and that commit names their fragments in its transaction properties: `reconcile` finds them there and
commits what the crash cut off, to the byte.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from schemas.layout import outcomes_name
from vidpipe.store import failpoints
from vidpipe.store.compact import compact
from vidpipe.store.create import KEY_KEY
from vidpipe.store.fence import ALL_ROWS, RowKeys, fenced, units_present
from vidpipe.store.lease import Lease
from vidpipe.store.write import write_to, written_rows

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

    from vidpipe.store.dataset import Dataset

PROPERTY = "outcomes"
_ATTEMPTS = 8
_COMMITS_BETWEEN_MERGES = 32
_OUTCOMES = outcomes_name("")
_OUTCOME_KEY = ("id", "item", "fingerprint")
_REMEMBERED_UNITS = 10_000
_COPIED_BYTES = 256 << 20
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StagedUnit:
    """What a worker made of a unit, not yet visible.

    Attributes:
        unit_id: in the `unit_id` column of all its rows; not empty.
        fragments: table name -> what `write_fragments` returned; of one data table and of the outcomes.
        rows: table name -> rows that the committer writes itself, all units of a commit in one fragment. For small
            rows, outcomes above all: a fragment a unit would make thousands of them.
        fingerprint: of the stage; `replaces` removes only outcomes of this fingerprint.
        replaces: (id, item) of outcomes that this unit's take the place of, such as rows rejected before.
        replaces_rows: data table -> keys (of its key column) whose rows this unit's take the place of. Two units of
            one commit that write the same key would both be kept: give one unit all that replaces a row.
        replaces_all: the unit's rows take the place of everything in its data table and of all outcomes, as those of
            a table stage do.
    """

    unit_id: str
    fragments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rows: Mapping[str, pa.Table] = field(default_factory=dict)
    fingerprint: str = ""
    replaces: Sequence[tuple[bytes, str]] = ()
    replaces_rows: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    replaces_all: bool = False

    def __post_init__(self) -> None:
        if not self.unit_id:
            raise ValueError("a unit needs an id: the empty one is the sentinel's")
        if not any(name.startswith(_OUTCOMES) for name in self.tables()):
            raise ValueError(f"unit {self.unit_id} has no outcomes: every row that a unit was asked for has one")

    def tables(self) -> set[str]:
        """Names of the tables that it has something for."""
        return {n for n, texts in self.fragments.items() if texts} | {n for n, t in self.rows.items() if t.num_rows}


@dataclass(frozen=True, kw_only=True)
class StagedOutcomes:
    """Outcomes of some units as fragments of the outcomes table that are written and not yet visible.

    Attributes:
        units: ids; the fragments hold outcomes of all of these and of no others.
        fragments: as `write_fragments` returns them.
        replaces: id in hex, item and fingerprint of outcomes that these take the place of.
        replaces_all: they take the place of all.
    """

    units: list[str]
    fragments: list[str]
    replaces: list[tuple[str, str, str]]
    replaces_all: bool = False

    def to_json(self) -> str:
        """For the properties of the data commit."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StagedOutcomes:
        """Read `to_json`'s form."""
        values = json.loads(text)
        return cls(**{**values, "replaces": [(a, b, c) for a, b, c in values["replaces"]]})


class Committer:
    """Commits units of one stage under its lease. Not for several threads at once."""

    def __init__(self, dataset: Dataset, stage: str, lease: Lease):
        if lease.stage != stage:
            raise ValueError(f"the lease is for stage {lease.stage!r}, not {stage!r}")
        self.dataset = dataset
        self.lease = lease
        self.outcomes = lease.table
        self._states: dict[str, _TableState] = {}
        self._cut_off: list[StagedOutcomes] = []

    def commit(self, units: Iterable[StagedUnit]) -> None:
        """Make units visible; those that already are, are skipped. When it returns, all of them are.

        Raises:
            LeaseLost: another coordinator took over; units not yet visible are its to do.
            OSError: the storage failed for good; the next call, or the next start, completes what was begun.
        """
        while self._cut_off:
            self.complete(self._cut_off[0])
            del self._cut_off[0]
        groups: dict[str, dict[str, StagedUnit]] = {}
        for unit in units:
            data = sorted(unit.tables() - {self.outcomes})
            if len(data) > 1:
                raise ValueError(f"unit {unit.unit_id} writes {data}: a unit writes one data table and its outcomes")
            groups.setdefault(data[0] if data else "", {})[unit.unit_id] = unit
        staged = []
        for name, group in sorted(groups.items()):
            outcomes = self._stage_outcomes(list(group.values()))
            if name:
                self._commit_data(name, list(group.values()), outcomes)
                self._cut_off.append(outcomes)
                failpoints.reach("commit:between-data-and-outcomes")
            staged.append((outcomes, list(group.values())))
        self._commit_outcomes(staged)
        self._cut_off.clear()
        failpoints.reach("commit:after-outcomes")

    def complete(self, outcomes: StagedOutcomes) -> None:
        """Make outcomes visible whose data were committed and they were not, unless any of their units has outcomes.

        They take the place of outcomes that have come to the same rows in the meantime.
        """

        def attempt(table: lance.LanceDataset, state: _TableState) -> lance.LanceDataset:
            if len(state.absent(table, outcomes.units)) < len(outcomes.units):
                return table
            rows = written_rows(self.dataset, self.outcomes, outcomes.fragments, _OUTCOME_KEY)
            keys = [(row["id"].hex(), row["item"], row["fingerprint"]) for row in rows.to_pylist()]
            return _commit_staged(table, [replace(outcomes, replaces=[*outcomes.replaces, *keys])])

        self._attempt(self.outcomes, attempt)

    def _stage_outcomes(self, units: list[StagedUnit]) -> StagedOutcomes:
        texts = _texts(self.dataset, self.outcomes, None, units)
        replaces = [(key.hex(), item, unit.fingerprint) for unit in units for key, item in unit.replaces]
        failpoints.reach("commit:outcomes-staged")
        everything = any(unit.replaces_all for unit in units)
        if everything and len(units) > 1:
            raise ValueError("a unit that replaces everything has to be committed alone")
        return StagedOutcomes(
            units=[unit.unit_id for unit in units], fragments=texts, replaces=replaces, replaces_all=everything
        )

    def _commit_data(self, name: str, units: list[StagedUnit], outcomes: StagedOutcomes) -> None:
        def attempt(table: lance.LanceDataset, state: _TableState) -> lance.LanceDataset:
            absent = set(state.absent(table, outcomes.units))
            todo = [unit for unit in units if unit.unit_id in absent]
            if not todo:
                return table
            key = (table.schema.metadata or {})[KEY_KEY].decode()
            keys = RowKeys((key,), [(k,) for unit in todo for k in unit.replaces_rows.get(name, ())])
            replaced = ALL_ROWS if outcomes.replaces_all else keys
            return fenced(table, _texts(self.dataset, name, table, todo), replaced, {PROPERTY: outcomes.to_json()})

        self.lease.register(name)
        self._attempt(name, attempt)

    def _commit_outcomes(self, staged: list[tuple[StagedOutcomes, list[StagedUnit]]]) -> None:
        def attempt(table: lance.LanceDataset, state: _TableState) -> lance.LanceDataset:
            wanted = [unit for outcomes, _ in staged for unit in outcomes.units]
            absent = set(state.absent(table, wanted))
            todo = []
            for outcomes, units in staged:
                missing = [unit for unit in units if unit.unit_id in absent]
                if missing:  # fragments cannot be split: where some units are there already, write the others anew
                    todo.append(outcomes if len(missing) == len(units) else self._stage_outcomes(missing))
            return _commit_staged(table, todo) if any(t.fragments for t in todo) else table

        self._attempt(self.outcomes, attempt)

    def _attempt(self, name: str, step: Callable[[lance.LanceDataset, _TableState], lance.LanceDataset]) -> None:
        """Open the table, check the lease, commit; after a refused or uncertain commit, look again and repeat."""
        state = self._states.setdefault(name, _TableState())
        for attempt in range(_ATTEMPTS):
            try:
                table = self.dataset.table(name)
                failpoints.reach("commit:opened")
                self.lease.check()
                failpoints.reach("commit:checked")
                new = step(table, state)
                failpoints.reach("commit:committed")
            except OSError as error:  # CommitConflictError is one
                _LOG.info("commit to %s of %s, attempt %d: %s", name, self.dataset.root, attempt + 1, error)
                state.forget()
                if attempt + 1 == _ATTEMPTS:
                    raise
                time.sleep(min(0.05 * 2**attempt, 5.0))
            else:
                state.note(new)
                self._merge_fragments(name, state)
                return

    def _merge_fragments(self, name: str, state: _TableState) -> None:
        """Merge small fragments, every so many commits; a failure costs speed alone."""
        state.num_commits += 1
        if state.num_commits % _COMMITS_BETWEEN_MERGES:
            return
        table = self.dataset.table(name)
        self.lease.check()
        try:
            merged = compact(table)
        except OSError as error:
            _LOG.warning("fragments of %s of %s not merged: %s", name, self.dataset.root, error)
            state.forget()
        else:
            if merged:
                state.note(table)


def _commit_staged(table: lance.LanceDataset, staged: list[StagedOutcomes]) -> lance.LanceDataset:
    replaced = [(bytes.fromhex(key), item, fingerprint) for s in staged for key, item, fingerprint in s.replaces]
    keys = RowKeys(_OUTCOME_KEY, replaced)
    everything = any(s.replaces_all for s in staged)
    return fenced(table, [text for s in staged for text in s.fragments], ALL_ROWS if everything else keys)


def _texts(dataset: Dataset, name: str, table: Any, units: list[StagedUnit]) -> list[str]:
    """Fragments of these units for one table: those that workers wrote, and one of all rows that they sent."""
    import pyarrow as pa

    texts = [text for unit in units for text in unit.fragments.get(name, ())]
    rows = [unit.rows[name] for unit in units if name in unit.rows]
    if rows:
        all_rows = pa.concat_tables(rows, promote_options="default")
        if all_rows.nbytes < _COPIED_BYTES:  # Lance writes a thousand chunks of three rows many times slower than one
            all_rows = all_rows.combine_chunks()
        texts += write_to(table or dataset.table(name), all_rows, f"table {name} of {dataset.root}")
    return texts


class _TableState:
    """What this committer knows of a table, so that it need not look for units that cannot be there."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, None] = OrderedDict()
        self._asked: list[str] = []
        self.num_commits = 0
        self.forget()

    def forget(self) -> None:
        """Know nothing of the newest version: a commit was refused, or nobody heard how it went."""
        self._version = -1

    def absent(self, table: lance.LanceDataset, units: list[str]) -> list[str]:
        """Units that are not in the table; reads it only if its version is not the one that our own commit made."""
        self._asked = units
        unknown = [unit for unit in units if unit not in self._recent]
        if table.version == self._version or not unknown:
            return unknown
        present = units_present(table, unknown)
        return [unit for unit in unknown if unit not in present]

    def note(self, table: lance.LanceDataset) -> None:
        """Remember that the units last asked for are in `table`."""
        self._version = table.version
        for unit in self._asked:
            self._recent[unit] = None
            self._recent.move_to_end(unit)
        while len(self._recent) > _REMEMBERED_UNITS:
            self._recent.popitem(last=False)
