"""The index: one row a latent to train on, found once by joining the tables, saved with its hash, memory-mapped.

Rows are sorted by (dataset, bucket, place in the table), so that a stream, all rows of one bucket of one dataset, is a
range of rows, and neighbouring rows lie beside each other on disk. A row costs 48 bytes, a caption 8, a text 28.
`build.py` makes it; everything downstream speaks of rows by their number here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from schemas.buckets import Bucket
from schemas.errors import UserError
from schemas.ids import canonical_json
from schemas.latent_spaces import LatentSpace

ARRAYS: dict[str, str] = {
    "row_ids": "<u8",  # stable row id in the stream's table
    "latent_ids": "V16",
    "crc32s": "<u4",
    "files": "<u4",  # number of the payload file in the stream's table
    "positions": "<u8",  # where the latent starts in that file
    "caption_starts": "<u8",  # captions of row i: [caption_starts[i], caption_starts[i + 1])
    "caption_texts": "<u4",  # row of the text arrays
    "caption_shares": "<f4",  # cumulative probability within its latent row, the last one 1
    "text_row_ids": "<u8",
    "text_tokens": "<u4",
    "text_crc32s": "<u4",
    "text_files": "<u4",
    "text_positions": "<u8",
}
NO_TEXT = -1


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """One dataset of a mix.

    The same path may be listed more than once with other buckets or another filter, to weigh them apart.

    Attributes:
        path: a folder or an object store URI.
        weight: visits an epoch of each row: floor(weight), and one more for a share of the rows chosen anew each epoch.
        buckets: `FxHxW` to read; empty reads all.
        filter: a further condition, beside the mix's.
        fingerprints: table name -> fingerprint to read; the newest where none is named.
        storage_options: credentials as Lance names them; empty reads the environment.
    """

    path: str
    weight: float = 1.0
    buckets: tuple[str, ...] = ()
    filter: str = "true"
    fingerprints: dict[str, str] = field(default_factory=dict)
    storage_options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise UserError(f"dataset {self.path}: weight must be positive, found {self.weight}; leave it out instead")
        for bucket in self.buckets:
            Bucket.parse(bucket)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """A mix of cached latents to train on.

    Attributes:
        latents: latent space, the folder's name under `latents/`.
        text_encoder: name of the table under `text/`; empty trains without text.
        buckets: `FxHxW` to read; empty reads all.
        filter: SQL condition over the columns of clips, scores, tables, videos and latents; null is false.
        captions: source -> weight; a source is drawn by weight among those that the clip has, then one of its
            captions evenly. Empty weighs all sources alike.
        captionless: `drop` rows without a caption, or give them the `empty` text.
        split: `train`, `heldout`, or `all`; without a split table every row is in `train`.
        patch: the model's patch (t, h, w) in latent elements.
        max_text_tokens: longer embeddings are cut; 0 keeps all.
    """

    datasets: tuple[DatasetConfig, ...]
    latents: str
    text_encoder: str = ""
    buckets: tuple[str, ...] = ()
    filter: str = "true"
    captions: dict[str, float] = field(default_factory=dict)
    captionless: Literal["drop", "empty"] = "drop"
    split: Literal["train", "heldout", "all"] = "train"
    patch: tuple[int, ...] = (1, 2, 2)
    max_text_tokens: int = 512

    def __post_init__(self) -> None:
        if not self.datasets:
            raise UserError("data: no dataset; name one, such as datasets = [{path = 'DATASET'}]")
        if len(self.patch) != 3 or min(self.patch) < 1:
            raise UserError(f"data: patch must be three positive sizes (t, h, w), found {list(self.patch)}")
        if any(not weight > 0 for weight in self.captions.values()):
            raise UserError("data: weights of caption sources must be positive; leave a source out instead")
        if self.max_text_tokens < 0:
            raise UserError("data: max_text_tokens must not be negative")
        for bucket in self.buckets:
            Bucket.parse(bucket)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """All rows of one bucket of one dataset: index rows [start, stop).

    Attributes:
        dataset: number of the dataset in the mix.
        table: name relative to the dataset's root; `version` is pinned.
        shape_CTHW: of a stored latent, channels as the space has them (2C are stored with a log-variance).
        grid_THW: tokens along each dimension; `num_tokens` is their product.
        latent_bytes: stored bytes a row.
        files: payload files, relative to the table.
    """

    dataset: int
    table: str
    version: int
    bucket: str
    weight: float
    start: int
    stop: int
    shape_CTHW: tuple[int, ...]
    grid_THW: tuple[int, ...]
    latent_bytes: int
    files: tuple[str, ...] = dataclasses.field(repr=False)

    @property
    def num_rows(self) -> int:
        """Rows in the index."""
        return self.stop - self.start

    @property
    def num_tokens(self) -> int:
        """Tokens of each latent."""
        return math.prod(self.grid_THW)


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """Embeddings of one dataset: text rows [start, stop); `empty` is the row of the empty text, or NO_TEXT."""

    dataset: int
    table: str
    version: int
    start: int
    stop: int
    empty: int
    dim: int
    dtype: str
    metadata: str
    files: tuple[str, ...] = dataclasses.field(repr=False)


class Index:
    """Memory-mapped arrays (see ARRAYS) and what they refer to.

    Attributes:
        config: the mix that it was built for.
        space: the latents' space, one for all streams.
        streams: in row order.
        texts: a table of embeddings a dataset; empty without a text encoder.
        versions: `dataset number/table` -> version that was read, for pinning.
        content_hash: of all arrays and of what the rows refer to; a resumed run must find the same.
    """

    def __init__(self, folder: Path, config: DataConfig | None = None) -> None:
        facts = json.loads((folder / "index.json").read_text())
        self.folder = folder
        self.content_hash: str = facts["content_hash"]
        self.config = config or _config_from(facts["config"])  # credentials are not saved, only handed on
        self.space = LatentSpace.from_json(json.dumps(facts["space"]))
        self.streams = tuple(Stream(**_tuples(s)) for s in facts["streams"])
        self.texts = tuple(TextTable(**_tuples(t)) for t in facts["texts"])
        self.versions: dict[str, int] = facts["versions"]
        self.notes: list[str] = facts["notes"]
        self._arrays = {name: _map(folder / f"{name}.npy") for name in ARRAYS}

    def __getattr__(self, name: str) -> np.ndarray:
        try:
            return self.__dict__["_arrays"][name]
        except KeyError:
            raise AttributeError(f"index has no array {name!r}") from None

    def __len__(self) -> int:
        return self.streams[-1].stop if self.streams else 0

    def __repr__(self) -> str:
        return f"Index({len(self):,} rows, {len(self.streams)} streams, {len(self.text_row_ids):,} texts)"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Index, (self.folder, self.config))

    def stream_of(self, rows: np.ndarray) -> np.ndarray:
        """Stream number of each row."""
        return np.searchsorted([s.stop for s in self.streams], rows, side="right")

    @property
    def text_dim(self) -> int:
        """Width of the text embeddings; 0 without text."""
        return self.texts[0].dim if self.texts else 0


def _map(path: Path) -> np.ndarray:
    # numpy refuses to map an empty array
    return np.load(path, mmap_mode="r") if path.stat().st_size > 128 else np.load(path)


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def _config_from(values: Mapping[str, Any]) -> DataConfig:
    datasets = tuple(DatasetConfig(**_tuples(d)) for d in values["datasets"])
    return DataConfig(**{**_tuples(values), "datasets": datasets})


def config_key(config: DataConfig, versions: Mapping[str, int]) -> str:
    """Name of an index: its configuration, credentials aside, and the table versions that it reads."""
    return hashlib.blake2b(canonical_json([config_values(config), dict(versions)]), digest_size=8).hexdigest()


def config_values(config: DataConfig) -> dict[str, Any]:
    """A configuration as JSON values, credentials left out."""
    values = dataclasses.asdict(config)
    for dataset in values["datasets"]:
        dataset.pop("storage_options")
    return values


def hash_arrays(folder: Path, facts: Any) -> str:
    """Hash what the rows refer to and every array's bytes: 32 hex digits."""
    digest = hashlib.blake2b(canonical_json(facts), digest_size=16)
    for name in ARRAYS:
        with open(folder / f"{name}.npy", "rb") as file:
            while block := file.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()
