"""Dask, as it is: the only module that imports it.

A `DaskExecutor` hands tasks to an embedded `LocalCluster` (worker processes, one task each) or to an existing
scheduler. Tasks carry ids, paths and fragment metadata, never pixels; each runs in a sandbox of its worker, so that a
hang or a crash of native code costs one task and not the worker. Tasks on a GPU share one, and so one copy of the
models: a worker with two threads takes two tasks that ask for half a GPU each, and one decodes and writes while the
other encodes. Other tasks have one for each thread of the worker.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dask
from distributed import Client, Future, LocalCluster

from schemas.errors import UserError
from vidpipe.executor import Done, Ticket
from vidpipe.sandbox import UnitCrashed, own, shared

CONFIG = {
    "distributed.worker.daemon": False,
    "distributed.worker.memory.target": False,  # tasks return metadata: there is nothing to spill
    "distributed.worker.memory.spill": False,
    "distributed.scheduler.allowed-failures": 1,  # the engine retries, and knows which row was at fault
    "distributed.comm.timeouts.connect": "30s",
    "distributed.admin.log-format": "%(name)s - %(levelname)s - %(message)s",
}

START_SECONDS = 120.0
GPU_TASKS = 2
"""Tasks at once on a GPU, at half a GPU each."""


def in_sandbox(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    deadline_seconds: float,
    row_deadline_seconds: float,
    on_gpu: bool,
) -> Any:
    """Run a task in a sandbox of this worker."""
    sandbox = shared() if on_gpu else own()
    return sandbox.call(function, *args, deadline_seconds=deadline_seconds, row_deadline_seconds=row_deadline_seconds)


@contextlib.contextmanager
def _children_without_interrupts() -> Iterator[None]:
    """Children started here never see Ctrl-C: only the coordinator answers it, and stops them in order."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which new threads and children inherit
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


class DaskExecutor:
    """Runs tasks on Dask.

    Args:
        scheduler: address of an existing scheduler, or empty for an embedded cluster.
        workers: worker processes of the embedded cluster.
        gpus: names for CUDA_VISIBLE_DEVICES; the embedded cluster has a further worker for each.
    """

    def __init__(self, scheduler: str, workers: int, gpus: Sequence[str] = ()) -> None:
        dask.config.set(CONFIG)
        for name in ("distributed", "distributed.nanny", "distributed.scheduler", "distributed.worker"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._cluster: Any = None
        if scheduler:
            self._client = self._connect(scheduler)
        else:
            try:
                with _children_without_interrupts():
                    self._cluster = _local_cluster(workers, gpus)
                    self._client = Client(self._cluster)
                    self._client.wait_for_workers(workers + len(gpus), timeout=START_SECONDS)
            except BaseException:  # Ctrl-C while it started
                if self._cluster is not None:
                    self._cluster.close(timeout=10)
                raise
        self._done: queue.SimpleQueue[tuple[Ticket, Future]] = queue.SimpleQueue()
        self._running: dict[Ticket, Future] = {}
        self._slots = workers + GPU_TASKS * len(gpus)
        self._external = bool(scheduler)

    @staticmethod
    def _connect(scheduler: str) -> Client:
        try:
            return Client(scheduler, timeout=10)
        except (OSError, ValueError) as error:
            raise UserError(f"--scheduler {scheduler}: cannot connect: {error}") from None

    def slots(self, gpu: float = 0.0) -> int:
        """Tasks that can run at once; follows an existing scheduler as its workers come and go."""
        if gpu and (on_gpus := self._gpu_slots(gpu)):
            return on_gpus
        if not self._external:
            return self._slots
        return max(1, sum(self._client.nthreads().values()))

    def _gpu_slots(self, gpu: float) -> int:
        workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        return sum(int(min(w["nthreads"], w.get("resources", {}).get("GPU", 0) / gpu)) for w in workers)

    def _resources(self, gpu: float) -> dict[str, float] | None:
        """What the task takes of what its kind of worker offers, where any does."""
        wanted = "GPU" if gpu else "CPU"
        info = self._client.scheduler_info(n_workers=-1)
        offered = any(wanted in w.get("resources", {}) for w in info["workers"].values())
        return {wanted: gpu or 1.0} if offered else None

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        deadline_seconds: float,
        row_deadline_seconds: float,
        gpu: float = 0.0,
    ) -> Ticket:
        """Start a task."""
        ticket = Ticket()
        resources = self._resources(gpu)
        future = self._client.submit(
            in_sandbox,
            function,
            args,
            deadline_seconds,
            row_deadline_seconds,
            "GPU" in (resources or {}),
            pure=False,
            resources=resources,
        )
        self._running[ticket] = future
        future.add_done_callback(lambda f, t=ticket: self._done.put((t, f)))
        return ticket

    def wait(self, timeout_seconds: float) -> list[Done]:
        """Tasks that ended, waiting for the first at most so long."""
        found: list[Done] = []
        block = timeout_seconds
        while True:
            try:
                ticket, future = self._done.get(timeout=block) if block > 0 else self._done.get_nowait()
            except queue.Empty:
                return found
            block = 0.0
            if self._running.pop(ticket, None) is not None:
                found.append(_outcome(ticket, future))

    def close(self, cancel: bool = False) -> None:
        """Stop; an embedded cluster's workers end with it."""
        if cancel:
            self._client.cancel(list(self._running.values()), force=True)
        self._client.close(timeout=5)
        if self._cluster is not None:
            self._cluster.close(timeout=10)


def _outcome(ticket: Ticket, future: Future) -> Done:
    if future.status == "finished":
        return Done(ticket=ticket, value=future.result())
    if future.status == "cancelled":
        return Done(ticket=ticket, error=UnitCrashed("cancelled: its worker or scheduler went away"))
    error = future.exception()
    if type(error).__name__ == "KilledWorker":
        error = UnitCrashed("its worker process died")
    return Done(ticket=ticket, error=error)


class _Cluster(LocalCluster):
    """Workers without a GPU, and one for each GPU, which sees no other.

    CPU workers offer the resource `CPU`: a decoding pass must not keep a GPU's worker from the GPU's own tasks.
    """

    gpus: Sequence[str] = ()

    def new_worker_spec(self) -> dict[Any, Any]:
        """Name and specification of the next worker."""
        ((name, spec),) = super().new_worker_spec().items()
        options = spec["options"]
        if not self.gpus:
            return {name: spec}
        gpu = self.gpus[name] if name < len(self.gpus) else ""
        more: dict[str, Any] = {"resources": {"GPU": 1}, "nthreads": GPU_TASKS} if gpu else {"resources": {"CPU": 1}}
        environment = {**options["env"], "CUDA_VISIBLE_DEVICES": gpu}
        return {name: {**spec, "options": {**options, "env": environment, **more}}}


def _local_cluster(workers: int, gpus: Sequence[str]) -> Any:
    environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", "65536")
    cluster = _Cluster(
        n_workers=0,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        memory_limit=0,
        env=environment,
        silence_logs=logging.ERROR,
    )
    cluster.gpus = gpus
    cluster.scale(workers + len(gpus))
    return cluster
