"""Keep rows of an object store on a local disk, up to a size: a file a row, the longest unused removed first."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

CHECK_SHARE = 32
"""The folder's size is looked at again after so small a share of the limit was added by one process."""


class RowCache:
    """A folder of rows that several processes share.

    Args:
        folder: made if it is not there.
        limit_bytes: the folder is brought under it when it has grown past it; at most a few percent over in between.
    """

    def __init__(self, folder: str | Path, limit_bytes: int) -> None:
        self.folder = Path(folder)
        self.limit_bytes = limit_bytes
        self._added = 0
        self.folder.mkdir(parents=True, exist_ok=True)

    def _path(self, key: str) -> Path:
        name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        return self.folder / name[:2] / name[2:]

    def get(self, key: str, out: memoryview) -> bool:
        """Read a row of exactly `out`'s size into it; whether it was there."""
        path = self._path(key)
        try:
            with open(path, "rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != len(out) or file.readinto(out) != len(out):
                    return False
            os.utime(path)
        except OSError:
            return False
        return True

    def put(self, key: str, data: bytes) -> None:
        """Keep a row; a full disk keeps nothing."""
        path = self._path(key)
        work = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(exist_ok=True)
            work.write_bytes(data)
            work.rename(path)
        except OSError:
            work.unlink(missing_ok=True)
            return
        self._added += len(data)
        if self._added > self.limit_bytes // CHECK_SHARE:
            self._added = 0
            self.trim()

    def trim(self) -> None:
        """Remove the rows longest unused until nine tenths of the limit are left; one process at a time does it."""
        with open(self.folder / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            found = sorted((s.st_mtime_ns, s.st_size, str(p)) for p, s in _files(self.folder))
            excess = sum(size for _, size, _ in found) - self.limit_bytes
            if excess <= 0:
                return
            excess += self.limit_bytes // 10
            for _, size, path in found:
                if excess <= 0:
                    break
                Path(path).unlink(missing_ok=True)
                excess -= size


def _files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    found = []
    for shard in folder.iterdir():
        if shard.is_dir():
            for path in shard.iterdir():
                try:
                    found.append((path, path.stat()))
                except FileNotFoundError:
                    continue
    return found
