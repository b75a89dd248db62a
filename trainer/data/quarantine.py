"""Rows that could not be used in training: listed in a file, left out by later runs, replaced by one rule.

A run's file has a line of JSON a row: dataset, table, version, row_id, reason. Each dataset has a list of its own,
`quarantine.jsonl` (table, version, row_id, key, reason), which `vidpipe verify --quarantine` writes after it has read
every payload again. It is read when a run starts, and a run that lists its bad rows adds them to it where the dataset
is a folder, so that other runs know of them.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from schemas import layout
from schemas.errors import UserError
from trainer.data.index import Index
from trainer.data.tables import Source

log = logging.getLogger(__name__)

LATENT, TEXT = "latent", "text"
OF_RUN = ("dataset", "table", "version", "row_id", "reason")
OF_DATASET = ("table", "version", "row_id", "key", "reason")


@dataclass(frozen=True, kw_only=True)
class BadRow:
    """A row that could not be used, and why.

    Attributes:
        dataset: root of its dataset.
        number: row of the index, of its latents or of its texts.
        key: the latent's id in hex; empty for a text.
    """

    kind: str
    dataset: str
    table: str
    version: int
    row_id: int
    reason: str
    number: int
    key: str = ""

    def __str__(self) -> str:
        return f"{self.table} version {self.version}, row {self.row_id}: {self.reason}"


class Quarantine:
    """The file, and the budget of bad rows of this process.

    Args:
        path: the file; None keeps no file.
        max_rows: new bad rows after which the run stops.
        sources: datasets whose own lists are read too.
    """

    def __init__(self, path: Path | None, max_rows: int, sources: Sequence[Source] = ()) -> None:
        self.path, self.max_rows = path, max_rows
        self._known: set[tuple[str, str, int]] = set()
        self.num_new = 0
        for entry in self.entries():
            self._known.add((entry["dataset"], entry["table"], entry["row_id"]))
        for source in sources:
            text = (source.read_file(layout.QUARANTINE) or b"").decode()
            for entry in _entries(text, f"{source.root.rstrip('/')}/{layout.QUARANTINE}", OF_DATASET):
                self._known.add((source.root, entry["table"], entry["row_id"]))

    def entries(self) -> list[dict]:
        """What the run's file lists."""
        if not self.path or not self.path.exists():
            return []
        return _entries(self.path.read_text(), str(self.path), OF_RUN)

    def add(self, row: BadRow) -> bool:
        """List a row; whether it is new.

        Raises:
            UserError: more bad rows than the budget allows.
        """
        key = (row.dataset, row.table, row.row_id)
        if key in self._known:
            return False
        self._known.add(key)
        self.num_new += 1
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _append(self.path, {name: getattr(row, name) for name in OF_RUN})
            self._tell_dataset(row)
        if self.num_new > self.max_rows:
            raise UserError(
                f"loader: {self.num_new} bad rows, more than max_bad_rows = {self.max_rows}; the last: {row}; "
                f"run `vidpipe verify {row.dataset}`" + (f", see {self.path}" if self.path else "")
            )
        return True

    def _tell_dataset(self, row: BadRow) -> None:
        source = Source(root=row.dataset)
        if not source.is_local:
            return  # object stores cannot append; `vidpipe verify --quarantine` finds the row again
        try:
            _append(source.path / layout.QUARANTINE, {name: getattr(row, name) for name in OF_DATASET})
        except OSError as error:
            log.warning("%s is not listed in its dataset, which cannot be written to: %s", row, error)

    def rows(self, index: Index) -> tuple[np.ndarray, np.ndarray]:
        """Latent rows and text rows of an index that are listed."""
        return _find(index, index.streams, index.row_ids, self._known), _find(
            index, index.texts, index.text_row_ids, self._known
        )


def _entries(text: str, where: str, names: Sequence[str]) -> list[dict]:
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(line)
            entries.append({name: entry[name] for name in names})
        except (ValueError, KeyError, TypeError):
            raise UserError(f"quarantine {where}: line {number} is not an entry: {line[:80]!r}") from None
    return entries


def _append(path: Path, values: dict) -> None:
    """Add a line in one write, so that lines of several ranks do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(values) + "\n").encode())
    finally:
        os.close(descriptor)


def _find(index: Index, places: Iterable, row_ids: np.ndarray, known: set[tuple[str, str, int]]) -> np.ndarray:
    found = [np.empty(0, np.int64)]
    for place in places:
        root = index.config.datasets[place.dataset].path
        ids = [row_id for dataset, table, row_id in known if (dataset, table) == (root, place.table)]
        if ids:
            found.append(place.start + np.flatnonzero(np.isin(row_ids[place.start : place.stop], ids)))
    return np.concatenate(found)
