"""The Dask executor: results, errors, killed tasks and an existing scheduler."""

from __future__ import annotations

import ctypes
import os
import time

import pytest

from schemas.errors import UserError
from vidpipe.executor import Done
from vidpipe.graph import DaskExecutor
from vidpipe.sandbox import UnitCrashed, UnitTimeout

LIMITS = {"deadline_seconds": 30.0, "row_deadline_seconds": 30.0}


def square(n: int) -> int:
    return n * n


def spin() -> None:
    while True:
        time.sleep(0.01)


def segfault() -> None:
    ctypes.string_at(0)


def wait_for(executor: DaskExecutor, count: int) -> list[Done]:
    found: list[Done] = []
    until = time.monotonic() + 120
    while len(found) < count and time.monotonic() < until:
        found += executor.wait(0.5)
    assert len(found) == count
    return found


@pytest.fixture(scope="module")
def executor():  # type: ignore[no-untyped-def]
    made = DaskExecutor("", workers=2)
    yield made
    made.close()


def test_values_come_back_under_their_tickets(executor: DaskExecutor) -> None:
    tickets = {executor.submit(square, n, **LIMITS): n for n in range(8)}
    assert {tickets[d.ticket]: d.value for d in wait_for(executor, 8)} == {n: n * n for n in range(8)}
    assert executor.slots() == executor.slots(0.5) == 2


def test_hang_crash_and_error_each_come_back_as_such(executor: DaskExecutor) -> None:
    hang = executor.submit(spin, deadline_seconds=1.0, row_deadline_seconds=30.0)
    crash = executor.submit(segfault, **LIMITS)
    wrong = executor.submit(square, "x", **LIMITS)
    errors = {d.ticket: d.error for d in wait_for(executor, 3)}
    assert isinstance(errors[hang], UnitTimeout)
    assert isinstance(errors[crash], UnitCrashed)
    assert isinstance(errors[wrong], TypeError)
    ticket = executor.submit(square, 3, **LIMITS)
    assert [(d.ticket, d.value) for d in wait_for(executor, 1)] == [(ticket, 9)]


def test_tasks_run_in_other_processes(executor: DaskExecutor) -> None:
    executor.submit(os.getpid, **LIMITS)
    assert wait_for(executor, 1)[0].value != os.getpid()


def test_an_existing_scheduler_and_one_that_is_not_there() -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster:
        executor = DaskExecutor(cluster.scheduler_address, workers=7)
        executor.submit(square, 5, **LIMITS)
        assert wait_for(executor, 1)[0].value == 25
        assert executor.slots() == 1
        executor.close()
    with pytest.raises(UserError, match="cannot connect"):
        DaskExecutor("tcp://127.0.0.1:9", workers=1)


def visible() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "none")


def test_a_worker_a_gpu_and_cpu_tasks_elsewhere() -> None:
    """No GPU is touched: workers are told which one they may see."""
    executor = DaskExecutor("", workers=1, gpus=["3", "GPU-5"])
    try:
        assert (executor.slots(), executor.slots(0.5), executor.slots(1.0)) == (5, 4, 2)
        on_gpu = {executor.submit(pause_and_tell, gpu=1.0, **LIMITS) for _ in range(2)}
        on_cpu = {executor.submit(visible, **LIMITS) for _ in range(3)}
        found = {d.ticket: d.value for d in wait_for(executor, 5)}
        assert {found[t] for t in on_gpu} == {"3", "GPU-5"}
        assert {found[t] for t in on_cpu} == {""}
        for _ in range(2):
            executor.submit(abs, 1, gpu=1.0, **LIMITS)  # the sandboxes have started
        wait_for(executor, 2)
        for _ in range(4):
            executor.submit(where_and_when, gpu=0.5, **LIMITS)
        spans: dict[int, list[tuple[float, float]]] = {}
        for done in wait_for(executor, 4):
            spans.setdefault(done.value[0], []).append(done.value[1:])
        assert len(spans) == 2  # a process a GPU
        for (start_a, end_a), (start_b, end_b) in spans.values():
            assert max(start_a, start_b) < min(end_a, end_b)
    finally:
        executor.close()


def where_and_when() -> tuple[int, float, float]:
    start = time.monotonic()
    time.sleep(3)
    return os.getpid(), start, time.monotonic()


def test_each_thread_of_a_worker_has_a_process_of_its_own() -> None:
    """`dask worker` without options has a thread a core."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=2, processes=True, dashboard_address=":0") as cluster:
        executor = DaskExecutor(cluster.scheduler_address, workers=1)
        for _ in range(2):
            executor.submit(where_and_when, **LIMITS)
        assert len({d.value[0] for d in wait_for(executor, 2)}) == 2
        crash = executor.submit(segfault, **LIMITS)
        fine = executor.submit(where_and_when, **LIMITS)
        found = {d.ticket: d for d in wait_for(executor, 2)}
        assert isinstance(found[crash].error, UnitCrashed) and found[fine].error is None
        executor.close()


def pause_and_tell() -> str:
    time.sleep(3)  # so that the other task goes to the other worker
    return visible()
