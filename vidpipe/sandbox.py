"""Runs a unit of work in a child process that can be killed: a decoder that hangs or crashes takes one unit with it.

The child is started once and kept (imports of torch cost seconds); after a deadline or a crash the next call starts
another. Plain subprocess with length-prefixed pickles on two pipes, because Dask's workers are daemonic and may not
have `multiprocessing` children. The child dies with its parent: end of file on its input, and PR_SET_PDEATHSIG.

Several calls may run in one child, a thread each: two units share a GPU's models and memory, and one decodes and writes
while the other encodes. A child that is lost with several calls in it does not tell whose fault it was: each of them is
then run again alone, and what that ends in counts.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import itertools
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

START_SECONDS = 120.0
"""Allowance for the imports of a new child, beside the first call's own deadline."""
MOST_CALLS = 16
"""Calls at once in one child."""


class UnitLost(RuntimeError):
    """The unit gave no result; `row` is the input row that it was at, or None if it never said.

    `company`: other units ran in the same process, so that it may have been their fault.
    """

    def __init__(self, message: str, row: int | None = None, company: bool = False) -> None:
        super().__init__(message, row, company)
        self.message, self.row, self.company = message, row, company

    def __str__(self) -> str:
        return self.message


class UnitCrashed(UnitLost):
    """The child process died: a signal, or an exit within native code."""


class UnitTimeout(UnitLost):
    """A deadline passed; the child was killed."""


class UnitError(RuntimeError):
    """The function raised; the text carries the child's traceback."""


class _Call:
    """What the parent knows of a call that is under way."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        self.row: int | None = None
        self.company = False


class _Child:
    """One child process and the thread that started it and reads its answers.

    The thread lives as long as the child: Linux sends PR_SET_PDEATHSIG when the thread that forked ends.
    """

    def __init__(self) -> None:
        self.calls: dict[int, _Call] = {}
        self.answered = False
        self.ended = False
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(started,), daemon=True, name="sandbox")
        self._reader.start()
        if error := started.get():
            raise error

    def _read(self, started: queue.SimpleQueue[BaseException | None]) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vidpipe.sandbox", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
        except BaseException as error:  # the caller's to see
            started.put(error)
            return
        started.put(None)
        with contextlib.suppress(EOFError, OSError, ValueError):  # ValueError: closed by kill()
            while True:
                number, kind, data = pickle.loads(_receive(self.process.stdout))  # type: ignore[arg-type]
                self.answered = self.answered or kind in ("ok", "error")
                with self._lock:
                    call = self.calls.get(number)
                if call is not None:
                    call.inbox.put((kind, data))
        with self._lock:
            self.ended = True
            for call in self.calls.values():
                call.company = len(self.calls) > 1
                call.inbox.put(("lost", b""))

    def start(self, request: bytes) -> tuple[int, _Call]:
        """Send a request; a child that is gone already shows in the inbox."""
        call = _Call()
        with self._lock:
            number = next(self._numbers)
            self.calls[number] = call
            if self.ended:
                call.inbox.put(("lost", b""))
                return number, call
            with contextlib.suppress(BrokenPipeError, ValueError):
                _send(self.process.stdin, number.to_bytes(8, "little") + request)  # type: ignore[arg-type]
        return number, call

    def end(self, number: int) -> None:
        """The call has its answer, or nobody waits for it any more."""
        with self._lock:
            self.calls.pop(number, None)

    def kill(self) -> int:
        """Kill the process and return its exit status."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                time.sleep(0.05)  # a crash in progress keeps its own signal
            if self.process.poll() is None:
                self.process.kill()
        code = self.process.wait()
        if threading.current_thread() is not self._reader:
            self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()
        return code


class Sandbox:
    """A child process; threads may call at once."""

    def __init__(self) -> None:
        self._child: _Child | None = None
        self._lock = threading.Lock()
        self._gate = _Gate()

    def call(
        self, function: Callable[..., Any], *args: Any, deadline_seconds: float, row_deadline_seconds: float = 1e9
    ) -> Any:
        """Run `function(*args)` in the child and return its result.

        Args:
            deadline_seconds: for the whole call; the start of a new child, and what the function spends in
                `waiting()`, come on top.
            row_deadline_seconds: from one `progress` call of the function to the next, but for what it spends in
                `working()`.

        Raises:
            UnitTimeout: a deadline passed.
            UnitCrashed: the child died.
            Exception: what the function raised, if it can be pickled; else UnitError.
        """
        request = pickle.dumps((function, args))
        try:
            with self._gate.shared():
                return self._attempt(request, deadline_seconds, row_deadline_seconds)
        except UnitLost as error:
            if not error.company:
                raise
        with self._gate.alone():
            return self._attempt(request, deadline_seconds, row_deadline_seconds)

    def _attempt(self, request: bytes, deadline_seconds: float, row_deadline_seconds: float) -> Any:
        child = self._ensure()
        allowance = 0.0 if child.answered else START_SECONDS
        end = time.monotonic() + deadline_seconds + allowance
        number, call = child.start(request)
        waits_since: float | None = None
        working = False
        try:
            while True:
                until = end if working else min(end, time.monotonic() + row_deadline_seconds + allowance)
                timeout = None if waits_since is not None else max(0.0, until - time.monotonic())
                kind, data = call.inbox.get(timeout=timeout)
                if kind == "row":
                    call.row, allowance = pickle.loads(data), 0.0
                elif kind == "waits":
                    waits_since = time.monotonic()
                elif kind == "works":
                    working = pickle.loads(data)
                elif kind == "goes on":
                    end += time.monotonic() - (waits_since or time.monotonic())
                    waits_since = None
                else:
                    break
        except queue.Empty:
            call.company = len(child.calls) > 1
            self._drop(child)
            limit = min(deadline_seconds, row_deadline_seconds)
            message = f"no answer within {limit:.0f} s; its process was killed"
            raise UnitTimeout(message, call.row, call.company) from None
        finally:
            child.end(number)
        if kind == "lost":
            code = self._drop(child)
            name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            raise UnitCrashed(f"its process died: {name}", call.row, call.company)
        if kind == "broken":
            self._drop(child)
        value = pickle.loads(data)
        if kind == "ok":
            return value
        value.unit_row = call.row  # which input row it was at, if it said so
        raise value

    def kill(self) -> int:
        """Kill the child, if any, and return its exit status."""
        with self._lock:
            child, self._child = self._child, None
        return child.kill() if child is not None else 0

    def _drop(self, child: _Child) -> int:
        """Kill a child that others may have found lost too."""
        with self._lock:
            if self._child is child:
                self._child = None
        return child.kill()

    def _ensure(self) -> _Child:
        with self._lock:
            if self._child is not None and self._child.ended:
                self._child.kill()
                self._child = None
            if self._child is None:
                self._child = _Child()
            return self._child


