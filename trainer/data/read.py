"""Read latents and text embeddings of chosen rows from the pinned tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.data.index import NO_TEXT, Index, Stream, TextTable
from trainer.data.permutation import hash_key, keyed_uniform
from trainer.data.tables import Source


@dataclass(frozen=True, kw_only=True)
class BadRow:
    """A row that could not be used, and why."""

    table: str
    version: int
    row_id: int
    reason: str


def choose_texts(index: Index, rows: np.ndarray, visits: np.ndarray, seed: int) -> np.ndarray:
    """Text row of each sample, drawn by its captions' shares from (seed, latent id, visit); NO_TEXT without any."""
    starts = index.caption_starts[rows].astype(np.int64)
    stops = index.caption_starts[rows + 1].astype(np.int64)
    names = np.ascontiguousarray(index.latent_ids[rows]).view("<u8").reshape(-1, 2)[:, 0]
    draw = keyed_uniform(hash_key(seed, 1), names + visits.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    texts = np.full(len(rows), NO_TEXT, np.int64)
    for i, (start, stop) in enumerate(zip(starts, stops)):
        if start < stop:
            chosen = np.searchsorted(index.caption_shares[start:stop], draw[i], side="right")
            texts[i] = index.caption_texts[start + min(int(chosen), int(stop - start) - 1)]
    return texts


class RowReader:
    """Reads rows of an index into buffers; opens each table once, at its pinned version."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._tables: dict[tuple[int, str], Any] = {}

    def _table(self, place: Stream | TextTable) -> Any:
        key = (place.dataset, place.table)
        if key not in self._tables:
            dataset = self.index.config.datasets[place.dataset]
            source = Source(root=dataset.path, storage_options=dataset.storage_options)
            self._tables[key] = source.open(place.table, place.version)
        return self._tables[key]

    def latents(self, stream: Stream, rows: np.ndarray) -> list[bytes]:
        """Stored bytes of rows of one stream, in order."""
        ids = [int(i) for i in self.index.row_ids[rows]]
        return [data for _, data in self._table(stream).read_blobs("latent", ids=ids, preserve_order=True)]

    def texts(self, texts: np.ndarray) -> list[bytes]:
        """Stored bytes of text rows, in order; empty for NO_TEXT."""
        found: list[bytes] = [b""] * len(texts)
        for table in self.index.texts:
            mine = np.flatnonzero((texts >= table.start) & (texts < table.stop))
            if mine.size:
                ids = [int(i) for i in self.index.text_row_ids[texts[mine]]]
                blobs = self._table(table).read_blobs("embedding", ids=ids, preserve_order=True)
                for place, (_, data) in zip(mine, blobs):
                    found[place] = data
        return found


def null_text(index: Index) -> np.ndarray | None:
    """Embedding [L, E] of the empty text, as stored words (uint16 for 16-bit dtypes); None if no table has it."""
    for table in index.texts:
        if table.empty != NO_TEXT:
            data = RowReader(index).texts(np.array([table.empty]))[0]
            return np.frombuffer(data, np.float32 if table.dtype == "float32" else np.uint16).reshape(-1, table.dim)
    return None
