"""Small files beside the tables, on a local folder or an object store, with exclusive creation.

Lance has its own object store; these go through fsspec. Both get their credentials from one place: the Lance-style
`storage_options` of the dataset, completed from the AWS variables of the environment.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.errors import UserError
from schemas.storage import complete_options

_PROBED: set[str] = set()


def is_local(root: str) -> bool:
    """Whether `root` is a path rather than an object store's URI."""
    return "://" not in root or root.startswith("file://")


def _fsspec_options(root: str, options: Mapping[str, str]) -> dict[str, Any]:
    if not root.startswith("s3"):
        return {}
    made: dict[str, Any] = {"use_listings_cache": False}
    for ours, theirs in (
        ("aws_access_key_id", "key"),
        ("aws_secret_access_key", "secret"),
        ("aws_session_token", "token"),
        ("aws_endpoint", "endpoint_url"),
    ):
        if options.get(ours):
            made[theirs] = options[ours]
    if options.get("aws_region"):
        made["client_kwargs"] = {"region_name": options["aws_region"]}
    return made


def storage_errors() -> tuple[type[Exception], ...]:
    """What reading or writing may raise: botocore's own errors, such as missing credentials, are no OSErrors."""
    botocore = sys.modules.get("botocore.exceptions")
    return (OSError, botocore.BotoCoreError) if botocore else (OSError,)


class Files:
    """Files under a dataset's root, by path relative to it.

    Args:
        root: folder or object store URI.
        options: Lance storage options; `complete_options` adds the environment's.
    """

    def __init__(self, root: str, options: Mapping[str, str] | None = None):
        self.root = root.removeprefix("file://").rstrip("/") if is_local(root) else root.rstrip("/")
        self.options = complete_options(root, options)
        self.local = is_local(root)

    @functools.cached_property
    def _fs(self) -> Any:
        import fsspec

        try:
            return fsspec.filesystem(self.root.split("://", 1)[0], **_fsspec_options(self.root, self.options))
        except (ImportError, ValueError) as error:  # a client that is not installed, a protocol that nobody knows
            raise UserError(f"{self.root}: {error}") from None

    def path(self, name: str) -> str:
        """Full path or URI of `name`."""
        return f"{self.root}/{name}" if name else self.root

    def read(self, name: str) -> bytes | None:
        """Bytes of a file; None if there is none."""
        try:
            return Path(self.path(name)).read_bytes() if self.local else self._fs.cat_file(self.path(name))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def exists(self, name: str) -> bool:
        """Whether a file is there."""
        return Path(self.path(name)).exists() if self.local else self._fs.exists(self.path(name))

    def write(self, name: str, data: bytes) -> None:
        """Write a file, replacing one that is there; a reader sees the old or the new one, never a part."""
        if self.local:
            self._write_hidden(name, data).replace(self.path(name))
        else:
            self._fs.pipe_file(self.path(name), data)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless one is there; False if it was. Exactly one of several callers gets True."""
        if not self.local:
            self.require_exclusive_put()
            return self._put_new(name, data)
        hidden = self._write_hidden(name, data)
        try:
            os.link(hidden, self.path(name))  # the file appears whole or not at all
        except FileExistsError:
            return False
        finally:
            hidden.unlink()
        return True

    def _write_hidden(self, name: str, data: bytes) -> Path:
        path = Path(self.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".tmp-{uuid.uuid4().hex}")
        hidden.write_bytes(data)
        return hidden

    def _put_new(self, name: str, data: bytes) -> bool:
        try:
            self._fs.pipe_file(self.path(name), data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if "PreconditionFailed" in str(error) or "precondition" in str(error).lower():
                return False
            raise
        return True

    def require_exclusive_put(self) -> None:
        """Raise UserError unless this object store refuses a second put with `If-None-Match: *`; asked once a process.

        A store that ignores the condition would lose commits silently, since Lance's rest on it.
        """
        store = "/".join(self.root.split("/")[:3]) + self.options.get("aws_endpoint", "")
        if self.local or store in _PROBED:
            return
        name = f".probe-{uuid.uuid4().hex}"
        try:
            refused = self._put_new(name, b"1") and not self._put_new(name, b"2")
        finally:
            self.remove(name)
        if not refused:
            raise UserError(
                f"{self.root}: this object store ignores `If-None-Match: *`, so commits could be lost; "
                "use one with conditional puts (S3, GCS, Azure, MinIO, Ceph 19 or later)"
            )
        _PROBED.add(store)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            Path(self.path(name)).unlink() if self.local else self._fs.rm_file(self.path(name))

    def list(self, folder: str = "") -> list[str]:
        """Names of files and folders right under `folder`, relative to it, sorted; empty if there is none."""
        try:
            if self.local:
                return sorted(entry.name for entry in Path(self.path(folder)).iterdir())
            found = self._fs.ls(self.path(folder), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted({item.rstrip("/").rsplit("/", 1)[-1] for item in found} - {""})
