"""Captions that a clip table gave, from the column `given_caption`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vidpipe.captioners.base import Answer, Caption, Captioner, CaptionRequest


@dataclass(frozen=True, kw_only=True)
class ClipTableConfig:
    """Parameters.

    Attributes:
        language: BCP 47 tag of the table's captions; empty if unknown.
    """

    language: str = ""


class ClipTable(Captioner):
    """Copies what the clip table said."""

    Config = ClipTableConfig
    source = "clip_table"

    def __init__(self, config: ClipTableConfig | None = None) -> None:
        self.config = config or ClipTableConfig()

    def caption(self, requests: Sequence[CaptionRequest]) -> list[Answer]:
        language = self.config.language or None
        texts = [request.row.get("given_caption") or "" for request in requests]
        return [[Caption(text=text.strip(), language=language)] if text.strip() else [] for text in texts]
