"""Ctrl-C at a moment of our own choosing.

An exception that is raised wherever the program stands can be lost: a library that calls back into Python reports it as
an error of its own, or ignores it. So the first Ctrl-C is noted and raised between two turns of the loop; a second one,
by someone in a hurry, is raised at once.
"""

from __future__ import annotations

import signal
from typing import Any


class Interrupts:
    """Notes Ctrl-C while it is entered; in a thread other than the main one it does nothing."""

    def __init__(self) -> None:
        self.requested = False
        self._old: Any = None

    def __enter__(self) -> Interrupts:
        try:
            self._old = signal.signal(signal.SIGINT, self._note)
        except ValueError:  # not the main thread, which alone sees signals
            self._old = None
        return self

    def __exit__(self, *exc: object) -> None:
        if self._old is not None:
            signal.signal(signal.SIGINT, self._old)

    def _note(self, number: int, frame: Any) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if one was noted."""
        if self.requested:
            raise KeyboardInterrupt
