"""Runs a unit of work in a child process that can be killed: a decoder that hangs or crashes takes one unit with it.

The child is started once and kept (imports of torch cost seconds); after a deadline or a crash the next call starts
another. Plain subprocess with length-prefixed pickles on two pipes, because Dask's workers are daemonic and may not
have `multiprocessing` children. The child dies with its parent: end of file on its input, and PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

START_SECONDS = 120.0
"""Allowance for the imports of a new child, beside the first call's own deadline."""


class UnitLost(RuntimeError):
    """The unit gave no result; `row` is the input row that it was at, or None if it never said."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message, row)
        self.message, self.row = message, row

    def __str__(self) -> str:
        return self.message


class UnitCrashed(UnitLost):
    """The child process died: a signal, or an exit within native code."""


class UnitTimeout(UnitLost):
    """A deadline passed; the child was killed."""


class UnitError(RuntimeError):
    """The function raised; the text carries the child's traceback."""


class Sandbox:
    """One child process that runs one call at a time."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._started = False

    def call(
        self, function: Callable[..., Any], *args: Any, deadline_seconds: float, row_deadline_seconds: float = 1e9
    ) -> Any:
        """Run `function(*args)` in the child and return its result.

        Args:
            deadline_seconds: for the whole call; the start of a new child comes on top.
            row_deadline_seconds: from one `progress` call of the function to the next.

        Raises:
            UnitTimeout: a deadline passed.
            UnitCrashed: the child died.
            Exception: what the function raised, if it can be pickled; else UnitError.
        """
        child = self._ensure()
        row = None
        allowance = 0.0 if self._started else START_SECONDS
        end = time.monotonic() + deadline_seconds + allowance
        try:
            _send(child.stdin, pickle.dumps((function, args)))  # type: ignore[arg-type]
            while True:
                until = min(end, time.monotonic() + row_deadline_seconds + allowance)
                kind, value = pickle.loads(_receive(child.stdout, until))  # type: ignore[arg-type]
                if kind != "row":
                    break
                row, allowance = value, 0.0
        except TimeoutError:
            self.kill()
            limit = min(deadline_seconds, row_deadline_seconds)
            raise UnitTimeout(f"no answer within {limit:.0f} s; its process was killed", row) from None
        except (EOFError, BrokenPipeError):
            code = self.kill()
            name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            raise UnitCrashed(f"its process died: {name}", row) from None
        self._started = True
        if kind == "ok":
            return value
        value.unit_row = row  # which input row it was at, if it said so
        raise value

    def kill(self) -> int:
        """Kill the child, if any, and return its exit status."""
        child, self._child, self._started = self._child, None, False
        if child is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            if child.poll() is None:
                time.sleep(0.05)  # a crash in progress keeps its own signal
            if child.poll() is None:
                child.kill()
        code = child.wait()
        for pipe in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()
        return code

    def _ensure(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self.kill()
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            self._child = subprocess.Popen(
                [sys.executable, "-m", "vidpipe.sandbox", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
        return self._child


def _send(pipe: BinaryIO, data: bytes) -> None:
    pipe.write(len(data).to_bytes(8, "little") + data)
    pipe.flush()


def _receive(pipe: BinaryIO, until: float) -> bytes:
    def read(count: int) -> bytes:
        chunks = []
        while count:
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError
            chunk = os.read(pipe.fileno(), min(count, 1 << 20))
            if not chunk:
                raise EOFError
            chunks.append(chunk)
            count -= len(chunk)
        return b"".join(chunks)

    return read(int.from_bytes(read(8), "little"))


def _read_exactly(pipe: BinaryIO, count: int) -> bytes:
    data = pipe.read(count)
    if len(data) != count:
        raise EOFError
    return data


def _answer(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps(("ok", function(*args)))
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        try:
            data = pickle.dumps(("error", error))
            pickle.loads(data)
            return data
        except Exception:  # an exception that cannot be pickled still has a text
            return pickle.dumps(("error", UnitError("".join(traceback.format_exception(error)))))


_SINK: BinaryIO | None = None


def progress(row: int | None) -> None:
    """Tell the parent that input row `row` is next, or (None) that work goes on; does nothing outside a child."""
    if _SINK is not None:
        _send(_SINK, pickle.dumps(("row", row)))


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
    while True:
        try:
            size = int.from_bytes(_read_exactly(source, 8), "little")
            request = _read_exactly(source, size)
        except EOFError:
            return
        try:
            function, args = pickle.loads(request)
        except Exception as error:  # an import error in the child is the caller's to see
            _send(sink, pickle.dumps(("error", UnitError(f"cannot load the task: {error!r}"))))
            continue
        _send(sink, _answer(function, args))


_SHARED: Sandbox | None = None


def shared() -> Sandbox:
    """This process's own sandbox, started at the first call."""
    global _SHARED
    if _SHARED is None:
        _SHARED = Sandbox()
    return _SHARED


if __name__ == "__main__":
    from vidpipe import sandbox  # so that exceptions pickle under the module's own name

    sandbox._serve(int(sys.argv[1]))
