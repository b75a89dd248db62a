"""Sampling at a rate: which frame is shown at each output instant.

The rule. A frame is on screen from its pts until the next frame's pts; the last until the span ends. Output k shows
the frame on screen at start + k / fps, where start is the span's start. The number of outputs is the number of instants
k / fps in [0, duration): ceil(duration * fps), so that it follows from duration and rate alone, and bucket assignment
can count on it. An instant before the first decodable frame shows that first frame: never one from outside the span.
All arithmetic is on integers and fractions, so that two machines agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from schemas.errors import UserError
from vidpipe.media.errors import MediaError
from vidpipe.media.reference import ClipReference


def num_sampled(duration_seconds: Fraction, fps: Fraction) -> int:
    """Output frames of a span: instants k / fps in [0, duration). At least 1 for a positive duration."""
    if fps <= 0:
        raise UserError(f"fps {fps} must be positive")
    return max(0, math.ceil(duration_seconds * fps))


def clip_num_sampled(clip: ClipReference, fps: Fraction) -> int:
    """`num_sampled` of a clip's exact span."""
    return num_sampled((clip.end_pts - clip.start_pts) * clip.time_base, fps)


def sample_pts(
    frame_pts: Sequence[int] | np.ndarray,
    durations: Sequence[int] | np.ndarray | None,
    clip: ClipReference,
    fps: Fraction | None,
    num_frames: int | None = None,
) -> np.ndarray:
    """Choose the frames of a clip at a rate.

    Args:
        frame_pts: pts of the decodable frames, ascending; those outside the span are ignored.
        durations: unused by the rule (a frame stays until the next); accepted so that callers can pass what they have.
        fps: output rate; None takes every frame once.
        num_frames: keep only the first so many; trailing ones are dropped.
    Returns:
        int64 [K], each an element of `frame_pts` in the span, ascending, repeated where a frame stays on screen.
    Raises:
        MediaError: `no_frames` if the span has none, or fewer outputs than `num_frames`.
    """
    pts = np.asarray(frame_pts, dtype=np.int64)
    pts = pts[(pts >= clip.start_pts) & (pts < clip.end_pts)]
    where = f"clip {clip.uri}, {clip.start_seconds:.3f}-{clip.end_seconds:.3f} s"
    if not len(pts):
        raise MediaError("no_frames", f"{where}: no decodable frame in the span")
    if fps is None:
        chosen = pts
    else:
        count = clip_num_sampled(clip, fps)
        count = count if num_frames is None else min(count, num_frames)
        step = 1 / (fps * clip.time_base)  # pts units an output
        instants = [clip.start_pts + (k * step.numerator) // step.denominator for k in range(count)]
        shown = np.searchsorted(pts, np.asarray(instants, dtype=np.int64), side="right") - 1
        chosen = pts[np.maximum(shown, 0)]
    if num_frames is None:
        return chosen
    if len(chosen) < num_frames:
        rate = "its own rate" if fps is None else f"{float(fps):g} fps"
        raise MediaError("no_frames", f"{where}: {num_frames} frames at {rate} asked for, {len(chosen)} in the span")
    return chosen[:num_frames]
