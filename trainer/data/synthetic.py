"""Write a small dataset of random latents and captions in the layout that the trainer reads.

For tests, benchmarks and dry runs where no footage was encoded: the tables have the schemas of `schemas.tables`,
the sentinel row, stable row ids and blob columns of a real dataset. Latents are smooth random fields under a caption
that names their kind, so that a small model has something to learn.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from schemas import ids, layout
from schemas.buckets import Bucket
from schemas.columns import TableSpec
from schemas.latent_spaces import METADATA_KEY, LatentSpace
from schemas.tables import CAPTIONS, CLIPS, LATENTS, SPLIT, TEXT
from trainer.data.index import Stream

SPACE = LatentSpace(
    name="synthetic",
    vae="dct",
    revision="synthetic-1",
    channels=16,
    stride_t=4,
    stride_h=8,
    stride_w=8,
    mean=(0.0,) * 16,
    std=(1.0,) * 16,
)
FINGERPRINT = "0" * 16
KINDS = ("still", "drift", "pulse", "noise")


@dataclass(frozen=True, kw_only=True)
class SyntheticConfig:
    """What to write.

    Attributes:
        buckets: clips a bucket, `FxHxW` -> number.
        space: the latents' space.
        encoder: name of the text encoder whose table is written.
        text_dim: width D of the text embeddings.
        captions: captions a clip, by source.
        heldout_every: every n-th clip of a bucket is held out; 0 writes no split table.
        rows_per_fragment: latent rows a fragment.
    """

    buckets: Mapping[str, int] = field(default_factory=lambda: {"1x64x64": 64, "5x64x96": 32, "17x64x64": 16})
    space: LatentSpace = SPACE
    encoder: str = "synthetic"
    text_dim: int = 32
    captions: Mapping[str, int] = field(default_factory=lambda: {"sidecar": 1, "openai:toy": 1})
    heldout_every: int = 8
    rows_per_fragment: int = 4096
    seed: int = 0


@dataclass(frozen=True)
class StreamIndex:
    """Streams without tables, for planning alone: what a planner asks of an index, and no more."""

    streams: tuple[Stream, ...]
    content_hash: str = "streams"

    def __len__(self) -> int:
        return self.streams[-1].stop

    @classmethod
    def of(
        cls, rows: Mapping[int, int], weights: Mapping[int, float] | None = None, token_bytes: int = 128
    ) -> StreamIndex:
        """A stream for each length: tokens of a sample -> rows; tokens of `token_bytes`."""
        streams, start = [], 0
        for length, count in rows.items():
            made = Stream(
                dataset=0,
                table=f"latents/mix/{length}",
                version=1,
                bucket=f"1x16x{16 * length}",
                weight=(weights or {}).get(length, 1.0),
                start=start,
                stop=start + count,
                shape_CTHW=(16, 1, 2, 2 * length),
                grid_THW=(1, 1, length),
                latent_bytes=length * token_bytes,
                files=(),
            )
            streams.append(made)
            start += count
        return cls(tuple(streams))


def write_dataset(root: str, config: SyntheticConfig | None = None) -> None:
    """Write clips, captions, text, latents and split tables under the folder `root`."""
    config = config or SyntheticConfig()
    clips: list[dict[str, Any]] = []
    texts: dict[str, int] = {}
    captions: list[dict[str, Any]] = []
    for name, count in config.buckets.items():
        first = len(clips)
        clips += [_clip_row(first + i, Bucket.parse(name)) for i in range(count)]
        rows = clips[first:]
        for row in rows:
            captions += _caption_rows(row, config.captions, texts)
        _write_latents(root, Bucket.parse(name), rows, config)
    _write(root, "clips", CLIPS, clips)
    _write(root, "captions", CAPTIONS, captions)
    _write_texts(root, ["", *texts], config)
    if config.heldout_every:
        split = [{"clip_id": c["clip_id"], "split": _split(i, config.heldout_every)} for i, c in enumerate(clips)]
        _write(root, layout.stage_table_name("split"), SPLIT, split)


def _split(number: int, every: int) -> str:
    return "heldout" if number % every == every - 1 else "train"


def _clip_row(number: int, bucket: Bucket) -> dict[str, Any]:
    video = ids._digest("video", [number.to_bytes(8, "little")])
    return {
        "clip_id": ids.clip_id(video, 0, 0, bucket.num_frames, Fraction(1, 24)),
        "video_id": video,
        "num_frames": bucket.num_frames,
        "width": bucket.width,
        "height": bucket.height,
        "duration_seconds": bucket.num_frames / 24,
        "window_index": number,
    }


def _caption_rows(clip: Mapping[str, Any], sources: Mapping[str, int], texts: dict[str, int]) -> list[dict[str, Any]]:
    rows = []
    for source, count in sources.items():
        for i in range(count):
            text = f"{KINDS[clip['window_index'] % len(KINDS)]}, take {clip['window_index'] % 7}, {source} {i}"
            texts.setdefault(text, len(texts))
            caption = ids.caption_id(clip["clip_id"], source, text)
            rows.append({**clip, "caption_id": caption, "text_id": ids.text_id(text), "source": source, "text": text})
    return rows


def _write_texts(root: str, texts: Sequence[str], config: SyntheticConfig) -> None:
    rows = []
    for text in texts:
        rng = np.random.default_rng(zlib.crc32(text.encode()) + config.seed)
        num_tokens = 1 + len(text.split())
        payload = to_bfloat16(rng.standard_normal((num_tokens, config.text_dim))).tobytes()
        row = {"text_id": ids.text_id(text), "text": text, "num_tokens": num_tokens, "embedding": payload}
        rows.append({**row, "embedding_crc32": zlib.crc32(payload)})
    facts = {"name": config.encoder, "source": "", "revision": "1", "dim": config.text_dim, "dtype": "bfloat16"}
    metadata = {layout.TEXT_ENCODER_KEY: json.dumps(facts).encode()}
    _write(root, layout.text_name(config.encoder), TEXT, rows, metadata)


def _write_latents(root: str, bucket: Bucket, clips: Sequence[Mapping[str, Any]], config: SyntheticConfig) -> None:
    shape = bucket.latent_shape(config.space)
    rng = np.random.default_rng([config.seed, *shape])
    rows = []
    for clip in clips:
        payload = encode(latent(rng, KINDS[clip["window_index"] % len(KINDS)], shape), config.space.dtype)
        identity = ids.latent_id(clip["clip_id"], None, {"bucket": str(bucket)}, FINGERPRINT)
        row = {"latent_id": identity, "latent": payload, "latent_crc32": zlib.crc32(payload), "fps": 24.0}
        rows.append({**clip, **row})
    metadata = {METADATA_KEY: config.space.to_json().encode(), layout.BUCKET_KEY: str(bucket).encode()}
    name = layout.latents_name(config.space.name, bucket)
    _write(root, name, LATENTS, rows, metadata, config.rows_per_fragment)


def latent(rng: np.random.Generator, kind: str, shape_CTHW: Sequence[int]) -> np.ndarray:
    """A float32 field [C, T, H, W] of about unit variance: a plane wave a channel, still, moving, pulsing, or noise."""
    C, T, H, W = shape_CTHW
    if kind == "noise":
        return rng.standard_normal(shape_CTHW).astype(np.float32)
    t, y, x = np.meshgrid(np.arange(T), np.arange(H), np.arange(W), indexing="ij")
    frequency = rng.uniform(0.1, 0.6, (C, 2))
    phase = rng.uniform(0, 2 * np.pi, C)[:, None, None, None] + (0.7 * t if kind == "drift" else 0.0 * t)
    wave = np.sin(frequency[:, :1, None, None] * y + frequency[:, 1:, None, None] * x + phase)
    gain = 1 + 0.5 * np.sin(0.9 * t) if kind == "pulse" else 1.0
    return (np.sqrt(2) * gain * wave + 0.1 * rng.standard_normal(shape_CTHW)).astype(np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float to bfloat16, nearest even, as uint16 words."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def encode(values: np.ndarray, dtype: str) -> bytes:
    """Bytes of a latent in a space's dtype, C order, little endian."""
    return to_bfloat16(values).tobytes() if dtype == "bfloat16" else values.astype(f"<{dtype}").tobytes()


