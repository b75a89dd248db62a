"""Named steps of the protocol at which a test can kill or pause the process.

`VIDPIPE_FAILPOINT=NAME:N[:ACTION]` acts at the N-th pass (from 1) of step NAME in this process: `kill` (the default)
sends SIGKILL to itself, `stop` SIGSTOP, `raise` raises OSError. Several are separated by commas. Unset, a step costs
one dictionary look-up.
"""

from __future__ import annotations

import os
import signal

_VARIABLE = "VIDPIPE_FAILPOINT"


def _parse(text: str) -> dict[str, list[tuple[int, str]]]:
    plan: dict[str, list[tuple[int, str]]] = {}
    for part in filter(None, text.split(",")):
        *name, last = part.split(":")
        action = "kill"
        if not last.isdigit():
            action = last
            last = name.pop()
        if action not in ("kill", "stop", "raise") or not name:
            raise ValueError(f"{_VARIABLE}={part!r}: expected NAME:N[:kill|stop|raise]")
        plan.setdefault(":".join(name), []).append((int(last), action))
    return plan


_plan = _parse(os.environ.get(_VARIABLE, ""))
_passes: dict[str, int] = {}


def reach(step: str) -> None:
    """Pass `step`; do what the environment asks for at this pass, if anything."""
    if step not in _plan:
        return
    _passes[step] = _passes.get(step, 0) + 1
    for at, action in _plan[step]:
        if at == _passes[step]:
            _act(step, action)


def _act(step: str, action: str) -> None:
    if action == "raise":
        raise OSError(f"failpoint {step}")
    os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
