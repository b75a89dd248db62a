"""What the engine asks of whatever runs its tasks, and the executor that runs them on the spot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class Ticket:
    """Names a task that was submitted."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A task that ended: its value, or the error that it raised."""

    ticket: Ticket
    value: Any = None
    error: BaseException | None = None


class Executor(Protocol):
    """Runs tasks somewhere."""

    def slots(self) -> int:
        """Tasks that can run at once."""

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        deadline_seconds: float,
        row_deadline_seconds: float,
        gpu: bool = False,
    ) -> Ticket:
        """Start a task."""

    def wait(self, timeout_seconds: float) -> list[Done]:
        """Tasks that ended."""

    def close(self, cancel: bool = False) -> None:
        """Stop, dropping what still runs if `cancel`."""


class InlineExecutor:
    """`--scheduler sync`: runs each task in this process when it is submitted, so that a debugger sees it.

    No deadlines hold here, and a crash of native code ends the run.
    """

    def __init__(self) -> None:
        self._done: list[Done] = []

    def slots(self) -> int:
        return 1

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        deadline_seconds: float,
        row_deadline_seconds: float,
        gpu: bool = False,
    ) -> Ticket:
        ticket = Ticket()
        try:
            done = Done(ticket=ticket, value=function(*args))
        except Exception as error:  # handed to the engine, which decides as with any executor
            done = Done(ticket=ticket, error=error)
        self._done.append(done)
        return ticket

    def wait(self, timeout_seconds: float) -> list[Done]:
        found, self._done = self._done, []
        return found

    def close(self, cancel: bool = False) -> None:
        """Nothing is left running."""
