"""Whether a file is still the one that ingest named: `videos` says where it was, and what its etag was then."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas import ids
from vidpipe.media.errors import MediaError
from vidpipe.media.files import (
    DEFAULT_STORAGE,
    StorageConfig,
    as_os_errors,
    io_errors,
    local_path,
    members_of,
    open_bytes,
    protocol_of,
    split_member,
)


def location(row: Mapping[str, Any], storage: StorageConfig = DEFAULT_STORAGE) -> str:
    """The first of a row's `uris` that is there and is the file that ingest saw.

    Raises:
        MediaError: `io_error` or `changed`, of the last of them, if there is none.
    """
    *others, last = row["uris"]
    for uri in others:
        try:
            check_unchanged(uri, row, storage)
            return uri
        except MediaError:
            continue
    check_unchanged(last, row, storage)
    return last


def check_unchanged(uri: str, row: Mapping[str, Any], storage: StorageConfig = DEFAULT_STORAGE) -> None:
    """Raise MediaError `changed` if other content is at `uri` than `video_id` names; `io_error` if nothing is.

    An equal etag is believed, at the price of one `stat`, or one request to a store. Another one, as after a copy that
    lost the times, is not: then the content's name is made again. A row without etags is not checked.
    """
    was = dict(zip(row["uris"], row.get("etags") or ())).get(uri)
    if was is None:
        return
    with io_errors(uri):
        if etag_of(uri, storage) == was:
            return
        with open_bytes(uri, storage) as file:
            found = ids.content_id(file, file.seek(0, os.SEEK_END))
    if found != row["video_id"]:
        raise MediaError("changed", f"{uri}: not the file that ingest saw; ingest it again, or bring the old one back")


def etag_of(uri: str, storage: StorageConfig = DEFAULT_STORAGE) -> str:
    """What changes when the content does: the store's etag, or size and mtime; of an archive's member its place too.

    Raises:
        OSError: nothing is there.
    """
    archive, member = split_member(uri)
    if member is not None:
        try:
            span = members_of(archive, storage).get(member)
        except tarfile.TarError as error:
            raise OSError(f"{archive}: not a readable tar: {error}") from None
        if span is None:
            raise FileNotFoundError(f"{archive} has no member {member!r}")
        return f"{etag_of(archive, storage)}@{span[0]}"
    local = local_path(uri)
    if local is not None:
        return local_etag(Path(local).stat())
    import fsspec

    with as_os_errors():
        filesystem, path = fsspec.core.url_to_fs(uri, **storage.for_protocol(protocol_of(uri) or ""))
        return remote_etag(filesystem.info(path))


def local_etag(status: os.stat_result) -> str:
    """Of a file on a disk."""
    return f"{status.st_size}-{status.st_mtime_ns}"


def remote_etag(info: Mapping[str, Any]) -> str:
    """Of what fsspec says about an object."""
    size = -1 if info.get("size") is None else int(info["size"])
    changed = info.get("mtime") or info.get("LastModified") or info.get("created") or ""
    return str(info.get("ETag") or info.get("etag") or f"{size}-{changed}").strip('"')
