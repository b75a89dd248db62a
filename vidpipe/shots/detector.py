"""What a shot detector is: it is pushed every frame at small size and names the first frame of each new shot.

Frames go by number and not by time, so that variable frame rates and odd timestamps cannot move a cut; the caller maps
numbers to pts. Detectors report every cut that they see: the minimum length of a clip is the caller's rule, so that no
cut is swallowed and ends up inside a clip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np


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

    def push(self, frames_THWC: np.ndarray) -> None:
        """Take the next frames, uint8 RGB at small size, all of one size throughout the video."""
        raise NotImplementedError

    def finish(self) -> list[int]:
        """Frame numbers, counted from the first pushed, at which a new shot begins: ascending, none twice, none 0."""
        raise NotImplementedError


def ascending(cuts: list[int], num_frames: int) -> list[int]:
    """Sort cuts, and drop repeated ones and those at the stream's edges."""
    return sorted({c for c in cuts if 0 < c < num_frames})
