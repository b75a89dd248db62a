"""Opening a source's bytes: local paths, fsspec URIs, and members of tar archives (`archive.tar::member`)."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from schemas.errors import UserError
from vidpipe.media.errors import MediaError

MEMBER = "::"
READ_BYTES = 1 << 20
"""Block of remote reads, and of tar members."""


@dataclass(frozen=True, kw_only=True)
class StorageConfig:
    """How remote files are read.

    Attributes:
        options: fsspec options of each protocol, such as `{"s3": {"anon": True}}`.
        connect_timeout_seconds: until a connection stands; given to s3 and http file systems.
        read_timeout_seconds: until bytes come.
    """

    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    connect_timeout_seconds: float = 10.0
    read_timeout_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.connect_timeout_seconds <= 0 or self.read_timeout_seconds <= 0:
            raise UserError("storage: timeouts must be positive")

    def for_protocol(self, protocol: str) -> dict[str, Any]:
        """fsspec options of one protocol, timeouts included where its file system takes them."""
        options = dict(self.options.get(protocol, {}))
        if protocol in ("s3", "s3a"):
            config = {"connect_timeout": self.connect_timeout_seconds, "read_timeout": self.read_timeout_seconds}
            options["config_kwargs"] = {**config, **options.get("config_kwargs", {})}
        elif protocol in ("http", "https"):
            import aiohttp

            timeout = aiohttp.ClientTimeout(
                sock_connect=self.connect_timeout_seconds, sock_read=self.read_timeout_seconds
            )
            options["client_kwargs"] = {"timeout": timeout, **options.get("client_kwargs", {})}
        return options


DEFAULT_STORAGE = StorageConfig()


def split_member(uri: str) -> tuple[str, str | None]:
    """`archive.tar::member` to its parts; (uri, None) for anything else, so that `::` in other names is left alone."""
    archive, separator, member = uri.partition(MEMBER)
    if separator and member and is_archive(archive):
        return archive, member
    return uri, None


def is_archive(uri: str) -> bool:
    """Whether the name says a tar: `.tar` alone, since members of compressed ones cannot be read at random."""
    return uri.lower().endswith(".tar")


def protocol_of(uri: str) -> str | None:
    """fsspec protocol, or None for a local path (`file://` too)."""
    head, separator, _ = uri.partition("://")
    if not separator or head == "file" or not head.replace("+", "").replace("-", "").isalnum():
        return None
    return head


def local_path(uri: str) -> str | None:
    """Path of a local file; None for remote URIs and archive members."""
    if split_member(uri)[1] is not None or protocol_of(uri) is not None:
        return None
    return uri.removeprefix("file://")


class Section(io.RawIOBase):
    """A span of a seekable file, as a file: an uncompressed member of a tar."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._position = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), max(0, self._size - self._position))
        self._file.seek(self._start + self._position)
        data = self._file.read(length)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def open_bytes(uri: str, storage: StorageConfig = DEFAULT_STORAGE) -> BinaryIO:
    """Open a source for reading at random.

    Raises:
        OSError: in the system's or the store's own words; also for a file that is not regular (FIFO, socket, device),
            which is refused rather than waited for, and for a member that its archive lacks.
    """
    archive, member = split_member(uri)
    if member is None:
        return _open_plain(uri, storage)
    try:
        start, size = members_of(archive, storage)[member]
    except KeyError:
        raise FileNotFoundError(f"{archive} has no member {member!r}") from None
    except tarfile.TarError as error:
        raise OSError(f"{archive}: not a readable tar: {error}") from None
    return io.BufferedReader(Section(_open_plain(archive, storage), start, size), READ_BYTES)


def _open_plain(uri: str, storage: StorageConfig) -> Any:
    protocol = protocol_of(uri)
    if protocol is None:
        path = uri.removeprefix("file://")
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise OSError(f"{uri}: not a regular file")
        return open(path, "rb")
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(uri, **storage.for_protocol(protocol))
    return filesystem.open(path, "rb", block_size=READ_BYTES)  # an option of the file, not of every file system


@contextmanager
def as_os_errors() -> Iterator[None]:
    """Stores raise what their clients raise (botocore's, aiohttp's, ...): make OSError of it."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # any client's own class; nothing is hidden, its words are kept
        raise OSError(f"{type(error).__name__}: {error}") from error


class _Remote(io.BufferedIOBase):
    """A remote file whose every failure is an OSError."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with as_os_errors():
            return int(self._file.seek(offset, whence))

    def read(self, size: int | None = -1) -> bytes:
        with as_os_errors():
            return bytes(self._file.read(-1 if size is None else size))

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@lru_cache(maxsize=64)
def _member_table(archive: str, _identity: Any) -> dict[str, tuple[int, int]]:
    with _open_plain(archive, DEFAULT_STORAGE) as file:
        return read_members(file)


def members_of(archive: str, storage: StorageConfig) -> dict[str, tuple[int, int]]:
    """Name to (offset, size) of a tar's regular members; kept while a local tar stays as it is.

    Raises:
        OSError: it cannot be read.
        tarfile.TarError: it is no tar.
    """
    path = local_path(archive)
    if path is not None:
        status = Path(path).stat()
        return _member_table(archive, (status.st_size, status.st_mtime_ns))
    with _open_plain(archive, storage) as file:
        return read_members(file)


def read_members(file: BinaryIO) -> dict[str, tuple[int, int]]:
    """Name to (offset, size) of a tar's regular members. Reads headers only; a truncated tar gives what is whole."""
    members: dict[str, tuple[int, int]] = {}
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for info in tar:
                if info.isreg() and not info.issparse():
                    members[info.name] = (info.offset_data, info.size)
    except tarfile.ReadError:
        if not members:
            raise
    return members


@contextmanager
def io_errors(uri: str) -> Iterator[None]:
    """Turn what the operating system or a remote store raises into MediaError `io_error`."""
    try:
        yield
    except (OSError, EOFError) as error:
        told = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise MediaError("io_error", told if uri in told else f"{uri}: {told}") from None
