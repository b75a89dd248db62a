"""The loss curve of a run as a picture: plain SVG, since a drawing library is not worth its import here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SERIES = {
    "loss": ("training", "#7a8ca3"),
    "heldout/loss": ("held-out", "#c2410c"),
    "heldout/linear": ("linear predictor", "#15803d"),
}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 800, 400, 50, 20, 20, 30


def write_curve(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw loss over steps from the rows of a metrics.jsonl: training, held-out, and the linear predictor's."""
    series = {key: [(r["step"], r[key]) for r in rows if math.isfinite(r.get(key, math.nan))] for key in SERIES}
    points = [point for line in series.values() for point in line]
    if not points:
        return
    last, most = max(1, *(step for step, _ in points)), 1.05 * max(value for _, value in points)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *_axes(last, most),
    ]
    for number, (key, line) in enumerate(series.items()):
        if line:
            parts += _line(line, *SERIES[key], number, last, most)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


def _place(step: float, value: float, last: float, most: float) -> tuple[float, float]:
    return LEFT + (WIDTH - LEFT - RIGHT) * step / last, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most


def _axes(last: float, most: float) -> list[str]:
    parts = []
    for i in range(6):
        x, y = _place(last * i / 5, most * i / 5, last, most)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="8" y="{y + 4:.1f}">{most * i / 5:.2f}</text>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{last * i / 5:g}</text>')
    return parts


def _line(
    line: Sequence[tuple[float, float]], label: str, colour: str, number: int, last: float, most: float
) -> list[str]:
    text = " ".join("{:.1f},{:.1f}".format(*_place(step, value, last, most)) for step, value in line)
    return [
        f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
        f'<text x="{WIDTH - 220}" y="{TOP + 14 + 16 * number}" fill="{colour}">{label}: {line[-1][1]:.4f}</text>',
    ]
