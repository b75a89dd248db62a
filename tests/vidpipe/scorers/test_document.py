"""docs/scores.md says what the scorers declare."""

from __future__ import annotations

from pathlib import Path

from vidpipe.registry import SCORERS, load_scorer
from vidpipe.scorers.document import page


def test_page_is_up_to_date():
    path = Path(__file__).resolve().parents[3] / "docs" / "scores.md"
    message = "run: python -m vidpipe.scorers.document > docs/scores.md"
    assert path.read_text() == page(), message


def test_every_column_states_its_range_and_null():
    for name in SCORERS:
        for column in load_scorer(name).columns:
            assert column.meaning and f"| `{column.name}` |" in page()
            if column.unit == "fraction":
                assert "in [0, 1]" in column.meaning
