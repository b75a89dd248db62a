"""Captions from files beside the video: `clip.txt`, `clip.json`, and maps `*.jsonl` in its folder.

    clip.txt        the whole text is one caption
    clip.json       "text", or {"caption" | "text" | "captions": text or list, "language": "en"}
    captions.jsonl  a line a file: {"file" | "uri" | "path" | "video": name, "caption" | "text" | "captions": ...};
                    a name is matched whole, or by its last part
In a tar, members beside the video's are read alike. A caption describes the whole file, so every clip of it gets it,
unless an entry of `captions` is an object with `start` and `end` seconds: then it goes to the clips that lie in that
span by more than half.
"""

from __future__ import annotations

import functools
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from vidpipe.captioners.base import Answer, Caption, Captioner, CaptionRequest, Row
from vidpipe.media.errors import MediaError
from vidpipe.media.files import (
    DEFAULT_STORAGE,
    MEMBER,
    is_archive,
    members_of,
    open_bytes,
    protocol_of,
    split_member,
)

TEXT_KEYS = ("caption", "text", "captions")
NAME_KEYS = ("file", "uri", "path", "video")


@dataclass(frozen=True, kw_only=True)
class SidecarConfig:
    """Parameters.

    Attributes:
        suffixes: of files with the video's stem, tried in order; all that exist are read.
        maps: read the folder's `.jsonl` maps too.
        language: BCP 47 tag where a file names none; empty if unknown.
    """

    suffixes: tuple[str, ...] = (".txt", ".json")
    maps: bool = True
    language: str = ""


@dataclass(frozen=True)
class _Found:
    text: str
    language: str | None = None
    start: float | None = None
    end: float | None = None

    def covers(self, row: Row) -> bool:
        """Whether this caption is about most of the clip."""
        if self.start is None or self.end is None:
            return True
        overlap = min(self.end, row["end_seconds"]) - max(self.start, row["start_seconds"])
        return overlap > 0.5 * (row["end_seconds"] - row["start_seconds"])


class Sidecar(Captioner):
    """Reads files; a malformed one is that clip's failure, with the file and line."""

    Config = SidecarConfig
    source = "sidecar"

    def __init__(self, config: SidecarConfig | None = None) -> None:
        self.config = config or SidecarConfig()

    def caption(self, requests: Sequence[CaptionRequest]) -> list[Answer]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: CaptionRequest) -> Answer:
        try:
            found = [f for uri in request.uris for f in self._beside(uri) if f.covers(request.row)]
        except MediaError as error:
            return error
        language = self.config.language or None
        distinct = {f.text: Caption(text=f.text, language=f.language or language) for f in found}
        return list(distinct.values())

    def _beside(self, uri: str) -> Iterator[_Found]:
        prefix, name = _prefix_and_name(uri)
        stem = PurePosixPath(name).stem
        present = names_in(prefix)
        for suffix in self.config.suffixes:
            for candidate in (stem + suffix, name + suffix):
                if candidate in present:
                    yield from read_sidecar(prefix + candidate)
        if self.config.maps:
            for candidate in sorted(present):
                if candidate.endswith(".jsonl"):
                    entries = read_map(prefix + candidate)
                    yield from entries.get(uri) or entries.get(name, ())


def _prefix_and_name(uri: str) -> tuple[str, str]:
    """What comes before a file's own name, and that name: `a/b/`, `clip.mp4`; `a.tar::`, `clip.mp4`."""
    archive, member = split_member(uri)
    folder, separator, name = (uri if member is None else member).rpartition("/")
    return ("" if member is None else archive + MEMBER) + folder + separator, name


@functools.lru_cache(maxsize=256)
def names_in(prefix: str) -> frozenset[str]:
    """Names of the text and JSON files of a folder: on a disk, in an object store or in a tar."""
    suffixes = (".txt", ".json", ".jsonl")
    archive, separator, folder = prefix.partition(MEMBER)
    if separator and is_archive(archive):
        try:
            parts = [name.rpartition("/") for name in members_of(archive, DEFAULT_STORAGE)]
        except (OSError, tarfile.TarError) as error:
            raise MediaError("io_error", f"sidecars in {archive}: {error}") from None
        names = [name for parent, slash, name in parts if parent + slash == folder]
    elif protocol_of(prefix) is None:
        try:
            names = [entry.name for entry in Path(prefix or ".").iterdir()]
        except OSError:
            return frozenset()
    else:
        import fsspec

        filesystem, path = fsspec.core.url_to_fs(prefix)
        names = [PurePosixPath(str(found)).name for found in filesystem.ls(path, detail=False)]
    return frozenset(name for name in names if name.endswith(suffixes))


def _read(uri: str) -> str:
    try:
        with open_bytes(uri) as file:
            return file.read().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise MediaError("io_error", f"sidecar {uri}: {error}") from None


@functools.lru_cache(maxsize=4096)
def read_sidecar(uri: str) -> tuple[_Found, ...]:
    """Captions of one `.txt` or `.json` file."""
    text = _read(uri)
    if not uri.endswith(".json"):
        return (_Found(" ".join(text.split())),) if text.strip() else ()
    try:
        return tuple(_captions(json.loads(text), uri))
    except json.JSONDecodeError as error:
        raise MediaError("bad_sidecar", f"sidecar {uri}: not JSON: {error}") from None


@functools.lru_cache(maxsize=64)
def read_map(uri: str) -> dict[str, tuple[_Found, ...]]:
    """Captions of a `.jsonl` map by file name; a file of other JSON lines is no map and gives nothing."""
    found: dict[str, tuple[_Found, ...]] = {}
    for number, line in enumerate(_read(uri).split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise MediaError("bad_sidecar", f"sidecar {uri}:{number}: not JSON: {error}") from None
        if not is_map_entry(record):
            continue
        name = next(str(record[key]) for key in NAME_KEYS if record.get(key))
        captions = tuple(_captions(record, f"{uri}:{number}"))
        for key in {name, PurePosixPath(name).name}:
            found[key] = (*found.get(key, ()), *captions)
    return found


def is_map_entry(record: Any) -> bool:
    """Whether a JSON line names a file and a caption."""
    return (
        isinstance(record, dict)
        and any(isinstance(record.get(k), str) for k in NAME_KEYS)
        and any(record.get(k) for k in TEXT_KEYS)
    )


def _captions(value: Any, where: str) -> Iterator[_Found]:
    """Captions of a JSON value: text, a list of values, or an object."""
    if isinstance(value, str):
        if value.strip():
            yield _Found(" ".join(value.split()))
    elif isinstance(value, list):
        for item in value:
            yield from _captions(item, where)
    elif isinstance(value, Mapping):
        language, start, end = value.get("language"), value.get("start"), value.get("end")
        if not all(t is None or (isinstance(t, (int, float)) and not isinstance(t, bool)) for t in (start, end)):
            raise MediaError(
                "bad_sidecar", f"sidecar {where}: start and end: expected seconds, found {start!r}, {end!r}"
            )
        if not isinstance(language, (str, type(None))):
            raise MediaError("bad_sidecar", f"sidecar {where}: language: expected text, found {language!r}")
        for key in TEXT_KEYS:
            for inner in _captions(value.get(key), where):
                yield _Found(
                    inner.text,
                    inner.language or language,
                    start if inner.start is None else inner.start,
                    end if inner.end is None else inner.end,
                )
    elif value is not None:
        raise MediaError("bad_sidecar", f"sidecar {where}: expected text, a list or an object, found {value!r}")
