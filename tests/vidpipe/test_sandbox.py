"""A unit's process is killed at its deadline, its crash is told apart, and the row that it was at is named."""

from __future__ import annotations

import contextvars
import ctypes
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
        time.sleep(0.5)
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
    assert box.call(slow_rows, deadline_seconds=60, row_deadline_seconds=1.6) == "done"


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


# -- several calls in one child


def meet(folder: str, me: str, other: str) -> int:
    """Ends only if both calls run at once."""
    sandbox.progress(0)
    Path(folder, me).touch()
    until = time.monotonic() + 20
    while not Path(folder, other).exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    return os.getpid()


def meet_and_crash(folder: str, me: str, other: str) -> None:
    meet(folder, me, other)
    sandbox.progress(7)
    ctypes.string_at(0)


def meet_and_go_on(folder: str, me: str, other: str) -> str:
    meet(folder, me, other)
    sandbox.progress(3)
    time.sleep(1)
    return f"{me} is done"


def meet_and_spin(folder: str, me: str, other: str) -> None:
    meet(folder, me, other)
    sandbox.progress(5)
    spin()


def wait_for_another() -> str:
    sandbox.progress(1)
    with sandbox.waiting():
        time.sleep(1.2)
    time.sleep(0.1)
    return "had its turn"


def wait_and_spin() -> None:
    sandbox.progress(4)
    with sandbox.waiting():
        time.sleep(0.2)
    spin()


def progress_in_a_thread(row: int) -> None:
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(sandbox.progress, row))
    thread.start()
    thread.join()
    raise ValueError(str(row))


def leave() -> None:
    raise SystemExit(3)


def at_once(box: Sandbox, *calls: tuple[Any, ...], **limits: float) -> list[Future[Any]]:
    """Futures of calls, all of them ended."""
    limits = {"deadline_seconds": 30.0, **limits}
    box.call(abs, 1, deadline_seconds=30)
    with ThreadPoolExecutor(len(calls)) as pool:
        return [pool.submit(box.call, *call, **limits) for call in calls]


def test_two_calls_run_at_once_in_one_child(box: Sandbox, tmp_path: Path) -> None:
    a, b = at_once(box, (meet, str(tmp_path), "a", "b"), (meet, str(tmp_path), "b", "a"))
    assert a.result() == b.result() != os.getpid()


def test_a_crash_is_the_guilty_call_s_alone(box: Sandbox, tmp_path: Path) -> None:
    calls = (meet_and_crash, str(tmp_path), "a", "b"), (meet_and_go_on, str(tmp_path), "b", "a")
    guilty, innocent = at_once(box, *calls)
    assert innocent.result() == "b is done"
    error = guilty.exception()
    assert isinstance(error, UnitCrashed)
    assert (error.row, error.company) == (7, False)


def test_a_hang_is_the_guilty_call_s_alone(box: Sandbox, tmp_path: Path) -> None:
    calls = (meet_and_spin, str(tmp_path), "a", "b"), (meet_and_go_on, str(tmp_path), "b", "a")
    guilty, innocent = at_once(box, *calls, row_deadline_seconds=2.5)
    assert innocent.result() == "b is done"
    error = guilty.exception()
    assert isinstance(error, UnitTimeout)
    assert (error.row, error.company) == (5, False)


def test_no_deadline_runs_while_a_call_waits_for_another(box: Sandbox) -> None:
    box.call(abs, 1, deadline_seconds=10)
    assert box.call(wait_for_another, deadline_seconds=1.0, row_deadline_seconds=1.0) == "had its turn"
    with pytest.raises(UnitTimeout) as error:
        box.call(wait_and_spin, deadline_seconds=60, row_deadline_seconds=0.5)
    assert error.value.row == 4


def work_for_long() -> str:
    sandbox.progress(2)
    with sandbox.working():
        sandbox.progress(6)
        time.sleep(1.2)
    return "compiled"


def work_and_spin() -> None:
    sandbox.progress(2)
    with sandbox.working():
        time.sleep(0.2)
    spin()


def work_for_ever() -> None:
    with sandbox.working():
        spin()


def test_no_row_s_deadline_runs_while_a_model_works(box: Sandbox) -> None:
    box.call(abs, 1, deadline_seconds=10)
    assert box.call(work_for_long, deadline_seconds=30, row_deadline_seconds=0.9) == "compiled"
    with pytest.raises(UnitTimeout) as error:
        box.call(work_and_spin, deadline_seconds=30, row_deadline_seconds=0.5)
    assert error.value.row == 2
    box.call(abs, 1, deadline_seconds=10)
    with pytest.raises(UnitTimeout):
        box.call(work_for_ever, deadline_seconds=1.0, row_deadline_seconds=0.2)


def test_rows_are_told_by_call(box: Sandbox) -> None:
    found = at_once(box, *((progress_in_a_thread, row) for row in range(8)))
    assert [f.exception().unit_row for f in found] == list(range(8))  # type: ignore[union-attr]


def test_an_exit_is_a_crash(box: Sandbox) -> None:
    with pytest.raises(UnitCrashed, match="exit status 3"):
        box.call(leave, deadline_seconds=10)


def test_an_answer_that_cannot_be_loaded_is_an_error_and_the_child_goes_on(box: Sandbox) -> None:
    pid = box.call(os.getpid, deadline_seconds=10)
    with pytest.raises(RuntimeError, match="not here"):
        box.call(Unloadable, deadline_seconds=10)
    assert box.call(os.getpid, deadline_seconds=10) == pid


def break_the_context() -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_after_a_cuda_error_the_next_call_has_a_new_process(box: Sandbox) -> None:
    pid = box.call(os.getpid, deadline_seconds=10)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        box.call(break_the_context, deadline_seconds=10)
    assert box.call(os.getpid, deadline_seconds=10) != pid


class Unloadable:
    """Pickles, and cannot be loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse, ()


def refuse() -> None:
    raise RuntimeError("not here")
