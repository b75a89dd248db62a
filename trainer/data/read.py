"""Read planned packs: choose captions, lay a pack out in one buffer, fill it, and say which rows are bad.

A pack's bytes, each part at a multiple of 64: a header of numbers (see `Layout.write_header`), the latents end to end,
the text embeddings end to end. Reader processes write it into shared memory; the training process takes views of it.

A bad row is replaced by another of its stream, so of its shape: the first that is good among rows drawn by (seed,
latent id, visit, attempt). Every rank and every later run finds the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from schemas.errors import UserError
from trainer.data.blobs import BlobTable, Rows
from trainer.data.cache import RowCache
from trainer.data.index import NO_TEXT, Index, Stream, TextTable
from trainer.data.permutation import hash_key, keyed_uniform
from trainer.data.quarantine import LATENT, TEXT, BadRow
from trainer.data.tables import Source

ALIGNMENT = 64
MAX_ATTEMPTS = 64
REPLACED = 1 << 40
"""Added to the visit of a replacement, once an attempt, so that its noise is not that of a regular visit."""

_FIXED = 4
_ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, kw_only=True)
class ReadConfig:
    """How payload is read.

    Attributes:
        fast_path: read local payload files directly where that proves right.
        check: compare checksums and look for values that are not finite.
        cache_dir: folder for rows of object stores; empty keeps none.
        cache_bytes: size limit of that folder.
    """

    fast_path: bool = True
    check: bool = True
    cache_dir: str = ""
    cache_bytes: int = 0

    def __post_init__(self) -> None:
        if self.cache_bytes < 0:
            raise UserError("loader: cache_bytes must not be negative")
        if bool(self.cache_dir) != bool(self.cache_bytes):
            raise UserError("loader: cache_dir and cache_bytes go together: set both or neither")


def choose_texts(index: Index, rows: np.ndarray, visits: np.ndarray, seed: int) -> np.ndarray:
    """Text row of each sample, drawn by its captions' shares from (seed, latent id, visit); NO_TEXT without any."""
    starts = index.caption_starts[rows].astype(np.int64)
    stops = index.caption_starts[rows + 1].astype(np.int64)
    draw = keyed_uniform(hash_key(seed, 1), _names(index, rows) + _spread(visits))
    texts = np.full(len(rows), NO_TEXT, np.int64)
    for i, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist())):
        if start < stop:
            chosen = int(np.searchsorted(index.caption_shares[start:stop], draw[i], side="right"))
            texts[i] = index.caption_texts[start + min(chosen, stop - start - 1)]
    return texts


def _names(index: Index, rows: np.ndarray) -> np.ndarray:
    """First eight bytes of each latent id."""
    return np.ascontiguousarray(index.latent_ids[rows]).view("<u8").reshape(-1, 2)[:, 0]


