"""What a shot detector is: it is pushed every frame at small size and says where shots change.

Frames go by number and not by time, so that variable frame rates and odd timestamps cannot move a cut; the caller maps
numbers to pts. Detectors report every change that they see: the minimum length of a clip is the caller's rule, so that
no cut is swallowed and ends up inside a clip.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from vidpipe.shots.frames import ShotFrames


class Transition(NamedTuple):
    """Frames [start, end) lie between two shots: the one ends before `start`, the other begins with `end`.

    A hard cut has start = end: the first frame of the new shot.
    """

    start: int
    end: int

    def shifted(self, frames: int) -> Transition:
        """The same, that many frames later."""
        return Transition(self.start + frames, self.end + frames)


@dataclass(frozen=True, kw_only=True)
class DetectorConfig:
    """Parameters of every detector."""


class ShotDetector:
    """Base of all detectors.

    Attributes:
        name: in the registry.
        version: raised by hand when the cuts change for the same frames and parameters.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    Config: ClassVar[type[DetectorConfig]] = DetectorConfig

    def push(self, frames: ShotFrames) -> None:
        """Take the next frames, all of one size throughout the video; keep no reference to them."""
        raise NotImplementedError

    def finish(self) -> list[Transition]:
        """Where shots change, in frames counted from the first pushed; in any order."""
        raise NotImplementedError


def merged(transitions: Iterable[Transition], num_frames: int) -> list[Transition]:
    """In order, within (0, num_frames), overlapping and repeated ones united.

    A cut at either edge of a transition, or within it, is part of it. What touches the video's first or last frame is
    clipped to it.
    """
    found: list[Transition] = []
    for start, end in sorted(transitions):
        start, end = max(0, start), min(num_frames, end)
        if start > end or end == 0 or start == num_frames:
            continue
        if found and start <= found[-1].end:
            found[-1] = Transition(found[-1].start, max(end, found[-1].end))
        else:
            found.append(Transition(start, end))
    return found
