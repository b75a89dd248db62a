"""Histograms of the clips' columns: counts by DuckDB, drawn as inline SVG."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vidpipe.report.snapshot import Snapshot

NUM_BINS = 36
_WIDTH, _HEIGHT, _BASE = 260, 92, 14
_COMPARISON = re.compile(
    r"\s*(?:coalesce\(\s*(\w+)\s*,[^()]*\)|(\w+))\s*(?:<=|>=|<|>|=)\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts of a column over the clips.

    Attributes:
        low, high: the bins' outer edges; values outside are counted in the outermost bins.
        kept, others: clips a bin that were kept to the end, and those that were not.
    """

    column: str
    low: float
    high: float
    kept: tuple[int, ...]
    others: tuple[int, ...]
    nulls: int = 0


def histogram(snapshot: Snapshot, column: str, kept_sql: str) -> Histogram | None:
    """Count a numeric column of the `clip` view; None if it has no values.

    The edges leave out the extreme 0.2% at either end, so that one odd clip does not flatten the picture.
    """
    finite = f'(SELECT clip_id, CAST("{column}" AS DOUBLE) AS x FROM clip)'
    row = snapshot.rows(
        f"""SELECT quantile_disc(x, 0.002) AS low, quantile_disc(x, 0.998) AS high FROM {finite} WHERE isfinite(x)"""
    )[0]
    if row["low"] is None:
        return None
    low, high = row["low"], row["high"]
    width = (high - low) / NUM_BINS or 1.0  # all values alike: everything is in the first bin
    counts = snapshot.rows(
        f"""SELECT CAST(least(greatest(floor((x - {low!r}) / {width!r}), 0), {NUM_BINS - 1}) AS INTEGER) AS bin,
            clip_id IN ({kept_sql}) AS kept, count(*) AS rows FROM {finite} WHERE isfinite(x) GROUP BY ALL"""
    )
    kept, others = [0] * NUM_BINS, [0] * NUM_BINS
    for found in counts:
        (kept if found["kept"] else others)[found["bin"]] = found["rows"]
    nulls = snapshot.value(f"SELECT count(*) FROM {finite} WHERE x IS NULL OR NOT isfinite(x)")
    return Histogram(column=column, low=low, high=high, kept=tuple(kept), others=tuple(others), nulls=nulls)


def thresholds(rules: Sequence[str]) -> dict[str, list[float]]:
    """Numbers that simple rules compare columns with: `motion > 0.02` gives {"motion": [0.02]}."""
    found: dict[str, list[float]] = {}
    for rule in rules:
        match = _COMPARISON.fullmatch(rule)
        if match:
            found.setdefault(match[1] or match[2], []).append(float(match[3]))
    return found


def number(value: float) -> str:
    """A number in at most four significant digits."""
    return f"{value:.4g}"


def draw(chart: Histogram, marks: Sequence[float] = ()) -> str:
    """SVG of a histogram, kept clips in colour below, the others above; `marks` are dashed lines."""
    top = max(map(sum, zip(chart.kept, chart.others))) or 1
    slot = _WIDTH / NUM_BINS
    scale = (_HEIGHT - _BASE - 6) / top
    floor = _HEIGHT - _BASE
    parts = []
    for i, (kept, others) in enumerate(zip(chart.kept, chart.others)):
        for count, below, name in ((kept, 0, "kept"), (others, kept, "rejected")):
            if count:
                height = max(1.0, count * scale)
                y = floor - below * scale - height
                parts.append(
                    f'<rect class="{name}" x="{i * slot + 0.5:.1f}" y="{y:.1f}" width="{slot - 1:.1f}" '
                    f'height="{height:.1f}"><title>{count:,} {"kept" if name == "kept" else "not kept"}</title></rect>'
                )
    parts.append(f'<line x1="0" x2="{_WIDTH}" y1="{floor}" y2="{floor}"/>')
    for mark in marks:
        if chart.low <= mark <= chart.high and chart.low < chart.high:
            x = (mark - chart.low) / (chart.high - chart.low) * _WIDTH
            parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="{floor}"/>')
    parts.append(f'<text x="0" y="{_HEIGHT - 2}">{number(chart.low)}</text>')
    if chart.low < chart.high:
        parts.append(f'<text x="{_WIDTH}" y="{_HEIGHT - 2}" text-anchor="end">{number(chart.high)}</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'
