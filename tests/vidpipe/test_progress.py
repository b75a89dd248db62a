"""Progress: rates over a window, time left, plain lines when there is no terminal, a table when there is one."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from vidpipe.progress import Progress, StageCounts, duration_text


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def plain(clock) -> Progress:
    console = Console(file=io.StringIO(), force_terminal=False, width=200)
    return Progress(["ingest", "analyze"], console=console, plain_seconds=10.0, clock=clock)


def text_of(progress: Progress) -> list[str]:
    return progress.console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (18720, "5 h 12 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_duration_text(seconds, text):
    assert duration_text(seconds) == text


def test_rate_and_time_left_are_exact(plain, clock):
    plain.update("analyze", total=100)
    clock.now = 10.0
    plain.update("analyze", kept=15, rejected=4, failed=1, total=100, footage_seconds=500.0)
    counts = plain.stages["analyze"]
    assert counts.done == 20
    assert counts.rates(clock.now) == (2.0, 50.0)
    assert counts.seconds_left(clock.now) == 40.0


def test_rate_follows_the_last_minute_only(plain, clock):
    for second in range(601):
        clock.now = float(second)
        done = second * 10 if second < 300 else 3000 + (second - 300)
        plain.update("analyze", kept=done, total=10_000)
    assert plain.stages["analyze"].rates(clock.now)[0] == pytest.approx(1.0, rel=0.02)
    assert len(plain.stages["analyze"].samples) < 130


def test_a_stage_that_waited_is_not_slow(plain, clock):
    for second in range(101):
        clock.now = float(second)
        plain.update("analyze", kept=max(0, second - 90), total=0 if second < 90 else 50)
    assert plain.stages["analyze"].rates(100.0)[0] == pytest.approx(1.0, rel=0.15)


def test_nothing_known_gives_no_time_left(clock):
    counts = StageCounts(name="x", total=10)
    assert counts.rates(0.0) == (0.0, 0.0)
    assert counts.seconds_left(0.0) is None
    assert StageCounts(name="x", total=0).seconds_left(0.0) == 0.0


def test_plain_lines_come_every_ten_seconds_and_only_for_what_moved(plain, clock):
    with plain:
        for second in range(25):
            clock.now = float(second)
            plain.update("ingest", kept=5, total=5)
            plain.update("analyze", kept=second, failed=1, total=100, footage_seconds=60.0 * second)
    lines = text_of(plain)
    assert [line.split(":")[1].split()[0] for line in lines] == ["ingest", "analyze", "analyze", "analyze"]
    assert lines[0].startswith("10 s: ingest 5/5; kept 5, rejected 0, failed 0")
    assert lines[2] == (
        "20 s: analyze 20/100; kept 19, rejected 0, failed 1; 1.0 rows/s, 57.0 video-h/h; 1 min 20 s left"
    )
    assert lines[3].startswith("24 s: analyze 25/100")


def test_a_short_run_still_says_what_it_did(plain, clock):
    with plain:
        plain.update("ingest", kept=2, rejected=1, total=3)
    assert text_of(plain) == ["0 s: ingest 3/3; kept 2, rejected 1, failed 0"]


def test_nothing_done_prints_nothing(plain):
    with plain:
        plain.update("ingest")
    assert text_of(plain) == []


def test_log_keeps_square_brackets_and_long_lines_whole(plain):
    line = "gave up on [bold]a.mp4[/bold]: " + "x" * 400
    plain.log(line)
    assert text_of(plain) == [line]


def test_terminal_gets_a_live_table(clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Progress(["ingest", "analyze"], console=console, clock=clock) as progress:
        progress.update("analyze", total=8)
        clock.now = 4.0
        progress.update("analyze", kept=3, rejected=1, total=8, footage_seconds=40.0)
        progress.log("a line that stays")
        rendered = io.StringIO()
        Console(file=rendered, width=120).print(progress.table())
    row = next(line for line in rendered.getvalue().splitlines() if line.startswith("analyze"))
    assert row.split() == ["analyze", "━" * 8 + "╌" * 8, "4/8", "3", "1", "1.0", "10.0", "4", "s"]
    output = console.file.getvalue()
    assert "a line that stays" in output and "\x1b[" in output and "4/8" in output
