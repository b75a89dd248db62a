"""Completing what a crash cut off between a unit's two commits: rows in a data table without outcomes.

First choice: the outcomes' fragments that the data commit names in its transaction properties, if both are still there;
they hold the rejected and failed rows of the unit too. Otherwise kept outcomes are derived from the rows, and what a
data table does not hold is asked again and comes out the same.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from schemas.tables import OUTCOMES
from vidpipe.store import failpoints
from vidpipe.store.commit import PROPERTY, Committer, StagedOutcomes, StagedUnit
from vidpipe.store.fence import sql_list
from vidpipe.store.query import units_without_outcomes

if TYPE_CHECKING:
    import lance

    from vidpipe.store.dataset import Dataset

_BATCH_UNITS = 2000
_LOOK_BACK_VERSIONS = 200


@dataclass(frozen=True, kw_only=True)
class KeptRows:
    """How a table's rows tell which input rows were kept.

    Attributes:
        id_column: the column that holds the input row's id, such as `video_id` for `clips`.
        item: the outcomes' `item`, such as the bucket.
    """

    id_column: str
    item: str = ""


def reconcile(committer: Committer, tables: Mapping[str, KeptRows]) -> int:
    """Give outcomes to the units of `tables` that have none; after taking the lease and before planning.

    A unit's rows in its data table are complete, since they came in one commit.

    Args:
        tables: data tables that this stage writes; those that do not exist are passed over.
    Returns:
        number of units completed.
    """
    dataset = committer.dataset
    num_units = 0
    for name, kept in tables.items():
        if not dataset.has(name):
            continue
        cut_off = units_without_outcomes(dataset, name, committer.outcomes)
        failpoints.reach("reconcile:planned")
        for staged in _staged(dataset, name, committer.outcomes, set(cut_off)):
            committer.complete(staged)
            failpoints.reach("reconcile:completed")
        left = units_without_outcomes(dataset, name, committer.outcomes) if cut_off else []
        for start in range(0, len(left), _BATCH_UNITS):
            committer.commit(_derive(dataset, name, kept, left[start : start + _BATCH_UNITS], committer.outcomes))
            failpoints.reach("reconcile:derived")
        num_units += len(cut_off)
    return num_units


def _staged(dataset: Dataset, name: str, outcomes: str, cut_off: set[str]) -> Iterator[StagedOutcomes]:
    """Outcomes that the newest commits of a data table name, for units that have none, if their files are there."""
    table = dataset.table(name)
    for version in range(table.version, max(0, table.version - _LOOK_BACK_VERSIONS), -1):
        if not cut_off:
            return
        properties = _properties(table, version)
        if properties is None:
            return
        if PROPERTY not in properties:
            continue
        staged = StagedOutcomes.from_json(properties[PROPERTY])
        if cut_off.issuperset(staged.units) and _files_exist(dataset, outcomes, staged):
            yield staged
        cut_off = cut_off - set(staged.units)


def _properties(table: lance.LanceDataset, version: int) -> Mapping[str, str] | None:
    try:
        transaction = table.read_transaction(version)
    except (OSError, ValueError):  # cleaned away
        return None
    return (transaction.transaction_properties or {}) if transaction else None


def _files_exist(dataset: Dataset, outcomes: str, staged: StagedOutcomes) -> bool:
    paths = [file["path"] for text in staged.fragments for file in json.loads(text)["files"]]
    return all(dataset.files.exists(f"{outcomes}.lance/data/{path}") for path in paths)


def _derive(dataset: Dataset, name: str, kept: KeptRows, units: list[str], target: str) -> Iterator[StagedUnit]:
    outcomes = _outcomes(dataset, name, kept, units)
    names: list[str] = outcomes["unit_id"].to_pylist()
    starts = [i for i, unit in enumerate(names) if i == 0 or names[i - 1] != unit]
    for start, end in zip(starts, [*starts[1:], len(names)]):
        part = outcomes.slice(start, end - start)
        keys: list[Any] = list(zip(part["id"].to_pylist(), part["item"].to_pylist()))
        fingerprint = part["fingerprint"][0].as_py()
        yield StagedUnit(unit_id=names[start], rows={target: part}, fingerprint=fingerprint, replaces=keys)


def _outcomes(dataset: Dataset, name: str, kept: KeptRows, units: list[str]) -> Any:
    """Outcomes of these units' rows, sorted by unit; status, reason and message come from the table if it has them."""
    told = [c for c in ("status", "reason", "message") if c in dataset.table(name).schema.names]
    keys = [kept.id_column, "fingerprint", "unit_id"]
    rows = dataset.read(name, [*keys, *told], f"unit_id IN ({sql_list(units)})")
    rows = rows.group_by(keys).aggregate([(column, "min") for column in told]).sort_by("unit_id")
    num = rows.num_rows
    columns: dict[str, Any] = {c: [""] * num for c in ("reason", "rule", "value", "expression_hash", "message")}
    columns |= {"status": ["kept"] * num, "seconds": [0.0] * num, "host": [""] * num, "item": [kept.item] * num}
    columns |= {"finished_at": [datetime.datetime.now(datetime.UTC)] * num}
    columns |= {column: rows[f"{column}_min"] for column in told}
    columns |= {"id": rows[kept.id_column], "fingerprint": rows["fingerprint"], "unit_id": rows["unit_id"]}
    schema = OUTCOMES.schema()
    return pa.table({f.name: columns[f.name] for f in schema}, schema=schema)
