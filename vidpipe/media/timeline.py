"""Frame times that strictly increase, whatever the container says.

The rule, applied to a decoder's frames in presentation order from the start of the stream:
- a frame's time is its pts; without one, the time before plus the nominal frame interval;
- a frame whose time is not later than the one before it (duplicated or swapped timestamps) is put one tick after it;
- a jump back by more than `JUMP_SECONDS` is a clock that was reset (a spliced transport stream): from there on, times
  continue one nominal interval after the last, by a constant offset. In a container whose clock may jump (MPEG-TS,
  MPEG-PS), so are a jump back by more than `SPLICE_SECONDS` and a jump ahead by more than `JUMP_SECONDS`.
No frame is dropped. A file for which any of this mattered is never entered in its middle.
"""

from __future__ import annotations

from fractions import Fraction

JUMP_SECONDS = 10
SPLICE_SECONDS = 1
"""More than any codec reorders: parts of a few seconds that were put one after another each begin anew."""
CLOCK_MAY_JUMP = ("mpegts", "mpeg")


class Timeline:
    """Repairs the times of one pass from the start of a stream.

    Attributes:
        repaired: frames whose time is not simply their pts.
    """

    def __init__(self, time_base: Fraction, rate: Fraction | None, container: str) -> None:
        """Take the nominal interval from `rate` (frames/s); one tick where it is unknown."""
        self._interval = max(1, round(1 / (rate * time_base))) if rate else 1
        self._jump = self._back = max(1, int(JUMP_SECONDS / time_base))
        self._folds_ahead = container in CLOCK_MAY_JUMP
        if self._folds_ahead:
            self._back = max(1, int(SPLICE_SECONDS / time_base))
        self._offset = 0
        self._last: int | None = None
        self.repaired = 0

    def time(self, pts: int | None) -> int:
        """Time of the next frame."""
        last = self._last
        if last is None:
            self._last = 0 if pts is None else pts
            return self._last
        time = last + self._interval if pts is None else pts + self._offset
        if pts is not None and (time < last - self._back or (self._folds_ahead and time > last + self._jump)):
            self._offset += last + self._interval - time
            time = last + self._interval
        if time <= last:
            time = last + 1
        self.repaired += pts is None or time != pts
        self._last = time
        return time
