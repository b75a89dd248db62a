"""The fenced commit: an `Update` that also touches the table's first fragment.

A plain Lance append is never refused. An update that names a fragment is refused when another commit touched that
fragment after the version that it was planned on. So every commit of ours names the first fragment, unchanged: of two
coordinators that planned on one version, the later is refused. The sentinel row keeps that fragment from vanishing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

    from vidpipe.store.dataset import Dataset

_FENCE_ATTEMPTS = 100
_LITERALS = 5000


@dataclass(frozen=True)
class RowKeys:
    """Rows by key: those whose tuple of `columns` is one of `keys`."""

    columns: tuple[str, ...]
    keys: Sequence[tuple[bytes | str, ...]]


ALL_ROWS = RowKeys(("unit_id",), [])
"""Every row but the sentinel."""


def fenced(
    table: lance.LanceDataset,
    fragments: Iterable[str] = (),
    delete: RowKeys | None = None,
    properties: Mapping[str, str] | None = None,
) -> lance.LanceDataset:
    """Add fragments (as `write_fragments` returns them) and remove rows, in one commit on top of `table`'s version.

    Raises:
        lance.commit.CommitConflictError: another fenced commit, delete or compaction came after `table` was opened.
    """
    import lance
    from lance.fragment import FragmentMetadata

    first = _fragment(table, next(iter(table.fragment_ids()))).metadata
    changed, removed = _deletions(table, delete) if delete else ({}, [])
    assert first.id not in removed, "the sentinel row was deleted"
    operation = lance.LanceOperation.Update(
        updated_fragments=list({first.id: first, **changed}.values()),
        removed_fragment_ids=removed,
        new_fragments=[FragmentMetadata.from_json(text) for text in fragments],
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


def _fragment(table: lance.LanceDataset, number: int) -> lance.LanceFragment:
    fragment = table.get_fragment(number)
    assert fragment is not None, number
    return fragment


def _deletions(table: lance.LanceDataset, delete: RowKeys) -> tuple[dict[int, FragmentMetadata], list[int]]:
    """Metadata of fragments that lose rows, and numbers of those that lose all."""
    offsets: dict[int, list[int]] = {}
    for address in find(table, delete):
        offsets.setdefault(address >> 32, []).append(address & 0xFFFFFFFF)
    changed, removed = {}, []
    for number, rows in offsets.items():
        left = _fragment(table, number).delete_rows(rows)
        if left is None:
            removed.append(number)
        else:
            changed[number] = left
    return changed, removed


def find(table: lance.LanceDataset, wanted: RowKeys) -> Iterator[int]:
    """Addresses of the rows with these keys."""
    keys = set(wanted.keys)
    if wanted is ALL_ROWS:
        where = "unit_id != ''"
    elif len(keys) <= _LITERALS:
        where = f"{wanted.columns[0]} IN ({sql_list({key[0] for key in keys})})"
    else:
        where = None  # so many literals cost more than reading the columns
    if wanted is not ALL_ROWS and not keys:
        return
    scanner = table.scanner(columns=list(wanted.columns), filter=where, with_row_address=True)
    for batch in scanner.to_batches():
        rows: Any = batch
        found = zip(*(rows[name].to_pylist() for name in wanted.columns))
        addresses = rows["_rowaddr"].to_pylist()
        yield from (a for key, a in zip(found, addresses) if wanted is ALL_ROWS or key in keys)


def sql_list(values: Iterable[object]) -> str:
    """SQL literals of byte and text values, for `column IN (...)` in a Lance filter."""
    return ", ".join(map(_literal, values))


def _literal(value: object) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    assert isinstance(value, str), value
    return "'" + value.replace("'", "''") + "'"


def units_present(table: lance.LanceDataset, units: Sequence[str]) -> set[str]:
    """Which of these units have rows in the table."""
    found: set[str] = set()
    for start in range(0, len(units), _LITERALS):
        where = f"unit_id IN ({sql_list(units[start : start + _LITERALS])})"
        rows: Any = table.scanner(columns=["unit_id"], filter=where).to_table()
        found.update(rows["unit_id"].unique().to_pylist())
    return found
