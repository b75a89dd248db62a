"""A unit's process is killed at its deadline, its crash is told apart, and the row that it was at is named."""

from __future__ import annotations

import ctypes
import os
import time

import pytest

from vidpipe import sandbox
from vidpipe.sandbox import Sandbox, UnitCrashed, UnitError, UnitTimeout


@pytest.fixture
def box():  # type: ignore[no-untyped-def]
    made = Sandbox()
    yield made
    made.kill()


def spin() -> None:
    while True:
        time.sleep(0.01)


def spin_at_row_two() -> None:
    for row in range(3):
        sandbox.progress(row)
    spin()


def segfault() -> None:
    sandbox.progress(1)
    ctypes.string_at(0)


def fail_at_row_one() -> None:
    sandbox.progress(1)
    raise ValueError("no good")


class Unpicklable(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__("two arguments")


def raise_unpicklable() -> None:
    raise Unpicklable(1, 2)


def slow_rows() -> str:
    for row in range(4):
        sandbox.progress(row)
        time.sleep(0.2)
    return "done"


def test_result_and_the_child_is_kept(box: Sandbox) -> None:
    first = box.call(os.getpid, deadline_seconds=10)
    assert first != os.getpid()
    assert box.call(os.getpid, deadline_seconds=10) == first


def test_printing_does_not_disturb_the_answer(box: Sandbox) -> None:
    assert box.call(print, "noise", deadline_seconds=10) is None
    assert box.call(abs, -3, deadline_seconds=10) == 3


def test_deadline_kills_and_the_next_call_works(box: Sandbox) -> None:
    pid = box.call(os.getpid, deadline_seconds=10)
    started = time.monotonic()
    with pytest.raises(UnitTimeout):
        box.call(spin, deadline_seconds=0.5)
    assert time.monotonic() - started < 5
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert box.call(abs, -1, deadline_seconds=10) == 1


def test_row_deadline_names_the_row(box: Sandbox) -> None:
    box.call(abs, 1, deadline_seconds=10)
    with pytest.raises(UnitTimeout) as error:
        box.call(spin_at_row_two, deadline_seconds=60, row_deadline_seconds=0.5)
    assert error.value.row == 2


def test_row_deadline_is_for_each_row(box: Sandbox) -> None:
    box.call(abs, 1, deadline_seconds=10)
    assert box.call(slow_rows, deadline_seconds=60, row_deadline_seconds=0.6) == "done"


def test_crash_of_native_code(box: Sandbox) -> None:
    with pytest.raises(UnitCrashed, match="SIGSEGV") as error:
        box.call(segfault, deadline_seconds=10)
    assert error.value.row == 1


def test_exceptions_come_back_with_their_row(box: Sandbox) -> None:
    with pytest.raises(ValueError, match="no good") as error:
        box.call(fail_at_row_one, deadline_seconds=10)
    assert error.value.unit_row == 1  # type: ignore[attr-defined]
    with pytest.raises(UnitError, match="two arguments"):
        box.call(raise_unpicklable, deadline_seconds=10)
