"""Contact sheets for notebooks: clips as pictures, chosen by an expression."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from schemas import expressions
from schemas.errors import UserError
from vidpipe.report import pictures
from vidpipe.report.snapshot import Snapshot


class Sheet:
    """Figures that a notebook draws by itself."""

    def __init__(self, figures: Sequence[str]) -> None:
        self.figures = tuple(figures)

    def __len__(self) -> int:
        return len(self.figures)

    def __repr__(self) -> str:
        return f"Sheet of {len(self)} clips"

    def _repr_html_(self) -> str:
        style = "display:flex; flex-wrap:wrap; gap:12px; font:12px system-ui"
        return f'<div style="{style}">{"".join(self.figures)}</div>' if self.figures else "no clips"


def contact_sheet(
    snapshot: Snapshot,
    where: str = "true",
    *,
    columns: Sequence[str] = (),
    order_by: str = "md5(hex(clip_id))",
    limit: int = 8,
) -> Sheet:
    """Clips that pass an expression over the `clip` view, each as a strip of three frames.

    Args:
        columns: shown below each picture with their values.
        order_by: SQL; by a hash unless given, so that the same clips come each time.
    Raises:
        UserError: the expression is no condition, or names an unknown column.
    """
    for expression in (where, *columns):
        expressions.check(snapshot.con, expression, snapshot.clip_columns)
    clips = snapshot.rows(
        f"SELECT * FROM clip WHERE coalesce(({where}\n), false) ORDER BY {order_by} LIMIT {int(limit)}"
    )
    return Sheet([figure(clip, columns) for clip in clips])


def figure(clip: dict[str, Any], columns: Sequence[str]) -> str:
    """HTML of one clip; its error in place of the picture where the source cannot be shown."""
    try:
        picture = f'<img src="{pictures.strip(clip)}">'
    except (UserError, OSError) as error:
        picture = f'<div style="width:250px; height:84px; background:#ddd">{html.escape(str(error))}</div>'
    values = ", ".join(f"{name} {_shown(clip[name])}" for name in columns)
    name = clip["uris"][0].rpartition("/")[2]
    text = f"{name} {clip['start_seconds']:.2f}-{clip['end_seconds']:.2f} s"
    caption = f"{html.escape(text)}<br>{html.escape(values)}"
    return f'<figure style="margin:0">{picture}<figcaption>{caption}</figcaption></figure>'


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
