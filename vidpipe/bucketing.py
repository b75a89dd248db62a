"""Which bucket a clip goes to: the one that wastes least, each kind of waste reported.

A clip is cropped about its centre (inside its letterbox box and the user's crop) to the bucket's aspect, scaled, and
loses trailing frames; it is never lengthened and never scaled up beyond a limit. What a bucket keeps of a clip is

    kept = (1 - cropped_fraction) * (1 - dropped_fraction) * min(s, 1 / s**2)

with s the linear scale. Scaling up costs the share of the VAE's work that goes to interpolated pixels. Scaling down
costs less than an equal loss of area by cropping: with its square, a wide clip would keep as much in a tall bucket (a
third of the picture, large) as in a wide one (all of it, small). The bucket of greatest `kept` wins; of equals the
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from schemas.buckets import Bucket
from vidpipe.media.sampling import num_sampled

AREA_STEP = 1.5
"""Buckets whose areas are within this factor of the smallest of their group count as one resolution."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a clip may lose or gain on its way into a bucket.

    Attributes:
        max_upscale: greatest linear scale, bucket over crop.
        max_cropped: greatest share of the picture's area that may be cut off, in [0, 1].
        max_dropped: greatest share of the clip's frames that may be dropped, in [0, 1].
        letterbox: crop to the letterbox columns first.
        stills_from_video: a moving clip may go to a bucket of one frame.
    """

    max_upscale: float = 1.0
    max_cropped: float = 1.0
    max_dropped: float = 1.0
    letterbox: bool = True
    stills_from_video: bool = False


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a clip fits a bucket.

    Attributes:
        crop_xywh: in displayed pixels of the video; scaled to the bucket.
        scale: bucket height over crop height.
        cropped_fraction: of the picture inside letterbox and user's crop.
        frames_dropped: trailing frames at the sampling rate.
        kept: see the module's docstring.
    """

    bucket: Bucket
    crop_xywh: tuple[int, int, int, int]
    scale: float
    cropped_fraction: float
    num_frames: int
    frames_dropped: int
    kept: float


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """Why no bucket takes a clip: a code (`too_short`, `too_small`, `too_much_cropped`, `too_long`) and a sentence."""

    reason: str
    message: str


def picture_box(row: Mapping[str, Any], letterbox: bool = True) -> tuple[int, int, int, int]:
    """x, y, width, height of a clip's picture in displayed pixels: user's crop, and letterbox box inside it."""
    x, y = (row.get("user_crop") or (0, 0))[:2]
    if not letterbox or row.get("crop_width") is None:
        return x, y, row["width"], row["height"]
    return x + row["crop_x"], y + row["crop_y"], row["crop_width"], row["crop_height"]


