"""caption: selected clips to captioners; every captioner sees every selected clip, each under its own source."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas import config as configs
from schemas import ids, tables
from schemas.columns import TableSpec
from schemas.errors import UserError
from schemas.outcomes import Outcome
from vidpipe.sections import CaptionConfig, CaptionerConfig
from vidpipe.stages.base import Context, Result, Row, Stage, Unit, batched_by, table_from
from vidpipe.stages.view import View, clips_sql
from vidpipe.store.reconcile import KeptRows


@functools.lru_cache(maxsize=8)
def _captioner(name: str, params: str) -> Any:
    import json

    from vidpipe.captioners.base import make_captioner

    return make_captioner(name, json.loads(params))


def load_captioner(config: CaptionerConfig) -> Any:
    """The captioner of a recipe, made once a process."""
    return _captioner(config.name, ids.canonical_json(config.params).decode())


@dataclass(frozen=True, kw_only=True)
class Caption(Stage):
    """Asks each captioner of the recipe for each selected clip; item = the captioner's source."""

    name = "caption"
    version = 1
    computes_from = ("analyze",)
    barrier = True
    single_item = False
    config: CaptionConfig
    sources: tuple[str, ...]
    upstream: tuple[str, ...] = ("analyze", "near_duplicates", "split")

    def __post_init__(self) -> None:
        twice = [s for i, s in enumerate(self.sources) if s in self.sources[:i]]
        if twice:
            raise UserError(
                f"caption.captioners: two are filed under {twice[0]!r}; a source is asked once, by one of them"
            )

    @property
    def where(self) -> str:  # type: ignore[override]
        """Selection expression."""
        return self.config.where

    def params(self) -> Mapping[str, Any]:
        return {"captioners": configs.to_mapping(self.config)["captioners"]}

    def tables(self) -> dict[str, tuple[TableSpec, dict[bytes, bytes]]]:
        return {"captions": (tables.CAPTIONS, {})}

    def kept_rows(self) -> dict[str, KeptRows]:
        return {"captions": KeptRows(id_column="clip_id", item_column="source")}

    def candidates(self, view: View) -> str | None:
        if not view.clip_columns:
            return None
        return clips_sql()

    def items(self, row: Row) -> Sequence[str]:
        return self.sources

    def units(self, rows: Iterable[Row], view: View, final: bool) -> Iterator[Unit | Result]:
        fingerprint = view.accepted[self.name][0]
        for batch in batched_by(rows, self.config.clips_per_unit, slots=view.slots):
            yield self.make_unit(fingerprint, batch)

    def process(self, unit: Unit, context: Context) -> Result:
        result = Result()
        captions: list[Row] = []
        for source, captioner in zip(self.sources, map(load_captioner, self.config.captioners)):
            rows = [r for r in unit.rows if source in r["wanted_items"]]
            if rows:
                self._ask(captioner, source, rows, context, captions, result)
        if captions:
            result.rows["captions"] = table_from(tables.CAPTIONS, captions)
        return result

    @staticmethod
    def _ask(
        captioner: Any, source: str, rows: list[Row], context: Context, captions: list[Row], result: Result
    ) -> None:
        from vidpipe.captioners.base import request_for
        from vidpipe.media.errors import MediaError

        start = time.perf_counter()
        answers = captioner.caption([request_for(row, decoder=context.decoder) for row in rows])
        seconds = (time.perf_counter() - start) / len(rows)
        for row, answer in zip(rows, answers):
            common: dict[str, Any] = {"id": row["id"], "item": source, "seconds": seconds}
            if isinstance(answer, MediaError):
                result.outcomes.append(Outcome(**common, status="failed", reason=answer.reason, message=str(answer)))
            elif not answer:
                message = f"no caption from {source}"
                result.outcomes.append(Outcome(**common, status="rejected", reason="no_caption", message=message))
            else:
                result.outcomes.append(Outcome(**common, status="kept"))
                for caption in {c.text: c for c in answer}.values():
                    captions.append(_row(row["id"], source, caption))


def _row(clip: bytes, source: str, caption: Any) -> Row:
    return {
        "caption_id": ids.caption_id(clip, source, caption.text),
        "clip_id": clip,
        "text_id": ids.text_id(caption.text),
        "source": source,
        "text": caption.text,
        "language": caption.language,
        "prompt_tokens": caption.prompt_tokens,
        "completion_tokens": caption.completion_tokens,
    }
