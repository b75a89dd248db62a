"""encode: selected clips to latents, in units of one bucket's clips, large enough for a fragment worth reading."""

from __future__ import annotations

import functools
import json
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas import ids, layout
from schemas.buckets import Bucket
from schemas.columns import TableSpec
from schemas.outcomes import Outcome
from vidpipe.bucketing import Assigner, Fit, Misfit
from vidpipe.encode import encode_clips, identity, latents_spec, table_metadata
from vidpipe.encode_config import EncodeConfig
from vidpipe.stages.base import Context, Result, Row, Stage, Unit, shared_out, with_provenance
from vidpipe.stages.view import View, clips_sql
from vidpipe.store.reconcile import KeptRows
from vidpipe.vaes.base import Vae, make_vae

NO_BUCKET = ""
"""Item of the outcome of a clip that no bucket takes."""
MOST_CLIPS = 4096
"""Clips a unit at most, however small the latents: a lost unit is not too much to do again."""


_LOADING = threading.Lock()


@functools.lru_cache(maxsize=2)
def _vae(name: str, source: str, device: str, params: str) -> Vae:
    return make_vae(name, source=source, device=device, params=json.loads(params))


def load_vae(config: EncodeConfig, device: str) -> Vae:
    """The recipe's VAE, made once a process."""
    with _LOADING:
        return _vae(config.vae, config.source, device, ids.canonical_json(config.params).decode())


@dataclass(frozen=True, kw_only=True)
class Encode(Stage):
    """Assigns clips to buckets and encodes them; item = the bucket."""

    name = "encode"
    version = 1
    computes_from = ("analyze",)
    barrier = True
    gpu = 0.5
    single_item = False
    lazy_tables = True
    config: EncodeConfig
    unit_mb: float = 256.0
    upstream: tuple[str, ...] = ("analyze", "near_duplicates", "split")

    @property
    def where(self) -> str:  # type: ignore[override]
        """Selection expression."""
        return self.config.where

    @functools.cached_property
    def vae(self) -> Vae:
        """For its space and identity; weights are loaded in workers only."""
        return load_vae(self.config, "cpu")

    @functools.cached_property
    def _groups(self) -> list[list[Bucket]]:
        return self.config.bucket_groups(self.vae)

    @functools.cached_property
    def _assigner(self) -> Assigner:
        return Assigner(self._groups, self.config.rate, self.config.limits)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("vae", "_groups", "_assigner")}

    def params(self) -> Mapping[str, Any]:
        return identity(self.config, self.vae)

    def table_name(self, bucket: object) -> str:
        """`latents/<space>/<bucket>`."""
        return layout.latents_name(self.vae.space.name, bucket)

    def tables(self) -> dict[str, tuple[TableSpec, dict[bytes, bytes]]]:
        spec = latents_spec(self.config)
        buckets = [b for group in self._groups for b in group]
        return {self.table_name(b): (spec, table_metadata(self.vae, b, self.config)) for b in buckets}

    def tables_of(self, unit: Unit) -> Sequence[str]:
        return [self.table_name(unit.group)]

    def kept_rows(self) -> dict[str, KeptRows]:
        return {self.table_name(b): KeptRows(id_column="clip_id", item=str(b)) for group in self._groups for b in group}

    def candidates(self, view: View) -> str | None:
        if not view.clip_columns:
            return None
        return clips_sql("len(c.uris) > 0")

    def _answers(self, row: Row) -> list[Fit | Misfit]:
        return self._assigner(row)

    def items(self, row: Row) -> Sequence[str]:
        fits = [str(a.bucket) for a in self._answers(row) if isinstance(a, Fit)]
        return list(dict.fromkeys(fits)) or [NO_BUCKET]

    def item_bytes(self, item: str) -> int:
        if item == NO_BUCKET:
            return 0
        return math.prod(Bucket.parse(item).latent_shape(self.vae.space)) * self.vae.space.element_bytes

    def units(self, rows: Iterable[Row], view: View, final: bool) -> Iterator[Unit | Result]:
        fingerprint = view.accepted[self.name][0]
        waiting: dict[str, list[Row]] = {}
        turned_away = Result()
        rows, unit_bytes = shared_out(rows, self.unit_mb * 1e6, self._weigh, view.slots)
        for row in rows:
            for item in row["wanted_items"]:
                if item == NO_BUCKET:
                    self._turn_away(row, turned_away)
                    continue
                bucket = waiting.setdefault(item, [])
                bucket.append({**row, "wanted_items": (item,)})
                if len(bucket) >= min(MOST_CLIPS, unit_bytes / self.item_bytes(item)):
                    yield self.make_unit(fingerprint, waiting.pop(item), item)
        if turned_away.outcomes:
            yield turned_away
        for item, left in sorted(waiting.items()):
            yield self.make_unit(fingerprint, left, item)

    def _weigh(self, row: Row) -> int:
        return sum(map(self.item_bytes, row["wanted_items"]))

    def _turn_away(self, row: Row, result: Result) -> None:
        misfit = next(a for a in self._answers(row) if isinstance(a, Misfit))
        result.outcomes.append(Outcome(id=row["id"], status="rejected", reason=misfit.reason, message=misfit.message))
        if row.get("stale"):
            result.replaces.append((row["id"], ""))

    def process(self, unit: Unit, context: Context) -> Result:
        from vidpipe.devices import resolve
        from vidpipe.sandbox import progress
        from vidpipe.store.write import write_fragments

        progress(None)
        vae = load_vae(self.config, resolve(context.device))
        name = layout.latents_name(vae.space.name, unit.group)
        table, outcomes = encode_clips(
            unit.rows,
            Bucket.parse(unit.group),
            vae,
            self.config,
            fingerprint=context.fingerprint,
            decoder=context.decoder,
            progress=progress,
        )
        result = Result(outcomes=outcomes)
        if table.num_rows:
            table = with_provenance(table, context.fingerprint, context.unit_id)
            result.fragments[name] = write_fragments(context.root, name, table)
        return result
