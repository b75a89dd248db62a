"""Plan buckets: a proposed set for a dataset, and what each bucket would hold and lose, before any GPU is used.

The proposal starts from all aspects of `BucketSet` at the given areas and frame counts, and the areas' own heights and
widths both ways round. Then, from the least used up, a bucket under 1% of the clips is left out as long as its clips
find a place in another bucket and the mean kept share falls by no more than `TOLERANCE`. What remains under 1% is
reported with a warning: such a bucket holds up no step of the trainer (packs mix buckets), but makes small tables and
more graphs to compile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from schemas.buckets import Bucket, BucketSet
from schemas.errors import UserError
from schemas.latent_spaces import LatentSpace
from vidpipe.bucketing import Assigner, Fit, Limits
from vidpipe.encode_config import parse_fps
from vidpipe.store.dataset import Dataset

RARE = 0.01
NUM_ASPECTS = 13
TOLERANCE = 0.005
MAX_CLIPS = 100_000
"""Clips that are looked at; a larger dataset is sampled by clip_id, which is a hash."""


@dataclass(frozen=True, kw_only=True)
class BucketUse:
    """What one bucket would hold.

    Attributes:
        clips, share: number, and fraction of all clips that fit somewhere.
        fill: frames used over frames there at the sampling rate.
        cropped, scale: means over its clips.
        kept: mean of `vidpipe.bucketing`'s kept share.
        tokens: of one latent, at patch 1x2x2.
        latent_bytes: of all its latents, scaled up from the sample.
        warning: empty, or what is wrong with it.
    """

    bucket: Bucket
    clips: int
    share: float
    fill: float
    cropped: float
    scale: float
    kept: float
    tokens: int
    latent_bytes: int
    warning: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A proposal for `encode.buckets`.

    Attributes:
        uses: by bucket, sorted.
        left_out: buckets of the full set that the proposal drops.
        misfits: clips that no bucket takes, by reason.
        num_clips: clips that were looked at, of `num_selected`.
    """

    uses: tuple[BucketUse, ...]
    left_out: tuple[Bucket, ...]
    misfits: Mapping[str, int]
    num_clips: int
    num_selected: int


def plan_buckets(
    root: str,
    *,
    areas: Sequence[str | int] = ("480x832",),
    frames: Sequence[int] = (17, 33, 49, 81),
    fps: str = "16",
    where: str = "true",
    space: LatentSpace | None = None,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
) -> Plan:
    """Propose buckets for a dataset's clips.

    Args:
        areas: pixel budgets, each `HxW` or a number.
        where: only clips that pass this expression.
        space: Wan 2.1's geometry by default.
    Raises:
        UserError: no dataset, no clips, a bad area or expression.
    """
    rows, selected = clips_of(Dataset(root).open(), where)
    space = space or GEOMETRY
    return propose(rows, candidates(areas, frames, space), parse_fps(fps), limits, space, selected)


def candidates(areas: Sequence[str | int], frames: Sequence[int], space: LatentSpace) -> list[Bucket]:
    """The full set that a proposal starts from, sorted."""
    found = set(
        BucketSet(areas=tuple(map(area_of, areas)), frames=tuple(frames), num_aspects=NUM_ASPECTS).buckets(space)
    )
    for text in (str(a).lower() for a in areas if "x" in str(a).lower()):
        height, width = map(int, text.split("x"))
        for count in frames:
            found |= {Bucket(count, *size).check(space) for size in ((height, width), (width, height))}
    return sorted(found)


GEOMETRY = LatentSpace(
    name="wan2.1", vae="wan2.1", revision="", channels=16, stride_t=4, stride_h=8, stride_w=8,
    mean=(0.0,) * 16, std=(1.0,) * 16,
)  # fmt: skip
"""Sizes of Wan 2.1 and of `dct`, for counting."""


def area_of(text: str | int) -> int:
    """Pixels of `480x832`, or of a number."""
    parts = str(text).lower().split("x")
    if len(parts) > 2 or not all(p.isdigit() and int(p) > 0 for p in parts):
        raise UserError(f"area {text!r}: expected HEIGHTxWIDTH such as 480x832, or a number of pixels")
    return int(parts[0]) * int(parts[-1]) if len(parts) == 2 else int(parts[0])


