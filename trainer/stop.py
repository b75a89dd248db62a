"""A clean stop on SIGTERM, which schedulers send before they kill: the loop saves a checkpoint, then ends.

SLURM, Kubernetes and `torchrun` send it to a job that is out of time or preempted, torchrun to every rank, and kill
what is left after a grace period (30 s under torchrun). All ranks must leave at one step, so they compare notes on the
host before each: one number a rank. The processes that read data get the signal too, and may be gone before their rank
heard of it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from trainer.parallel.world import World

HEARD_SECONDS = 2.0
"""How long a rank whose readers are gone waits for a signal of its own."""


class Stop:
    """Whether this process was told to stop.

    Attributes:
        signal: the signal that came, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note SIGTERM instead of dying of it; elsewhere than in the main thread signals stay as they are."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        old = signal.signal(signal.SIGTERM, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, old)

    def expected(self) -> bool:
        """Whether the signal came, or comes within a moment."""
        end = time.monotonic() + HEARD_SECONDS
        while self.signal is None and time.monotonic() < end:
            time.sleep(0.02)
        return self.signal is not None

    def agreed(self, world: World) -> bool:
        """Whether any rank was told to stop; all ranks call it, and then know the signal."""
        if world.size > 1:
            found = int(world.gather([float(self.signal or 0)]).max().item())
            self.signal = found or None
        return self.signal is not None
