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

    def slots(self, gpu: float = 0.0) -> int:
        """Tasks that can run at once: of all kinds, or of those that take such a share of a GPU."""

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        deadline_seconds: float,
        row_deadline_seconds: float,
        gpu: float = 0.0,
    ) -> Ticket:
        """Start a task; `gpu` is the share of a GPU that it takes, where any worker has one."""

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

    def slots(self, gpu: float = 0.0) -> int:
        return 1

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        deadline_seconds: float,
        row_deadline_seconds: float,
        gpu: float = 0.0,
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


class LazyExecutor:
    """Starts another executor when the first task comes: a run with nothing to do costs no cluster.

    Args:
        start: makes the executor.
        slots: tasks at once, until it has started; how many GPUs there are, only the executor knows.
    """

    def __init__(self, start: Callable[[], Executor], slots: int) -> None:
        self._start, self._slots = start, slots
        self._inner: Executor | None = None

    def connect(self) -> Executor:
        """Start now, if not yet."""
        if self._inner is None:
            self._inner = self._start()
        return self._inner

    def slots(self, gpu: float = 0.0) -> int:
        if gpu:
            return self.connect().slots(gpu)
        return self._inner.slots() if self._inner else self._slots

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        deadline_seconds: float,
        row_deadline_seconds: float,
        gpu: float = 0.0,
    ) -> Ticket:
        return self.connect().submit(
            function, *args, deadline_seconds=deadline_seconds, row_deadline_seconds=row_deadline_seconds, gpu=gpu
        )

    def wait(self, timeout_seconds: float) -> list[Done]:
        return self._inner.wait(timeout_seconds) if self._inner else []

    def close(self, cancel: bool = False) -> None:
        if self._inner is not None:
            self._inner.close(cancel)
