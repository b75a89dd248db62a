"""From cuts to clips: which frames of a shot a clip takes.

The rule, in this order:
1. A shot is what lies between two transitions; the frames of a dissolve belong to none. It loses `trim_frames` frames
   at each of its ends that is a cut or transition, none at the ends of the video.
2. A shot shorter than `min_seconds` gives no clip; one of at most `max_seconds` gives one.
3. A longer one is cut into windows. `equal`: as few as fit, equally long; `fixed`: each as long as `max_seconds`
   allows. The remainder of `fixed` is a clip if it is at least `min_seconds` long, else it is dropped; where `equal`
   windows would be shorter than `min_seconds`, `fixed` is used.
A window ends with a frame's end and never reaches past its shot. It is longer than `max_seconds` only where a single
frame is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from schemas.errors import UserError
from vidpipe.shots.detector import Transition

TOLERANCE_SECONDS = 1e-6


@dataclass(frozen=True, kw_only=True)
class WindowRule:
    """Lengths of clips; see the module's docstring."""

    min_seconds: float = 1.0
    max_seconds: float = 10.0
    trim_frames: int = 1
    window: Literal["equal", "fixed"] = "equal"

    def __post_init__(self) -> None:
        if not 0 <= self.min_seconds <= self.max_seconds or self.max_seconds <= 0:
            raise UserError(
                f"expected 0 <= min_seconds <= max_seconds, found {self.min_seconds} and {self.max_seconds}"
            )
        if self.trim_frames < 0:
            raise UserError(f"trim_frames must be at least 0, found {self.trim_frames}")


@dataclass(frozen=True, kw_only=True)
class Window:
    """Frames `first` to `last`, both inclusive, of shot `shot_index`."""

    shot_index: int
    window_index: int
    first: int
    last: int


def cut_windows(
    starts: np.ndarray, ends: np.ndarray, transitions: Sequence[Transition], rule: WindowRule
) -> Iterator[Window]:
    """Windows of all shots.

    Args:
        starts, ends: of each frame on screen, in seconds, ascending; `ends[i]` is at most `starts[i + 1]`.
        transitions: ascending, as `vidpipe.shots.detector.merged` gives them.
    """
    begins = [0, *(t.end for t in transitions)]
    stops = [*(t.start for t in transitions), len(starts)]
    for shot_index, (low, high) in enumerate(zip(begins, stops)):
        first = low + (rule.trim_frames if low > 0 else 0)
        last = high - 1 - (rule.trim_frames if high < len(starts) else 0)
        if last < first or ends[last] - starts[first] < rule.min_seconds - TOLERANCE_SECONDS:
            continue
        for window_index, (a, b) in enumerate(_split(starts, ends, first, last, rule)):
            yield Window(shot_index=shot_index, window_index=window_index, first=a, last=b)


def _split(starts: np.ndarray, ends: np.ndarray, first: int, last: int, rule: WindowRule) -> list[tuple[int, int]]:
    seconds = ends[last] - starts[first]
    fewest = math.ceil((seconds - TOLERANCE_SECONDS) / rule.max_seconds)
    if fewest <= 1 or first == last:
        return [(first, last)]
    for num_windows in (fewest, fewest + 1):  # one more where windows of whole frames do not fit
        if rule.window == "equal" and seconds / num_windows >= rule.min_seconds:
            found = _chain(starts, ends, first, last, seconds / num_windows, rule)
            if len(found) == num_windows and all(_long_enough(starts, ends, w, rule) for w in found):
                return found
    found = _chain(starts, ends, first, last, rule.max_seconds, rule)
    return [w for w in found if _long_enough(starts, ends, w, rule)]


def _long_enough(starts: np.ndarray, ends: np.ndarray, window: tuple[int, int], rule: WindowRule) -> bool:
    return ends[window[1]] - starts[window[0]] >= rule.min_seconds - TOLERANCE_SECONDS


def _chain(
    starts: np.ndarray, ends: np.ndarray, first: int, last: int, seconds: float, rule: WindowRule
) -> list[tuple[int, int]]:
    """Windows end to end. Below the maximum the nearest frame is taken, so that rounding does not pile up."""
    found: list[tuple[int, int]] = []
    exact = seconds >= rule.max_seconds
    origin = starts[first]
    while first <= last:
        limit = starts[first] + rule.max_seconds + TOLERANCE_SECONDS
        aim = limit if exact else origin + seconds * (len(found) + 1) + (ends[first] - starts[first]) / 2
        end = int(np.searchsorted(ends[: last + 1], min(aim, limit), "right")) - 1
        end = max(first, min(end, last))
        found.append((first, end))
        first = end + 1
    return found