def centre_crop(box_xywh: Sequence[int], height: int, width: int) -> tuple[int, int, int, int]:
    """Largest box of the aspect width / height about the centre of `box_xywh`, in whole pixels, at least 1x1."""
    x, y, w, h = box_xywh
    crop_w = min(w, max(1, (2 * h * width + height) // (2 * height)))
    crop_h = min(h, max(1, (2 * w * height + width) // (2 * width)))
    return x + (w - crop_w) // 2, y + (h - crop_h) // 2, crop_w, crop_h


def num_frames_at(row: Mapping[str, Any], fps: Fraction | None) -> int:
    """Frames of a clip at a rate; an image has one at any rate."""
    if row["num_frames"] == 1 or fps is None:
        return row["num_frames"]
    time_base = Fraction(row["time_base_num"], row["time_base_den"])
    return num_sampled((row["end_pts"] - row["start_pts"]) * time_base, fps)


def fit(row: Mapping[str, Any], bucket: Bucket, fps: Fraction | None, limits: Limits) -> Fit | Misfit:
    """How one clip fits one bucket, or why it does not.

    Args:
        row: columns of `clips` with the letterbox scorer's where there are any.
    """
    available = num_frames_at(row, fps)
    box = picture_box(row, limits.letterbox)
    crop = centre_crop(box, bucket.height, bucket.width)
    scale = max(bucket.height / crop[3], bucket.width / crop[2])
    cropped = 1 - (crop[2] * crop[3]) / (box[2] * box[3])
    dropped = available - bucket.num_frames
    rate = "its own rate" if fps is None else f"{float(fps):g} fps"
    if dropped < 0:
        return _misfit("too_short", row, f"bucket {bucket} needs {bucket.num_frames} frames at {rate}, not {available}")
    if bucket.num_frames == 1 and row["num_frames"] > 1 and not limits.stills_from_video:
        return _misfit("too_short", row, f"bucket {bucket} is for images, and the clip moves")
    if scale > limits.max_upscale + 1e-9:
        found = f"would scale {crop[2]}x{crop[3]} up {scale:.3g} times, over the limit of {limits.max_upscale:g}"
        return _misfit("too_small", row, f"bucket {bucket} {found}")
    if cropped > limits.max_cropped + 1e-9:
        return _misfit("too_much_cropped", row, f"bucket {bucket} would cut off {cropped:.0%} of {box[2]}x{box[3]}")
    if dropped > limits.max_dropped * available + 1e-9:
        return _misfit("too_long", row, f"bucket {bucket} would drop {dropped} of its {available} frames")
    kept = (1 - cropped) * bucket.num_frames / available * min(scale, 1 / scale**2)
    return Fit(
        bucket=bucket,
        crop_xywh=crop,
        scale=bucket.height / crop[3],
        cropped_fraction=cropped,
        num_frames=available,
        frames_dropped=dropped,
        kept=kept,
    )


def _misfit(reason: str, row: Mapping[str, Any], detail: str) -> Misfit:
    return Misfit(reason=reason, message=f"{describe(row)}: {detail}")


def describe(row: Mapping[str, Any]) -> str:
    """`clip 9f2c01ab (cats.mp4, 12.4-13.5 s)`."""
    uris = row.get("uris") or ([row["uri"]] if row.get("uri") else [])
    name = f"{uris[0].rsplit('/', 1)[-1]}, " if uris else ""
    return f"clip {row['clip_id'].hex()[:8]} ({name}{row['start_seconds']:.1f}-{row['end_seconds']:.1f} s)"


def best_fit(row: Mapping[str, Any], buckets: Iterable[Bucket], fps: Fraction | None, limits: Limits) -> Fit | Misfit:
    """The bucket that keeps most; else the reason of the bucket that came nearest."""
    fits: list[Fit] = []
    misfits: list[Misfit] = []
    for bucket in buckets:
        answer = fit(row, bucket, fps, limits)
        (fits if isinstance(answer, Fit) else misfits).append(answer)  # type: ignore[arg-type]
    if fits:
        return max(fits, key=lambda f: round(f.kept, 9))
    late = ("too_short", "too_small", "too_much_cropped", "too_long")  # the later the check, the nearer it came
    return max(misfits, key=lambda m: late.index(m.reason))


def assign(
    row: Mapping[str, Any], groups: Sequence[Sequence[Bucket]], fps: Fraction | None, limits: Limits
) -> list[Fit | Misfit]:
    """One answer a resolution group (`resolution_groups`); one group for one bucket a clip."""
    return [best_fit(row, group, fps, limits) for group in groups]


def resolution_groups(buckets: Iterable[Bucket]) -> list[list[Bucket]]:
    """Buckets by resolution: sorted by area, a new group starts beyond AREA_STEP times the area that began the last."""
    groups: list[list[Bucket]] = []
    for bucket in sorted(buckets, key=lambda b: (b.height * b.width, b)):
        if groups and bucket.height * bucket.width <= AREA_STEP * groups[-1][0].height * groups[-1][0].width:
            groups[-1].append(bucket)
        else:
            groups.append([bucket])
    return [sorted(g) for g in groups]
