"""How far a run is: a live table on a terminal, a plain line a stage every so often elsewhere.

Counts are those of this run, as the engine sets them. A stage's rate is measured over the last minute of its work, so
that it follows a change; `footage` is video-seconds a second, which is also video-hours an hour.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

WINDOW_SECONDS = 60.0
SAMPLE_SECONDS = 0.5
BAR_CELLS = 16


@dataclass(kw_only=True)
class StageCounts:
    """One stage so far.

    Attributes:
        total: rows known to be wanted in this run; grows while upstream stages commit.
        samples: (clock seconds, rows done, footage seconds) over the last minute, oldest first.
    """

    name: str
    kept: int = 0
    rejected: int = 0
    failed: int = 0
    total: int = 0
    footage_seconds: float = 0.0
    samples: deque[tuple[float, int, float]] = field(default_factory=deque)

    @property
    def done(self) -> int:
        """Rows with an outcome."""
        return self.kept + self.rejected + self.failed

    def sample(self, now: float) -> None:
        """Remember the counts of this moment, at most twice a second."""
        if self.samples and now - self.samples[-1][0] < SAMPLE_SECONDS:
            return
        self.samples.append((now, self.done, self.footage_seconds))
        while len(self.samples) > 2 and now - self.samples[1][0] >= WINDOW_SECONDS:
            self.samples.popleft()

    def rates(self, now: float) -> tuple[float, float]:
        """Rows a second and footage-seconds a second over the window; zeros until there is something to divide."""
        if not self.samples:
            return 0.0, 0.0
        start, done, footage = self.samples[0]
        seconds = now - start
        if seconds < SAMPLE_SECONDS:
            return 0.0, 0.0
        return (self.done - done) / seconds, (self.footage_seconds - footage) / seconds

    def seconds_left(self, now: float) -> float | None:
        """Seconds until `total` at the present rate; None while that is unknown, 0 when nothing is left."""
        left = self.total - self.done
        if left <= 0:
            return 0.0
        rate, _ = self.rates(now)
        return left / rate if rate > 0 else None


def duration_text(seconds: float | None) -> str:
    """`4 s`, `3 min 20 s`, `5 h 12 min`, `3 d 4 h`; empty for None."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def _number(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


class Progress:
    """Display of a run; a context manager.

    Args:
        stages: names in pipeline order.
        console: where to draw; standard error by default. A terminal gets the live table.
        plain_seconds: without a terminal, time between two lines of a stage that moves.
    """

    def __init__(
        self,
        stages: Sequence[str],
        *,
        console: Console | None = None,
        plain_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Console

        self.console = console or Console(stderr=True)
        self.stages = {name: StageCounts(name=name) for name in stages}
        self._plain_seconds, self._clock = plain_seconds, clock
        self._started = clock()
        self._printed_at = self._started
        self._printed: dict[str, tuple[int, int]] = {}
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._started = self._printed_at = self._clock()
        if self.console.is_terminal:
            from rich.live import Live

            self._live = Live(
                get_renderable=self.table, console=self.console, refresh_per_second=4, redirect_stdout=False
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        else:
            self._print_moved()

    def update(
        self,
        stage: str,
        *,
        kept: int = 0,
        rejected: int = 0,
        failed: int = 0,
        total: int = 0,
        footage_seconds: float = 0,
    ) -> None:
        """Set a stage's counts so far; cheap enough to be called at every turn of a loop."""
        counts = self.stages.setdefault(stage, StageCounts(name=stage))
        now = self._clock()
        if not counts.total:  # the rate starts when there is work, not at the first result
            counts.samples.clear()
            counts.sample(now)
        counts.kept, counts.rejected, counts.failed = kept, rejected, failed
        counts.total, counts.footage_seconds = total, footage_seconds
        counts.sample(now)
        if self._live is None and now - self._printed_at >= self._plain_seconds:
            self._printed_at = now
            self._print_moved()

    def log(self, line: str) -> None:
        """Print a line that stays, above the table."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _print_moved(self) -> None:
        for counts in self.stages.values():
            state = (counts.done, counts.total)
            if state != self._printed.get(counts.name, (0, 0)):
                self._printed[counts.name] = state
                self.log(self.line(counts))

    def line(self, counts: StageCounts) -> str:
        """One stage as plain text."""
        now = self._clock()
        rate, footage = counts.rates(now)
        parts = [
            f"{duration_text(now - self._started)}: {counts.name} {counts.done:,}/{counts.total:,}",
            f"kept {counts.kept:,}, rejected {counts.rejected:,}, failed {counts.failed:,}",
        ]
        if rate:
            parts.append(f"{_number(rate)} rows/s" + (f", {_number(footage)} video-h/h" if footage else ""))
        if counts.done < counts.total and (left := counts.seconds_left(now)) is not None:
            parts.append(f"{duration_text(left)} left")
        return "; ".join(parts)

    def table(self) -> Table:
        """All stages as a rich table."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="dim", pad_edge=False)
        table.add_column(f"{duration_text(self._clock() - self._started)}")
        table.add_column("", min_width=BAR_CELLS)
        for title in ("done", "kept", "rejected", "failed", "rows/s", "video-h/h", "left"):
            table.add_column(title, justify="right")
        for counts in self.stages.values():
            now = self._clock()
            rate, footage = counts.rates(now)
            idle = counts.total == 0
            table.add_row(
                Text(counts.name, "dim" if idle else "bold"),
                _bar(counts.done, counts.total),
                "" if idle else f"{counts.done:,}/{counts.total:,}",
                f"{counts.kept:,}" if counts.kept else "",
                Text(f"{counts.rejected:,}" if counts.rejected else "", "yellow"),
                Text(f"{counts.failed:,}" if counts.failed else "", "red"),
                _number(rate) if rate else "",
                _number(footage) if footage else "",
                duration_text(counts.seconds_left(now)) if counts.done < counts.total else "",
            )
        return table


def _bar(done: int, total: int) -> str:
    filled = BAR_CELLS * done // total if total else 0
    return "━" * filled + "╌" * (BAR_CELLS - filled) if total else ""