class _Gate:
    """Calls that run beside each other, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = 0

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Waits for those who want to be alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._inside += 1
        try:
            yield
        finally:
            self._leave()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until nobody is inside."""
        with self._changed:
            self._alone += 1
            self._changed.wait_for(lambda: not self._inside)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._alone -= 1
            self._leave()

    def _leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()


def _send(pipe: BinaryIO, data: bytes) -> None:
    pipe.write(len(data).to_bytes(8, "little") + data)
    pipe.flush()


def _receive(pipe: BinaryIO) -> bytes:
    return _read_exactly(pipe, int.from_bytes(_read_exactly(pipe, 8), "little"))


def _read_exactly(pipe: BinaryIO, count: int) -> bytes:
    data = pipe.read(count)
    if len(data) != count:
        raise EOFError
    return data


def _answer(function: Callable[..., Any], args: tuple[Any, ...], number: int) -> bytes:
    try:
        return _message(number, "ok", function(*args))
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        kind = "broken" if "CUDA error" in str(error) else "error"  # such a context fails every later call
        try:
            pickle.loads(pickle.dumps(error))
            return _message(number, kind, error)
        except Exception:  # an exception that cannot be pickled still has a text
            return _message(number, kind, UnitError("".join(traceback.format_exception(error))))


def _message(number: int, kind: str, value: Any) -> bytes:
    """The value apart, so that the parent's reader thread cannot fail to load it."""
    return pickle.dumps((number, kind, pickle.dumps(value)))


_SINK: BinaryIO | None = None
_SINK_LOCK = threading.Lock()
_NUMBER: contextvars.ContextVar[int | None] = contextvars.ContextVar("call", default=None)


def _tell(kind: str, value: Any = None) -> None:
    number = _NUMBER.get()
    if _SINK is not None and number is not None:
        _respond(_message(number, kind, value))


def _respond(data: bytes) -> None:
    assert _SINK is not None
    with _SINK_LOCK:
        _send(_SINK, data)


def progress(row: int | None) -> None:
    """Tell the parent that input row `row` is next, or (None) that work goes on; does nothing outside a child.

    A thread that the function started must run in a copy of its `contextvars` context.
    """
    _tell("row", row)


@contextlib.contextmanager
def working() -> Iterator[None]:
    """No row's deadline runs, only the call's: for work on many rows, such as the first call of a compiled model."""
    _tell("works", True)
    try:
        yield
    finally:
        _tell("works", False)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """No deadline runs while the function waits for another call; does nothing outside a child."""
    _tell("waits")
    try:
        yield
    finally:
        _tell("goes on")


def _serve(parent: int) -> None:
    """Answer calls from standard input until it ends; what the code prints goes to standard error."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    global _SINK
    _SINK = sink
    pool = ThreadPoolExecutor(MOST_CALLS, thread_name_prefix="unit")
    while True:
        try:
            request = _receive(source)
        except EOFError:
            os._exit(0)  # nobody waits for what still runs
        pool.submit(_run, request)


def _run(request: bytes) -> None:
    """One call, in a thread of its own."""
    number = int.from_bytes(request[:8], "little")
    _NUMBER.set(number)
    try:
        function, args = pickle.loads(request[8:])
    except Exception as error:  # an import error in the child is the caller's to see
        _respond(_message(number, "error", UnitError(f"cannot load the task: {error!r}")))
        return
    try:
        _respond(_answer(function, args, number))
    except SystemExit as error:
        os._exit(error.code if isinstance(error.code, int) else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


_SHARED = Sandbox()
_OWN = threading.local()


def shared() -> Sandbox:
    """This process's sandbox for units that share a child: those of a GPU."""
    return _SHARED


def own() -> Sandbox:
    """The calling thread's sandbox."""
    if not hasattr(_OWN, "sandbox"):
        _OWN.sandbox = Sandbox()
    return _OWN.sandbox


if __name__ == "__main__":
    from vidpipe import sandbox  # so that exceptions pickle under the module's own name

    sandbox._serve(int(sys.argv[1]))
