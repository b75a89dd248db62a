"""Rows that could not be used in training: listed in a file, left out by later runs, replaced by one rule.

The file has a line of JSON a row: dataset, table, version, row_id, reason. `vidpipe verify` reads it too.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from schemas.errors import UserError
from trainer.data.index import Index

LATENT, TEXT = "latent", "text"


@dataclass(frozen=True, kw_only=True)
class BadRow:
    """A row that could not be used, and why.

    Attributes:
        dataset: root of its dataset.
        number: row of the index, of its latents or of its texts.
    """

    kind: str
    dataset: str
    table: str
    version: int
    row_id: int
    reason: str
    number: int

    def __str__(self) -> str:
        return f"{self.table} version {self.version}, row {self.row_id}: {self.reason}"


class Quarantine:
    """The file, and the budget of bad rows of this process.

    Args:
        path: the file; None keeps no file.
        max_rows: new bad rows after which the run stops.
    """

    def __init__(self, path: Path | None, max_rows: int) -> None:
        self.path, self.max_rows = path, max_rows
        self._known: set[tuple[str, str, int]] = set()
        self.num_new = 0
        for entry in self.entries():
            self._known.add((entry["dataset"], entry["table"], entry["row_id"]))

    def entries(self) -> list[dict]:
        """What the file lists."""
        if not self.path or not self.path.exists():
            return []
        entries = []
        for number, line in enumerate(self.path.read_text().splitlines(), 1):
            try:
                entry = json.loads(line)
                entries.append({name: entry[name] for name in ("dataset", "table", "version", "row_id", "reason")})
            except (ValueError, KeyError, TypeError):
                raise UserError(f"quarantine {self.path}: line {number} is not an entry: {line[:80]!r}") from None
        return entries

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
            values = {k: v for k, v in dataclasses.asdict(row).items() if k not in ("number", "kind")}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:  # one write, so that lines of several ranks do not mix
                os.write(descriptor, (json.dumps(values) + "\n").encode())
            finally:
                os.close(descriptor)
        if self.num_new > self.max_rows:
            raise UserError(
                f"loader: {self.num_new} bad rows, more than max_bad_rows = {self.max_rows}; the last: {row}; "
                f"run `vidpipe verify {row.dataset}`" + (f", see {self.path}" if self.path else "")
            )
        return True

    def rows(self, index: Index) -> tuple[np.ndarray, np.ndarray]:
        """Latent rows and text rows of an index that are listed."""
        return _find(index, index.streams, index.row_ids, self._known), _find(
            index, index.texts, index.text_row_ids, self._known
        )


def _find(index: Index, places: Iterable, row_ids: np.ndarray, known: set[tuple[str, str, int]]) -> np.ndarray:
    found = [np.empty(0, np.int64)]
    for place in places:
        root = index.config.datasets[place.dataset].path
        ids = [row_id for dataset, table, row_id in known if (dataset, table) == (root, place.table)]
        if ids:
            found.append(place.start + np.flatnonzero(np.isin(row_ids[place.start : place.stop], ids)))
    return np.concatenate(found)
