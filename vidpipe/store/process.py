"""Which process on which machine this is, precisely enough to tell a dead process from another with its number."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_STATE, _START = 0, 19  # fields of /proc/PID/stat after the command's closing parenthesis


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A process.

    Attributes:
        host: host name, for people.
        boot: this boot of this kernel and its process namespace; empty where the system does not say.
        pid: process number in that namespace.
        started: start time in clock ticks since boot; -1 where the system does not say.
    """

    host: str
    boot: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> ProcessIdentity:
        """Describe the calling process."""
        stat = _stat(os.getpid())
        return cls(host=socket.gethostname(), boot=_boot(), pid=os.getpid(), started=int(stat[_START]) if stat else -1)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ProcessIdentity:
        """Read `to_mapping`'s form."""
        return cls(**values)

    def to_mapping(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    def is_dead_here(self) -> bool:
        """True if this process was of this boot and namespace and has ended; False if it lives or if nobody knows."""
        if not self.boot or self.boot != _boot() or self.started < 0:
            return False
        stat = _stat(self.pid)
        return stat is None or stat[_STATE] in ("Z", "X") or int(stat[_START]) != self.started


@functools.cache
def _boot() -> str:
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
