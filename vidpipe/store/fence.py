"""The fenced commit: an `Update` that also touches the table's first fragment.

A plain Lance append is never refused. An update that names a fragment is refused when another commit touched that
fragment after the version that it was planned on. So every commit of ours names the first fragment, unchanged: of two
coordinators that planned on one version, the later is refused. The sentinel row keeps that fragment from vanishing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import FragmentMetadata

    from vidpipe.store.dataset import Dataset

_FENCE_ATTEMPTS = 100
_LITERALS = 5000


@dataclass(kw_only=True)
class RowsToDelete:
    """Rows that a commit removes, found by key.

    Attributes:
        keys: column name -> values; a row is removed when its tuple of these columns is one of the zipped values.
    """

    keys: Mapping[str, Sequence[object]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.keys.values()), ()))


def fenced(
    table: lance.LanceDataset,
    fragments: Iterable[FragmentMetadata] = (),
    delete: RowsToDelete | None = None,
    properties: Mapping[str, str] | None = None,
) -> lance.LanceDataset:
    """Add fragments and remove rows in one commit on top of `table`'s version.

    Raises:
        lance.commit.CommitConflictError: another fenced commit, delete or compaction came after `table` was opened.
    """
    import lance

    first = _first_fragment(table)
    changed, removed = _deletions(table, delete) if delete else ({}, [])
    assert first.id not in removed, "the sentinel row was deleted"
    operation = lance.LanceOperation.Update(
        updated_fragments=list({first.id: first, **changed}.values()),
        removed_fragment_ids=removed,
        new_fragments=list(fragments),
    )
    transaction = lance.Transaction(table.version, operation, transaction_properties=dict(properties or {}))
    return lance.LanceDataset.commit(table, transaction)


def fence(dataset: Dataset, name: str) -> None:
    """Make an empty fenced commit, so that everything planned on an earlier version is refused."""
    from lance.commit import CommitConflictError

    for _ in range(_FENCE_ATTEMPTS):
        try:
            fenced(dataset.table(name))
        except CommitConflictError:
            continue  # a commit of the old owner came in between: it counts, and the next attempt comes after it
        return
    raise RuntimeError(
        f"table {name} of {dataset.root}: {_FENCE_ATTEMPTS} commits in a row got in the way of the fence"
    )


def _first_fragment(table: lance.LanceDataset) -> FragmentMetadata:
    first = next(iter(table.fragment_ids()))
    fragment = table.get_fragment(first)
    assert fragment is not None
    return fragment.metadata


def _deletions(table: lance.LanceDataset, delete: RowsToDelete) -> tuple[dict[int, FragmentMetadata], list[int]]:
    offsets: dict[int, list[int]] = {}
    for address in find(table, delete):
        offsets.setdefault(address >> 32, []).append(address & 0xFFFFFFFF)
    changed, removed = {}, []
    for number, rows in offsets.items():
        fragment = table.get_fragment(number)
        assert fragment is not None
        left = fragment.delete_rows(rows)
        if left is None:
            removed.append(number)
        else:
            changed[number] = left
    return changed, removed


def find(table: lance.LanceDataset, wanted: RowsToDelete) -> list[int]:
    """Row addresses of the rows with these keys."""
    import pyarrow as pa

    names = list(wanted.keys)
    values = list(zip(*wanted.keys.values()))
    schema = pa.schema([table.schema.field(name) for name in names])
    found: list[int] = []
    for start in range(0, len(values), _LITERALS):
        part = values[start : start + _LITERALS]
        literals = sql_list({row[0] for row in part})
        rows = table.scanner(columns=names, filter=f"{names[0]} IN ({literals})", with_row_address=True).to_table()
        found += _matching(rows, set(part), schema.names)
    return found


def _matching(rows: pa.Table, wanted: set[tuple[object, ...]], names: list[str]) -> list[int]:
    keys = zip(*(rows[name].to_pylist() for name in names))
    return [address for key, address in zip(keys, rows["_rowaddr"].to_pylist()) if key in wanted]


def sql_list(values: Iterable[object]) -> str:
    """SQL literals of byte and text values, for `column IN (...)` in a Lance filter."""
    return ", ".join(map(_literal, values))


def _literal(value: object) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    assert isinstance(value, str), value
    return "'" + value.replace("'", "''") + "'"


def units_present(table: lance.LanceDataset, units: Iterable[str], after_fragment: int = -1) -> set[str]:
    """Which of these units have rows in fragments numbered above `after_fragment`."""
    units = list(units)
    if after_fragment < 0:
        fragments = None
    else:
        fragments = [f for f in table.get_fragments() if f.fragment_id > after_fragment]
        if not fragments:
            return set()
    found: set[str] = set()
    for start in range(0, len(units), _LITERALS):
        literals = sql_list(units[start : start + _LITERALS])
        rows = table.scanner(columns=["unit_id"], filter=f"unit_id IN ({literals})", fragments=fragments).to_table()
        found.update(rows["unit_id"].unique().to_pylist())
    return found
