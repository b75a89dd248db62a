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

CHECKS = ("too_short", "too_small", "too_much_cropped", "too_long")
"""Reasons in the order of the checks: the later one fails, the nearer a bucket came."""

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
    return best_fit(row, [bucket], fps, limits)


@dataclass(slots=True)
class _Measure:
    """A bucket against a clip; `reason` is empty where it fits."""

    bucket: Bucket
    crop: tuple[int, int, int, int]
    cropped: float
    upscale: float
    reason: str
    kept: float


def _measure(available: int, moves: bool, box: Sequence[int], bucket: Bucket, limits: Limits) -> _Measure:
    crop = centre_crop(box, bucket.height, bucket.width)
    cropped = 1 - (crop[2] * crop[3]) / (box[2] * box[3])
    scale = max(bucket.height / crop[3], bucket.width / crop[2])
    if available < bucket.num_frames or (bucket.num_frames == 1 and moves and not limits.stills_from_video):
        reason = "too_short"
    elif scale > limits.max_upscale + 1e-9:
        reason = "too_small"
    elif cropped > limits.max_cropped + 1e-9:
        reason = "too_much_cropped"
    elif available - bucket.num_frames > limits.max_dropped * available + 1e-9:
        reason = "too_long"
    else:
        reason = ""
    kept = (1 - cropped) * bucket.num_frames / max(1, available) * min(scale, 1 / scale**2)
    return _Measure(bucket, crop, cropped, scale, reason, round(kept, 9))


def best_fit(row: Mapping[str, Any], buckets: Iterable[Bucket], fps: Fraction | None, limits: Limits) -> Fit | Misfit:
    """The bucket that keeps most; else the reason of the bucket that came nearest."""
    return Assigner([list(buckets)], fps, limits)(row)[0]


class Assigner:
    """Assigns clips to buckets, one answer a resolution group: one group (all buckets) for one bucket a clip.

    Clips of one size and length share their answer, so a million of them cost little more than a look-up each.
    """

    def __init__(self, groups: Sequence[Sequence[Bucket]], fps: Fraction | None, limits: Limits) -> None:
        self.groups, self.fps, self.limits = groups, fps, limits
        self._known: dict[tuple[int, bool, int, int], list[_Measure]] = {}

    def __call__(self, row: Mapping[str, Any]) -> list[Fit | Misfit]:
        available = num_frames_at(row, self.fps)
        box = picture_box(row, self.limits.letterbox)
        key = (available, row["num_frames"] > 1, box[2], box[3])
        if key not in self._known:
            if len(self._known) > 1 << 16:
                self._known.clear()
            self._known[key] = [_best(*key, group, self.limits) for group in self.groups]
        return [self._answer(row, m, available, box) for m in self._known[key]]

    def _answer(self, row: Mapping[str, Any], best: _Measure, available: int, box: Sequence[int]) -> Fit | Misfit:
        if best.reason:
            return _misfit(row, best, available, box, self.fps, self.limits)
        x, y, width, height = best.crop
        return Fit(
            bucket=best.bucket,
            crop_xywh=(box[0] + x, box[1] + y, width, height),
            scale=best.bucket.height / height,
            cropped_fraction=best.cropped,
            num_frames=available,
            frames_dropped=available - best.bucket.num_frames,
            kept=best.kept,
        )


def _best(available: int, moves: bool, width: int, height: int, buckets: Iterable[Bucket], limits: Limits) -> _Measure:
    """Of those that fit the one that keeps most; else the one that came nearest."""
    measures = [_measure(available, moves, (0, 0, width, height), b, limits) for b in buckets]
    fits = [m for m in measures if not m.reason]
    return max(fits, key=lambda m: m.kept) if fits else max(measures, key=lambda m: CHECKS.index(m.reason))


def _misfit(
    row: Mapping[str, Any],
    found: _Measure,
    available: int,
    box: Sequence[int],
    fps: Fraction | None,
    limits: Limits,
) -> Misfit:
    bucket, frames = found.bucket, found.bucket.num_frames
    rate = "its own rate" if fps is None else f"{float(fps):g} fps"
    size = f"{found.crop[2]}x{found.crop[3]}"
    details = {
        "too_short": f"needs {frames} frames at {rate}, not {available}",
        "too_small": f"would scale {size} up {found.upscale:.3g} times, over the limit of {limits.max_upscale:g}",
        "too_much_cropped": f"would cut off {found.cropped:.0%} of {box[2]}x{box[3]}",
        "too_long": f"would drop {available - frames} of its {available} frames",
    }
    detail = details[found.reason]
    if found.reason == "too_short" and available >= frames:
        detail = "is for images, and the clip moves"
    return Misfit(reason=found.reason, message=f"{describe(row)}: bucket {bucket} {detail}")


def describe(row: Mapping[str, Any]) -> str:
    """`clip 9f2c01ab (cats.mp4, 12.4-13.5 s)`."""
    uris = row.get("uris") or ([row["uri"]] if row.get("uri") else [])
    name = f"{uris[0].rsplit('/', 1)[-1]}, " if uris else ""
    return f"clip {row['clip_id'].hex()[:8]} ({name}{row['start_seconds']:.1f}-{row['end_seconds']:.1f} s)"


def resolution_groups(buckets: Iterable[Bucket]) -> list[list[Bucket]]:
    """Buckets by resolution: sorted by area, a new group starts beyond AREA_STEP times the area that began the last."""
    groups: list[list[Bucket]] = []
    for bucket in sorted(buckets, key=lambda b: (b.height * b.width, b)):
        if groups and bucket.height * bucket.width <= AREA_STEP * groups[-1][0].height * groups[-1][0].width:
            groups[-1].append(bucket)
        else:
            groups.append([bucket])
    return [sorted(g) for g in groups]
