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
from vidpipe.store.fence import sql_list, units_present
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
        item_column: the column that holds it, where it differs from row to row.
    """

    id_column: str
    item: str = ""
    item_column: str = ""


def reconcile(committer: Committer, tables: Mapping[str, KeptRows]) -> int:
    """Give outcomes to the units of `tables` that have none; after taking the lease and before planning.

    A unit's rows in its data table are complete, since they came in one commit.

    Args:
        tables: data tables that this stage writes; those that do not exist are passed over.
    Returns:
        number of units completed.
    """
    dataset = committer.dataset
    num_units = complete_staged(committer)
    for name, kept in tables.items():
        if not dataset.has(name):
            continue
        left = units_without_outcomes(dataset, name, committer.outcomes)
        failpoints.reach("reconcile:planned")
        for start in range(0, len(left), _BATCH_UNITS):
            committer.commit(_derive(dataset, name, kept, left[start : start + _BATCH_UNITS], committer.outcomes))
            failpoints.reach("reconcile:derived")
        num_units += len(left)
    return num_units


def complete_staged(committer: Committer) -> int:
    """Commit the outcomes that a crash cut off, where they are still to be found; return the number of units.

    A coordinator commits a batch's outcomes before it begins another batch, and starts with this. So in each table
    that the stage writes to, only the newest data commit can lack its outcomes.
    """
    num_units = 0
    for name in committer.lease.tables():
        staged = _newest_staged(committer.dataset.table(name))
        if not staged or not staged.units:
            continue
        present = units_present(committer.dataset.table(committer.outcomes), staged.units)
        failpoints.reach("reconcile:found")
        if not present and _files_exist(committer.dataset, committer.outcomes, staged):
            committer.complete(staged)
            failpoints.reach("reconcile:completed")
            num_units += len(staged.units)
    return num_units


def _newest_staged(table: lance.LanceDataset) -> StagedOutcomes | None:
    """Outcomes that the newest data commit names; fences, compactions and the like come between and name none."""
    for version in range(table.version, max(0, table.version - _LOOK_BACK_VERSIONS), -1):
        properties = _properties(table, version)
        if properties is None:
            return None
        if PROPERTY in properties:
            return StagedOutcomes.from_json(properties[PROPERTY])
    return None


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
    keys = [kept.id_column, "fingerprint", "unit_id", *([kept.item_column] if kept.item_column else [])]
    rows = dataset.read(name, [*keys, *told], f"unit_id IN ({sql_list(units)})")
    rows = rows.group_by(keys).aggregate([(column, "min") for column in told]).sort_by("unit_id")
    num = rows.num_rows
    columns: dict[str, Any] = {c: [""] * num for c in ("reason", "rule", "value", "expression_hash", "message")}
    columns |= {"status": ["kept"] * num, "seconds": [0.0] * num, "host": [""] * num, "item": [kept.item] * num}
    columns |= {"finished_at": [datetime.datetime.now(datetime.UTC)] * num}
    columns |= {"item": rows[kept.item_column]} if kept.item_column else {}
    columns |= {column: rows[f"{column}_min"] for column in told}
    columns |= {"id": rows[kept.id_column], "fingerprint": rows["fingerprint"], "unit_id": rows["unit_id"]}
    schema = OUTCOMES.schema()
    return pa.table({f.name: columns[f.name] for f in schema}, schema=schema)