def _spread(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """A pack as it lies in a buffer.

    Attributes:
        rows, visits: int64, replacements in place of bad rows.
        texts: int64 text rows; NO_TEXT where there is none.
        text_tokens: int64 tokens kept of each text.
        latent_bytes, text_bytes: of each part.
    """

    rows: np.ndarray
    visits: np.ndarray
    texts: np.ndarray
    text_tokens: np.ndarray
    num_replaced: int
    latent_bytes: int
    text_bytes: int

    @property
    def latents_at(self) -> int:
        """Offset of the latents."""
        return _aligned(8 * (_FIXED + 6 * len(self.rows)))

    @property
    def texts_at(self) -> int:
        """Offset of the text embeddings."""
        return self.latents_at + _aligned(self.latent_bytes)

    @property
    def size_bytes(self) -> int:
        """Bytes of the pack."""
        return self.texts_at + _aligned(self.text_bytes)

    def write_header(self, buffer: memoryview, latent_ids: np.ndarray) -> None:
        """Write counts, rows, visits, texts, text tokens and latent ids."""
        n = len(self.rows)
        words = np.frombuffer(buffer[: 8 * (_FIXED + 6 * n)], np.int64)
        words[:_FIXED] = n, self.num_replaced, self.latent_bytes, self.text_bytes
        parts = [self.rows, self.visits, self.texts, self.text_tokens]
        words[_FIXED : _FIXED + 4 * n] = np.concatenate(parts)
        words[_FIXED + 4 * n :] = np.ascontiguousarray(latent_ids).view(np.int64).reshape(-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class RawPack:
    """A pack's parts in a buffer; views, good as long as the buffer is."""

    layout: Layout
    latent_ids: list[bytes]
    latents: memoryview
    texts: memoryview

    @classmethod
    def parse(cls, buffer: memoryview) -> RawPack:
        """Read what `Layout.write_header` wrote; numbers are copied."""
        n, replaced, latent_bytes, text_bytes = np.frombuffer(buffer[: 8 * _FIXED], np.int64).tolist()
        words = np.frombuffer(buffer[8 * _FIXED : 8 * (_FIXED + 6 * n)], np.int64).copy()
        rows, visits, texts, text_tokens = words[: 4 * n].reshape(4, n)
        layout = Layout(
            rows=rows,
            visits=visits,
            texts=texts,
            text_tokens=text_tokens,
            num_replaced=replaced,
            latent_bytes=latent_bytes,
            text_bytes=text_bytes,
        )
        names = words[4 * n :].tobytes()
        return cls(
            layout=layout,
            latent_ids=[names[16 * i : 16 * i + 16] for i in range(n)],
            latents=buffer[layout.latents_at : layout.latents_at + latent_bytes],
            texts=buffer[layout.texts_at : layout.texts_at + text_bytes],
        )


class PackFetcher:
    """Lays out and fills packs of an index; opens each table once.

    Args:
        seed: of the choice of captions and of replacements.
        bad_rows, bad_texts: rows of the index known to be bad.
    """

    def __init__(
        self,
        index: Index,
        seed: int,
        config: ReadConfig,
        bad_rows: Iterable[int] = (),
        bad_texts: Iterable[int] = (),
    ) -> None:
        self.index, self.seed, self.config = index, seed, config
        self.bad_rows, self.bad_texts = set(map(int, bad_rows)), set(map(int, bad_texts))
        self._cache = RowCache(config.cache_dir, config.cache_bytes) if config.cache_dir else None
        self._tables: dict[tuple[int, str], BlobTable] = {}
        self._stored_bytes = np.array([s.latent_bytes for s in index.streams], np.int64)
        text = index.texts[0] if index.texts else None
        self._text_row_bytes = text.dim * _ELEMENT_BYTES[text.dtype] if text else 0

    @property
    def num_requests(self) -> int:
        """Requests made so far."""
        return sum(table.num_requests for table in self._tables.values())

    @property
    def is_local(self) -> bool:
        """Whether every dataset is on a disk."""
        return all(Source(root=d.path).is_local for d in self.index.config.datasets)

    def lay_out(self, rows: np.ndarray, visits: np.ndarray) -> Layout:
        """Choose captions, replace rows known to be bad, and find the pack's size."""
        texts = choose_texts(self.index, rows, visits, self.seed)
        replaced = 0
        if self.bad_rows or self.bad_texts:
            rows, visits, texts = rows.copy(), visits.copy(), texts.copy()
            for i in range(len(rows)):
                if int(rows[i]) in self.bad_rows or int(texts[i]) in self.bad_texts:
                    rows[i], visits[i], texts[i] = self._replace(int(rows[i]), int(visits[i]))
                    replaced += 1
        tokens = np.where(texts == NO_TEXT, 0, self._text_lengths(texts))
        limit = self.index.config.max_text_tokens
        tokens = np.minimum(tokens, limit) if limit else tokens
        return Layout(
            rows=rows,
            visits=visits,
            texts=texts,
            text_tokens=tokens,
            num_replaced=replaced,
            latent_bytes=int(self._stored_bytes[self.index.stream_of(rows)].sum()),
            text_bytes=int(tokens.sum()) * self._text_row_bytes,
        )

    def _text_lengths(self, texts: np.ndarray) -> np.ndarray:
        lengths = self.index.text_tokens
        return lengths[np.maximum(texts, 0)].astype(np.int64) if len(lengths) else np.zeros(len(texts), np.int64)

    def _replace(self, row: int, visit: int) -> tuple[int, int, int]:
        """The first good row among those drawn for (row, visit)."""
        stream = self.index.streams[int(self.index.stream_of(np.array([row]))[0])]
        names = _names(self.index, np.array([row])) + _spread(np.array([visit]))
        for attempt in range(1, MAX_ATTEMPTS + 1):
            draw = float(keyed_uniform(hash_key(self.seed, 2, attempt), names)[0])
            other = stream.start + min(int(draw * stream.num_rows), stream.num_rows - 1)
            later = visit + attempt * REPLACED
            if other not in self.bad_rows:
                text = int(choose_texts(self.index, np.array([other]), np.array([later]), self.seed)[0])
                if text not in self.bad_texts:
                    return other, later, text
        raise UserError(
            f"loader: {MAX_ATTEMPTS} rows of {stream.table} in a row are bad; run `vidpipe verify` on "
            f"{self.index.config.datasets[stream.dataset].path}"
        )

    def fetch(self, layout: Layout, buffer: memoryview) -> list[BadRow]:
        """Fill a buffer of `layout.size_bytes`. Rows found bad are remembered; lay out and fetch again without them."""
        latent_ids = self.index.latent_ids[layout.rows]
        layout.write_header(buffer, latent_ids)
        found = self._fetch_latents(layout, buffer[layout.latents_at : layout.latents_at + layout.latent_bytes])
        if layout.text_bytes:
            found += self._fetch_texts(layout, buffer[layout.texts_at : layout.texts_at + layout.text_bytes])
        self.bad_rows.update(bad.number for bad in found if bad.kind == LATENT)
        self.bad_texts.update(bad.number for bad in found if bad.kind == TEXT)
        return found

    def count_requests(self, layout: Layout) -> int:
        """Requests that a pack takes where files are read directly: neighbours together, a text each."""
        latents = sum(len(rows.runs()) for _, _, rows in self._latent_rows(layout))
        return latents + int((layout.texts != NO_TEXT).sum())

    def _latent_rows(self, layout: Layout) -> Iterator[tuple[Stream, np.ndarray, Rows]]:
        """What to read of each stream: the stream, index rows, and where each goes among the pack's latents."""
        index = self.index
        numbers = index.stream_of(layout.rows)
        sizes = self._stored_bytes[numbers]
        offsets = np.cumsum(sizes) - sizes
        for number in np.unique(numbers):
            mine = np.flatnonzero(numbers == number)
            rows = layout.rows[mine]
            wanted = Rows(
                row_ids=index.row_ids[rows],
                files=index.files[rows],
                positions=index.positions[rows].astype(np.int64),
                sizes=sizes[mine],
                crc32s=index.crc32s[rows],
                offsets=offsets[mine],
            )
            yield index.streams[int(number)], rows, wanted

    def _fetch_latents(self, layout: Layout, out: memoryview) -> list[BadRow]:
        found = []
        for stream, rows, wanted in self._latent_rows(layout):
            bad = self._table(stream, "latent", self.index.space.dtype).read(wanted, out)
            found += [self._bad(LATENT, stream, wanted, i, int(rows[i]), reason) for i, reason in bad.items()]
        return found

    def _fetch_texts(self, layout: Layout, out: memoryview) -> list[BadRow]:
        """Texts go straight to their place; one that is cut is read whole aside first, for its checksum."""
        index, found = self.index, []
        sizes = self._text_lengths(layout.texts) * self._text_row_bytes
        kept = layout.text_tokens * self._text_row_bytes
        offsets = np.cumsum(kept) - kept
        for table in index.texts:
            mine = np.flatnonzero((layout.texts >= table.start) & (layout.texts < table.stop))
            for cut in (False, True):
                part = mine[(sizes[mine] > kept[mine]) == cut]
                if not part.size:
                    continue
                texts = layout.texts[part]
                places = np.cumsum(sizes[part]) - sizes[part] if cut else offsets[part]
                wanted = Rows(
                    row_ids=index.text_row_ids[texts],
                    files=index.text_files[texts],
                    positions=index.text_positions[texts].astype(np.int64),
                    sizes=sizes[part],
                    crc32s=index.text_crc32s[texts],
                    offsets=places,
                )
                target = memoryview(bytearray(int(sizes[part].sum()))) if cut else out
                bad = self._table(table, "embedding", table.dtype).read(wanted, target)
                found += [self._bad(TEXT, table, wanted, i, int(texts[i]), reason) for i, reason in bad.items()]
                if cut:
                    for i, place in zip(part, places):
                        out[offsets[i] : offsets[i] + kept[i]] = target[place : place + kept[i]]
        return found

    def _bad(self, kind: str, place: Stream | TextTable, rows: Rows, i: int, number: int, reason: str) -> BadRow:
        return BadRow(
            kind=kind,
            dataset=self.index.config.datasets[place.dataset].path,
            table=place.table,
            version=place.version,
            row_id=int(rows.row_ids[i]),
            reason=reason,
            number=number,
            key=bytes(self.index.latent_ids[number]).hex() if kind == LATENT else "",
        )

    def _table(self, place: Stream | TextTable, column: str, dtype: str) -> BlobTable:
        key = (place.dataset, place.table)
        if key not in self._tables:
            dataset = self.index.config.datasets[place.dataset]
            self._tables[key] = BlobTable(
                Source(root=dataset.path, storage_options=dataset.storage_options),
                place.table,
                place.version,
                column,
                place.files,
                dtype=dtype,
                fast_path=self.config.fast_path,
                check=self.config.check,
                cache=self._cache,
            )
        return self._tables[key]

    def close(self) -> None:
        """Close payload files."""
        for table in self._tables.values():
            table.close()


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def null_text(index: Index) -> np.ndarray | None:
    """Embedding [L, D] of the empty text, as stored words (uint16 for 16-bit dtypes); None if no table has it."""
    for table in index.texts:
        if table.empty != NO_TEXT:
            dataset = index.config.datasets[table.dataset]
            source = Source(root=dataset.path, storage_options=dataset.storage_options)
            row_id = int(index.text_row_ids[table.empty])
            ((_, data),) = source.open(table.table, table.version).read_blobs("embedding", ids=[row_id])
            return np.frombuffer(data, np.float32 if table.dtype == "float32" else np.uint16).reshape(-1, table.dim)
    return None