def clips_of(dataset: Dataset, where: str) -> tuple[list[dict[str, Any]], int]:
    """Clips that pass an expression (at most MAX_CLIPS, by id), and how many pass."""
    from schemas import expressions
    from vidpipe.store.query import plain_columns

    if not dataset.has("clips"):
        raise UserError(f"dataset {dataset.root}: no clips yet; run analyze first")
    names = [n for n in dataset.names() if n in ("clips", "videos") or n.startswith(("scores/", "tables/"))]
    con = dataset.connect()
    sql, columns = expressions.clip_view({n: plain_columns(dataset.table(n)) for n in names}, '"{}"')
    expressions.check(con, where, columns)
    con.execute(
        f"CREATE TEMP TABLE chosen AS SELECT * FROM ({sql}) WHERE ({where}\n) "
        "QUALIFY row_number() OVER (PARTITION BY clip_id ORDER BY fingerprint) = 1"
    )
    selected = con.execute("SELECT count(*) FROM chosen").fetchall()[0][0]
    if not selected:
        raise UserError(f"dataset {dataset.root}: no clip passes {where!r}")
    table: Any = con.sql(f"SELECT * FROM chosen ORDER BY clip_id LIMIT {MAX_CLIPS}").to_arrow_table()
    return table.to_pylist(), selected


def propose(
    rows: Sequence[Mapping[str, Any]],
    full_set: Sequence[Bucket],
    fps: Fraction | None,
    limits: Limits,
    space: LatentSpace,
    selected: int | None = None,
) -> Plan:
    """The proposal; see the module's docstring."""
    buckets = list(full_set)
    fits, misfits = _assign(rows, buckets, fps, limits)
    least = _mean_kept(fits) - TOLERANCE
    while len(buckets) > 1:
        rare = _rarest(fits, buckets, len(rows))
        if rare is None:
            break
        fewer = [b for b in buckets if b != rare]
        found, lost = _assign(rows, fewer, fps, limits)
        if len(found) < len(fits) or _mean_kept(found) < least:
            break
        buckets, fits, misfits = fewer, found, lost
    total = selected if selected is not None else len(rows)
    factor = total / max(1, len(rows))
    return Plan(
        uses=tuple(_use(b, [f for f in fits if f.bucket == b], len(fits), factor, space) for b in sorted(buckets)),
        left_out=tuple(sorted(set(full_set) - set(buckets))),
        misfits=dict(sorted(misfits.items())),
        num_clips=len(rows),
        num_selected=total,
    )


def _assign(
    rows: Iterable[Mapping[str, Any]], buckets: list[Bucket], fps: Fraction | None, limits: Limits
) -> tuple[list[Fit], Counter[str]]:
    assigner = Assigner([buckets], fps, limits)
    answers = [assigner(row)[0] for row in rows]
    fits = [a for a in answers if isinstance(a, Fit)]
    return fits, Counter(a.reason for a in answers if not isinstance(a, Fit))


def _mean_kept(fits: Sequence[Fit]) -> float:
    return sum(f.kept for f in fits) / max(1, len(fits))


def _rarest(fits: Iterable[Fit], buckets: Iterable[Bucket], clips: int) -> Bucket | None:
    """The least used bucket, if it has under RARE of the clips."""
    counts = Counter(dict.fromkeys(buckets, 0))
    counts.update(f.bucket for f in fits)
    bucket, count = min(counts.items(), key=lambda item: (item[1], item[0]))
    return bucket if count < RARE * clips else None


def _use(bucket: Bucket, fits: Sequence[Fit], placed: int, factor: float, space: LatentSpace) -> BucketUse:
    count = len(fits)
    share = count / max(1, placed)
    C, T, H, W = bucket.latent_shape(space)
    return BucketUse(
        bucket=bucket,
        clips=count,
        share=share,
        fill=sum(bucket.num_frames / f.num_frames for f in fits) / max(1, count),
        cropped=sum(f.cropped_fraction for f in fits) / max(1, count),
        scale=sum(f.scale for f in fits) / max(1, count),
        kept=_mean_kept(fits),
        tokens=bucket.num_tokens(space),
        latent_bytes=round(count * factor * C * T * H * W * space.element_bytes),
        warning="under 1% of the clips" if share < RARE else "",
    )


def print_plan(plan: Plan) -> None:
    """Print a proposal as a table, with warnings and the line for a recipe."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{plan.num_clips:,} clips" + (f" of {plan.num_selected:,}" if plan.num_clips < plan.num_selected else "")
    )
    for name in ("bucket", "clips", "share", "frames used", "cropped", "scale", "kept", "tokens", "latents", ""):
        table.add_column(name, justify="left" if name in ("bucket", "") else "right")
    for u in plan.uses:
        numbers = (
            f"{u.clips:,}",
            f"{u.share:.1%}",
            f"{u.fill:.0%}",
            f"{u.cropped:.1%}",
            f"{u.scale:.2f}",
            f"{u.kept:.2f}",
        )
        table.add_row(str(u.bucket), *numbers, f"{u.tokens:,}", f"{u.latent_bytes / 1e9:.2f} GB", u.warning)
    console = Console()
    console.print(table)
    for reason, count in plan.misfits.items():
        console.print(f"{count:,} clips fit no bucket: {reason}")
    if plan.left_out:
        console.print(f"left out, under 1% each: {', '.join(map(str, plan.left_out))}")
    names = ", ".join(f'"{u.bucket}"' for u in plan.uses if u.clips)
    console.print(f"buckets = [{names}]", markup=False)
