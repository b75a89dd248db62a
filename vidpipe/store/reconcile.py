"""Completing what a crash cut off between a unit's two commits: rows without outcomes get them from the rows."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from schemas.tables import OUTCOMES
from vidpipe.store import failpoints
from vidpipe.store.commit import Committer, StagedUnit
from vidpipe.store.fence import sql_list

if TYPE_CHECKING:
    from vidpipe.store.dataset import Dataset

_BATCH_UNITS = 2000


@dataclass(frozen=True, kw_only=True)
class KeptRows:
    """How a table's rows tell which input rows were kept.

    Attributes:
        id_column: the column that holds the input row's id, such as `video_id` for `clips`.
        item: the outcomes' `item`, such as the bucket.
    """

    id_column: str
    item: str = ""


def units_without_outcomes(dataset: Dataset, table: str, outcomes: str) -> list[str]:
    """Units that have rows in `table` and none in `outcomes`, sorted."""
    con = dataset.connect()
    sql = f'SELECT DISTINCT unit_id FROM "{table}" WHERE unit_id NOT IN (SELECT unit_id FROM "{outcomes}") ORDER BY 1'
    return [row[0] for row in con.execute(sql).fetchall()]


def reconcile(committer: Committer, tables: Mapping[str, KeptRows]) -> int:
    """Give outcomes to the units of `tables` that have none; call it after taking the lease and before planning.

    A unit's rows in its data table are complete, since they came in one commit. What the table does not hold (rows
    rejected or failed, a video without a clip) gets no outcome here, is asked again, and comes out the same.

    Args:
        tables: data tables that this stage writes; those that do not exist are passed over.
    Returns:
        number of units completed.
    """
    num_units = 0
    for name, kept in tables.items():
        if not committer.dataset.has(name):
            continue
        cut_off = units_without_outcomes(committer.dataset, name, committer.outcomes)
        for start in range(0, len(cut_off), _BATCH_UNITS):
            units = _derive(committer.dataset, name, kept, cut_off[start : start + _BATCH_UNITS], committer.outcomes)
            committer.commit(units)
            failpoints.reach("reconcile:committed")
        num_units += len(cut_off)
    return num_units


def _derive(dataset: Dataset, name: str, kept: KeptRows, units: list[str], target: str) -> Iterator[StagedUnit]:
    outcomes = _outcomes(dataset, name, kept, units)
    names = outcomes["unit_id"].to_pylist()
    starts = [i for i, unit in enumerate(names) if i == 0 or names[i - 1] != unit]
    for start, end in zip(starts, [*starts[1:], len(names)]):
        part = outcomes.slice(start, end - start)
        keys = list(zip(part["id"].to_pylist(), part["item"].to_pylist()))
        fingerprint = part["fingerprint"][0].as_py()
        yield StagedUnit(unit_id=names[start], rows={target: part}, fingerprint=fingerprint, replaces=keys)


def _outcomes(dataset: Dataset, name: str, kept: KeptRows, units: list[str]) -> pa.Table:
    """Outcomes of these units' rows, sorted by unit; status, reason and message come from the table if it has them."""
    told = [c for c in ("status", "reason", "message") if c in dataset.table(name).schema.names]
    keys = [kept.id_column, "fingerprint", "unit_id"]
    rows = dataset.read(name, [*keys, *told], f"unit_id IN ({sql_list(units)})")
    rows = rows.group_by(keys).aggregate([(column, "min") for column in told]).sort_by("unit_id")
    num = rows.num_rows
    columns: dict[str, object] = {
        name: [""] * num for name in ("reason", "rule", "value", "expression_hash", "message")
    }
    columns |= {"status": ["kept"] * num, "seconds": [0.0] * num, "host": [""] * num, "item": [kept.item] * num}
    columns |= {"finished_at": [datetime.datetime.now(datetime.UTC)] * num}
    columns |= {column: rows[f"{column}_min"] for column in told}
    columns |= {"id": rows[kept.id_column], "fingerprint": rows["fingerprint"], "unit_id": rows["unit_id"]}
    schema = OUTCOMES.schema()
    return pa.table({field.name: columns[field.name] for field in schema}, schema=schema)
