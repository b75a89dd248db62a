"""A file is the one that ingest named, or its row is told so."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import pytest

from schemas import ids
from vidpipe.media.errors import MediaError
from vidpipe.media.identity import check_unchanged, etag_of, location
from vidpipe.media.sources import list_sources


def row_of(*uris: str) -> dict[str, Any]:
    """The row of `videos` that ingest would make of equal files."""
    etags = [next(f.etag for f in list_sources(uri) if f.uri == uri) for uri in uris]
    path = Path(uris[0].partition("::")[0])
    name = ids.content_id(io.BytesIO(path.read_bytes()), path.stat().st_size) if path.suffix != ".tar" else b""
    return {"video_id": name, "uris": list(uris), "etags": etags}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / name).write_bytes(b"the same")
    return [str(tmp_path / "a.mp4"), str(tmp_path / "b.mp4")]


def reason(uri: str, row: dict[str, Any]) -> str:
    with pytest.raises(MediaError) as error:
        check_unchanged(uri, row)
    assert uri in str(error.value)
    return error.value.reason


def test_the_first_place_that_is_unchanged(files: list[str]) -> None:
    row = row_of(*files)
    assert location(row) == files[0]
    Path(files[0]).write_bytes(b"another")
    assert reason(files[0], row) == "changed" and location(row) == files[1]
    Path(files[1]).unlink()
    assert reason(files[1], row) == "io_error"
    with pytest.raises(MediaError, match=r"b\.mp4: No such file"):
        location(row)


def test_another_time_is_no_other_file(files: list[str]) -> None:
    row = row_of(files[0])
    os.utime(files[0], ns=(1, 1))
    assert etag_of(files[0]) != row["etags"][0]
    check_unchanged(files[0], row)


def test_a_row_without_etags_is_not_checked(files: list[str]) -> None:
    assert location({"uris": [files[0]], "video_id": b"x"}) == files[0]


def test_members_of_a_tar(tmp_path: Path) -> None:
    def make(data: bytes) -> None:
        with tarfile.open(tmp_path / "set.tar", "w") as tar:
            info = tarfile.TarInfo("a.mp4")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

    make(b"first")
    uri = f"{tmp_path}/set.tar::a.mp4"
    row = {**row_of(uri), "video_id": ids.content_id(io.BytesIO(b"first"), 5)}
    check_unchanged(uri, row)
    make(b"other")
    os.utime(tmp_path / "set.tar", ns=(1, 1))
    assert reason(uri, row) == "changed"
    (tmp_path / "set.tar").write_bytes(b"no tar")
    assert reason(uri, row) == "io_error"


def test_objects_of_a_store() -> None:
    store = fsspec.filesystem("memory")
    store.pipe_file("/identity/a.mp4", b"first")
    (file,) = list_sources("memory://identity/a.mp4")
    row = {"video_id": ids.content_id(io.BytesIO(b"first"), 5), "uris": [file.uri], "etags": [file.etag]}
    assert etag_of(file.uri) == file.etag
    store.pipe_file("/identity/a.mp4", b"other")
    assert reason(file.uri, row) == "changed"
    store.rm("/identity/a.mp4")
    assert reason(file.uri, row) == "io_error"
