"""Write docs/scores.md from what the scorers declare: `python -m vidpipe.scorers.document > docs/scores.md`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator

from vidpipe.registry import SCORERS, load_scorer

HEAD = """# Scores

Written by `python -m vidpipe.scorers.document > docs/scores.md` from the scorers' own columns; do not edit.

Scores are facts about clips; what is kept is an expression over them, such as
`motion_score > 0.02 and blur_score > 0.3 and luminance_clipped_low < 0.5`. Null is false.

All are measured on the frame as displayed (rotation, pixel aspect and the user's crop applied), scaled to a short side
of 256 px (`analyze.short_side`), at the frames that a scorer samples: the first at or after each multiple of
1 / `samples_per_second`, counted from the video's first frame. "The picture" is the frame less the black bars that were
last seen up to that frame. A value is computed from samples inside the clip alone, and a pair of samples that reaches
over a cut counts for neither side; the one exception is the crop box of a clip too dark to tell, which is the video's.
"""


def page() -> str:
    """The page as Markdown."""
    return "\n".join([HEAD, *(line for name in sorted(SCORERS) for line in _section(name))]).rstrip() + "\n"


def _section(name: str) -> Iterator[str]:
    scorer = load_scorer(name)
    yield f"## {name} (version {scorer.version})"
    yield ""
    yield inspect.cleandoc(scorer.__doc__ or "")
    yield ""
    yield "| column | type | unit | meaning |"
    yield "|-|-|-|-|"
    for column in scorer.columns:
        yield f"| `{column.name}` | {column.type} | {column.unit} | {column.meaning} |"
    yield ""
    values = ", ".join(f"`{f.name} = {f.default}`" for f in dataclasses.fields(scorer.Config))
    yield f"Parameters (`[analyze.scorer_params.{name}]`): {values}"
    yield ""


if __name__ == "__main__":
    print(page(), end="")
