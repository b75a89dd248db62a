"""embed: each distinct caption once, the empty one included (classifier-free guidance needs it)."""

from __future__ import annotations

import functools
import json
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from schemas import ids, layout, registry, tables
from schemas.columns import TableSpec
from schemas.outcomes import Outcome
from vidpipe.sections import EmbedConfig
from vidpipe.stages.base import Context, Result, Row, Stage, Unit, batched_by, table_from, with_provenance
from vidpipe.stages.view import View
from vidpipe.store.reconcile import KeptRows


@functools.lru_cache(maxsize=1)
def _load(name: str, source: str, device: str, params: str) -> Any:
    return registry.load_text_encoder(name)(source=source, device=device, **json.loads(params))


def load_encoder(config: EmbedConfig, device: str) -> Any:
    """The recipe's text encoder, made once a process."""
    return _load(config.encoder, config.source, device, ids.canonical_json(config.params).decode())


@dataclass(frozen=True, kw_only=True)
class Embed(Stage):
    """Embeds distinct captions.

    Attributes:
        encoder_name: the encoder's own name, which is the table's.
        metadata: JSON that names encoder, weights, width and dtype; part of the fingerprint.
    """

    name = "embed"
    version = 1
    upstream = ("caption",)
    gpu = 1.0
    config: EmbedConfig
    encoder_name: str
    metadata: str

    def params(self) -> Mapping[str, Any]:
        return json.loads(self.metadata)

    @property
    def table_name(self) -> str:
        """`text/<encoder>`."""
        return layout.text_name(self.encoder_name)

    def tables(self) -> dict[str, tuple[TableSpec, dict[bytes, bytes]]]:
        return {self.table_name: (tables.TEXT, {layout.TEXT_ENCODER_KEY: self.metadata.encode()})}

    def kept_rows(self) -> dict[str, KeptRows]:
        return {self.table_name: KeptRows(id_column="text_id")}

    def candidates(self, view: View) -> str | None:
        empty = f"SELECT unhex('{ids.text_id('').hex()}') AS id, '' AS text"
        if not view.has("captions"):
            return empty
        return f'SELECT DISTINCT text_id AS id, text FROM "cur/captions" UNION {empty} ORDER BY id'

    def units(self, rows: Iterable[Row], view: View, final: bool) -> Iterator[Unit | Result]:
        fingerprint = view.accepted[self.name][0]
        for batch in batched_by(rows, self.config.texts_per_unit):
            if final or len(batch) == self.config.texts_per_unit:
                yield self.make_unit(fingerprint, batch)

    def process(self, unit: Unit, context: Context) -> Result:
        from vidpipe.devices import resolve
        from vidpipe.store.write import write_fragments

        start = time.perf_counter()
        encoder = load_encoder(self.config, resolve(context.device))
        rows = []
        for row, embedding in zip(unit.rows, encoder.encode([r["text"] for r in unit.rows])):
            data = tensor_bytes(embedding)
            rows.append(
                {
                    "text_id": row["id"],
                    "text": row["text"],
                    "num_tokens": embedding.shape[0],
                    "embedding_crc32": zlib.crc32(data),
                    "embedding": data,
                }
            )
        table = with_provenance(table_from(tables.TEXT, rows), context.fingerprint, context.unit_id)
        seconds = (time.perf_counter() - start) / len(rows)
        return Result(
            fragments={self.table_name: write_fragments(context.root, self.table_name, table)},
            outcomes=[Outcome(id=r["id"], status="kept", seconds=seconds) for r in unit.rows],
        )


def tensor_bytes(tensor: Any) -> bytes:
    """Raw bytes of a tensor: C order, little endian; numpy has no bfloat16."""
    import torch

    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
