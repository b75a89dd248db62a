"""Ctrl-C and SIGTERM at a moment of our own choosing.

An exception that is raised wherever the program stands can be lost: a library that calls back into Python reports it as
an error of its own, or ignores it. So the first signal is noted and raised between two turns of the loop; a second one,
by someone in a hurry, is raised at once.
"""

from __future__ import annotations

import signal
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM, as schedulers of clusters send it some time before they kill."""


class Interrupts:
    """Notes Ctrl-C and SIGTERM while it is entered; in a thread other than the main one it does nothing."""

    def __init__(self) -> None:
        self.requested = 0
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        try:
            for number in SIGNALS:
                self._old[number] = signal.signal(number, self._note)
        except ValueError:  # not the main thread, which alone sees signals
            pass
        return self

    def __exit__(self, *exc: object) -> None:
        for number, old in self._old.items():
            signal.signal(number, old)

    def _note(self, number: int, frame: Any) -> None:
        if self.requested:
            raise _error(number)
        self.requested = number

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was noted, Terminated if SIGTERM was."""
        if self.requested:
            raise _error(self.requested)


def _error(number: int) -> KeyboardInterrupt:
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