def _write(
    root: str,
    name: str,
    spec: TableSpec,
    rows: Sequence[Mapping[str, Any]],
    metadata: Mapping[bytes, bytes] | None = None,
    rows_per_fragment: int = 1 << 20,
) -> None:
    """Create a table: its sentinel row in a fragment of its own, then the rows."""
    import lance

    schema = lance_schema(spec, metadata)
    uri = layout.table_uri(root, name)
    options: dict[str, Any] = {"data_storage_version": "2.2", "enable_stable_row_ids": True}
    lance.write_dataset(_arrow([_sentinel(spec)], schema, spec), uri, schema=schema, **options)
    stamped = [{**row, "fingerprint": FINGERPRINT, "unit_id": "synthetic"} for row in rows]
    for start in range(0, len(stamped), rows_per_fragment):
        table = _arrow(stamped[start : start + rows_per_fragment], schema, spec)
        lance.write_dataset(table, uri, mode="append", **options)


def lance_schema(spec: TableSpec, metadata: Mapping[bytes, bytes] | None = None) -> pa.Schema:
    """A table's schema as Lance stores it: blob columns packed, many rows a file."""
    import lance

    plain = spec.schema(metadata)
    fields = []
    for column, made in zip(spec.columns, plain):
        if column.blob:
            packed = lance.blob_field(
                column.name, nullable=column.nullable, inline_size_threshold=0, dedicated_size_threshold=1 << 40
            )
            notes: dict[Any, Any] = {**(made.metadata or {}), **(packed.metadata or {})}
            made = packed.with_metadata(notes)
        fields.append(made)
    return pa.schema(fields, plain.metadata)  # type: ignore[arg-type]


def _sentinel(spec: TableSpec) -> dict[str, Any]:
    blanks = {"string": "", "fixed_size_binary[16]": b"\0" * 16, "large_binary": b"\0", "bool": False}
    return {c.name: blanks.get(str(c.type), 0) for c in spec.columns if not c.nullable}


def _arrow(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, spec: TableSpec) -> pa.Table:
    import lance

    columns = []
    for column, made in zip(spec.columns, schema):
        values = [row.get(column.name) for row in rows]
        columns.append(lance.blob_array(values) if column.blob else pa.array(values, made.type))
    return pa.Table.from_arrays(columns, schema=schema)
