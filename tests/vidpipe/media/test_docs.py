"""The page on decoding names every reason, with the meaning that the code gives it."""

from __future__ import annotations

from pathlib import Path

from vidpipe.media.errors import REASONS
from vidpipe.registry import DECODERS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "decoding.md"


def test_reasons_and_back_ends_are_all_told():
    text = PAGE.read_text()
    for reason, meaning in REASONS.items():
        assert f"| `{reason}` | {meaning} |" in text
    for name in DECODERS:
        assert f"| `{name}` |" in text
