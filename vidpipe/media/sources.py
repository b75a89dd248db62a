"""What there is to ingest: paths, globs, list files, object-store prefixes, tar archives and clip tables."""

from __future__ import annotations

import csv
import fnmatch
import glob
import io
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import pyarrow as pa

from schemas.errors import UserError, nearest
from vidpipe.media.files import (
    DEFAULT_STORAGE,
    MEMBER,
    StorageConfig,
    is_archive,
    open_bytes,
    protocol_of,
    read_members,
    split_member,
)
from vidpipe.media.identity import local_etag, remote_etag

Kind = Literal["video", "image", "sidecar", "clip_table", "archive", "other"]

IMAGES = frozenset(("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "avif", "heic", "jxl"))
TEXTS = frozenset(("txt", "json", "jsonl"))
TABLES = frozenset(("csv", "parquet", "tsv"))
_VIDEOS = """
    3g2 3gp asf avi divx dv f4v flv gif ivf m1v m2ts m2v m4v mjpeg mkv mov mp4 mpe mpeg mpg mts mxf ogm ogv ps qt
    rm rmvb ts vob webm wmv y4m 264 265 h264 h265 hevc obu
"""
VIDEOS = frozenset(_VIDEOS.split())
LIST_SUFFIXES = (".txt", ".jsonl")


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A regular file, object or archive member.

    Attributes:
        uri: path or URI, or `archive.tar::member`; unique in a listing.
        size_bytes: its length; -1 where a store does not say.
        etag: changes when the content does: the store's etag, or size and mtime.
        kind_hint: what its name suggests; probing decides.
    """

    uri: str
    size_bytes: int
    etag: str
    kind_hint: Kind


def kind_hint(name: str) -> Kind:
    """What a file name's suffix suggests."""
    suffix = PurePosixPath(name).suffix.lower().removeprefix(".")
    archives = frozenset(("tar",))
    groups: tuple[tuple[frozenset[str], Kind], ...] = (
        (VIDEOS, "video"), (IMAGES, "image"), (TEXTS, "sidecar"), (TABLES, "clip_table"), (archives, "archive"),
    )  # fmt: skip
    return next((kind for group, kind in groups if suffix in group), "other")


def list_sources(source: str, recursive: bool = True, storage: StorageConfig = DEFAULT_STORAGE) -> Iterator[SourceFile]:
    """List regular files in one order, the same on each call: sorted by URI (a list file keeps its own order).

    Args:
        source: a folder or file, a glob (`*`, `?`, `[`, `**`), a list file (`.txt`: a line each, `#` starts a comment;
            `.jsonl`: an object each with `uri`), an object-store prefix or object, a `.tar` (its members) or one member
            of it (`archive.tar::member`).
        recursive: descend into folders. Links to folders are not followed, so that a loop cannot catch us.
    Raises:
        UserError: nothing is there, or a list file is malformed.
    """
    if split_member(source)[1] is not None and not Path(source).exists():
        yield from _one_member(source, storage)
        return
    if protocol_of(source) is not None:
        yield from _expand(_remote(source, recursive, storage), storage)
        return
    path = source.removeprefix("file://")
    if not path:
        raise UserError("source '': expected a path, found nothing; the current folder is `.`")
    if Path(path).is_dir():
        yield from _expand(_walk(path, recursive), storage)
    elif Path(path).is_file():
        if path.lower().endswith(LIST_SUFFIXES):
            yield from _from_list(path, recursive, storage)
        else:
            yield from _expand(_local(path), storage)
    elif any(c in path for c in "*?["):
        yield from _expand(_glob(path, recursive), storage)
    else:
        raise UserError(f"source {source!r}: no such file or folder")


def _expand(files: Iterable[SourceFile], storage: StorageConfig) -> Iterator[SourceFile]:
    for file in files:
        yield file
        if file.kind_hint == "archive":
            yield from list_members(file, storage)


def _one_member(source: str, storage: StorageConfig) -> Iterator[SourceFile]:
    archive, _ = split_member(source)
    found = [file for file in list_sources(archive, storage=storage) if file.uri == source]
    if not found:
        raise UserError(f"source {source!r}: {archive} has no such member")
    yield from found


def list_members(archive: SourceFile, storage: StorageConfig = DEFAULT_STORAGE) -> list[SourceFile]:
    """Regular members of a tar, sorted; none where it is not a readable tar (the archive's own row says so)."""
    import tarfile

    with open_bytes(archive.uri, storage) as file:
        try:
            members = read_members(file)
        except tarfile.TarError:
            return []
    return [
        SourceFile(
            uri=f"{archive.uri}{MEMBER}{name}",
            size_bytes=size,
            etag=f"{archive.etag}@{start}",
            kind_hint=kind_hint(name),
        )
        for name, (start, size) in sorted(members.items())
    ]


def _local(path: str) -> Iterator[SourceFile]:
    try:
        status = Path(path).stat()
    except OSError:
        return  # gone since it was listed, or a dangling link
    if stat.S_ISREG(status.st_mode):
        etag = local_etag(status)
        yield SourceFile(uri=_as_text(path), size_bytes=status.st_size, etag=etag, kind_hint=kind_hint(path))


def _as_text(path: str) -> str:
    r"""The path, with bytes that are no UTF-8 as `\xff`: no table can hold them. Opening such a file then fails, and
    its outcome shows the name."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _walk(folder: str, recursive: bool) -> Iterator[SourceFile]:
    """Depth first, entries sorted so that full paths come out sorted by their parts."""
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.name)
    except (FileNotFoundError, NotADirectoryError):
        return  # gone since it was listed
    except OSError as error:
        raise UserError(f"source {folder!r}: {error.strerror}") from None
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if recursive:
                yield from _walk(entry.path, recursive)
        else:
            yield from _local(entry.path)


def _glob(pattern: str, recursive: bool) -> Iterator[SourceFile]:
    found = _matches(pattern)
    if not found:
        raise UserError(f"source {pattern!r}: nothing matches")
    seen: set[str] = set()
    for path in found:
        for file in _walk(path, recursive) if Path(path).is_dir() else _local(path):
            if file.uri not in seen:
                seen.add(file.uri)
                yield file


def _matches(pattern: str) -> list[str]:
    """Paths that a glob matches, sorted. `**` goes through folders, not through links to them."""
    if "**" not in pattern:
        return sorted(glob.glob(pattern))  # noqa: PTH207 - a pattern may be absolute
    parts = pattern.split("/")
    first = next(i for i, part in enumerate(parts) if any(c in part for c in "*?["))
    root = "/".join(parts[:first]) or ("/" if pattern.startswith("/") else ".")
    rest = "".join("(?:[^/]+/)*" if part == "**" else _component(part) + "/" for part in parts[first:])
    matcher = re.compile(f"(?s:{rest})")
    return [f.uri for f in _walk(root, True) if matcher.fullmatch(f"{os.path.relpath(f.uri, root)}/")]


def _component(part: str) -> str:
    """Regular expression of one path component of a glob."""
    return fnmatch.translate(part).removeprefix("(?s:").removesuffix(r")\Z").replace(".*", "[^/]*")


def _remote(source: str, recursive: bool, storage: StorageConfig) -> Iterator[SourceFile]:
    import fsspec

    protocol = protocol_of(source)
    assert protocol is not None
    filesystem, path = fsspec.core.url_to_fs(source, **storage.for_protocol(protocol))
    try:
        if any(c in path for c in "*?["):
            found = filesystem.glob(path, detail=True)
        elif filesystem.isfile(path):
            found = {path: filesystem.info(path)}
        else:
            found = filesystem.find(path, maxdepth=None if recursive else 1, detail=True)
    except (OSError, ValueError) as error:
        raise UserError(f"source {source!r}: {error}") from None
    files = {name: info for name, info in found.items() if info.get("type") == "file"}
    if not files:
        raise UserError(f"source {source!r}: nothing is there")
    for name in sorted(files):
        info = files[name]
        size = -1 if info.get("size") is None else int(info["size"])
        uri = name if "://" in name else f"{protocol}://{name.lstrip('/')}"
        yield SourceFile(uri=uri, size_bytes=size, etag=remote_etag(info), kind_hint=kind_hint(name))


def _from_list(path: str, recursive: bool, storage: StorageConfig) -> Iterator[SourceFile]:
    """Entries in the list's order; a relative path is relative to the list. An entry met twice is listed once."""
    seen: set[str] = set()
    for number, entry in _list_entries(path):
        remote = protocol_of(entry) is not None or Path(entry).is_absolute()
        target = entry if remote else str(Path(path).parent / entry)
        if target.lower().endswith(LIST_SUFFIXES):
            raise UserError(f"{path}:{number}: {entry!r} is itself a list or text file; name media files or folders")
        try:
            for file in list_sources(target, recursive, storage):
                if file.uri not in seen:
                    seen.add(file.uri)
                    yield file
        except UserError as error:
            raise UserError(f"{path}:{number}: {error}") from None


def _lines(text: str) -> list[str]:
    """Lines as editors count them: `str.splitlines` also cuts at U+2028 and others, which names and JSON may hold."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _list_entries(path: str) -> Iterator[tuple[int, str]]:
    try:
        lines = _lines(Path(path).read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise UserError(f"list {path}: not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"list {path}: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or (text.startswith("#") and not path.lower().endswith(".jsonl")):
            continue
        if path.lower().endswith(".jsonl"):
            record = _json_object(text, f"{path}:{number}")
            uri = record.get("uri")
            if not isinstance(uri, str):
                raise UserError(f'{path}:{number}: expected an object with a string "uri", found {text[:80]}')
            text = uri
        yield number, text


def _json_object(text: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected a JSON object, found {text[:80]}")
    return record


def find_sidecars(sources: Iterable[SourceFile]) -> dict[str, list[str]]:
    """Text and JSON files beside a video or image with its stem (`clip.mp4`: `clip.txt`, `clip.mp4.json`).

    Returns:
        media URI to sidecar URIs, sorted; media without a sidecar is left out. `.jsonl` maps are not matched by name.
    """
    media: dict[tuple[str, str], list[str]] = {}
    sidecars = []
    for file in sources:
        folder, name = _folder_and_name(file.uri)
        if file.kind_hint in ("video", "image"):
            for stem in (name, PurePosixPath(name).stem):
                media.setdefault((folder, stem), []).append(file.uri)
        elif file.kind_hint == "sidecar" and not name.lower().endswith(".jsonl"):
            sidecars.append((folder, PurePosixPath(name).stem, file.uri))
    found: dict[str, list[str]] = {}
    for folder, stem, uri in sidecars:
        for owner in media.get((folder, stem), ()):
            found.setdefault(owner, []).append(uri)
    return {uri: sorted(set(found[uri])) for uri in sorted(found)}


def _folder_and_name(uri: str) -> tuple[str, str]:
    head, separator, member = uri.partition(MEMBER)
    base = member if separator and is_archive(head) else uri
    folder, _, name = base.rpartition("/")
    return (f"{head}{MEMBER}{folder}" if base is member else folder), name


_CLIP_TABLE_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("uri", pa.string()),
    ("start_seconds", pa.float64()),
    ("end_seconds", pa.float64()),
    ("caption", pa.string()),
    ("crop_xywh", pa.list_(pa.int32())),
]
CLIP_TABLE_SCHEMA = pa.schema(_CLIP_TABLE_COLUMNS)
_ALIASES = {
    "uri": ("uri", "path", "video", "file"),
    "start_seconds": ("start_seconds", "start"),
    "end_seconds": ("end_seconds", "end"),
    "caption": ("caption", "text"),
    "crop_xywh": ("crop_xywh", "crop"),
}


def read_clip_table(path: str) -> pa.Table:
    """Read spans that somebody chose: CSV, TSV, Parquet or JSONL of uri, start and end (seconds), caption and crop.

    Relative URIs are relative to the table. Columns may be called `start`, `end`, `crop` too; others are ignored. In
    text, a crop is `x,y,width,height` or a JSON list.

    Returns:
        CLIP_TABLE_SCHEMA, in the file's order. start null: from the first frame; end null: to the last; caption and
        crop null: none given.
    Raises:
        UserError: no uri column, or a span or crop that cannot be; names the row.
    """
    columns = _read_columns(path)
    names = {want: next((a for a in aliases if a in columns), None) for want, aliases in _ALIASES.items()}
    if names["uri"] is None:
        raise UserError(f"clip table {path}: no column 'uri'{nearest('uri', columns)}")
    count = len(columns[names["uri"]])
    values = [columns[name] if name else [None] * count for name in names.values()]
    rows = [_clip_row(path, number, *row) for number, row in enumerate(zip(*values), 1)]
    return pa.Table.from_pylist(rows, schema=CLIP_TABLE_SCHEMA)


def _clip_row(path: str, number: int, uri: Any, start: Any, end: Any, caption: Any, crop: Any) -> dict[str, Any]:
    where = f"clip table {path}, row {number}"
    if not isinstance(uri, str) or not uri:
        raise UserError(f"{where}: uri must be a non-empty string, found {uri!r}")
    first, last = _seconds(start, where), _seconds(end, where)
    if (first or 0) < 0 or (last is not None and last <= (first or 0)):
        raise UserError(f"{where}: expected 0 <= start < end, found {start} and {end}")
    if protocol_of(uri) is None and not Path(uri.removeprefix("file://")).is_absolute() and protocol_of(path) is None:
        uri = str(Path(path).parent / uri)
    return {
        "uri": uri,
        "start_seconds": first,
        "end_seconds": last,
        "caption": None if caption in (None, "") else str(caption),
        "crop_xywh": _crop(crop, where),
    }


def _seconds(value: Any, where: str) -> float | None:
    if value is None or value == "":
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise UserError(f"{where}: start and end must be seconds, found {value!r}")
    return seconds


def _crop(value: Any, where: str) -> list[int] | None:
    if value is None or value == "":
        return None
    parts = value.strip().strip("[]()").split(",") if isinstance(value, str) else value
    try:
        crop = [int(part) for part in parts]
    except (TypeError, ValueError):
        crop = []
    if len(crop) != 4 or min(crop) < 0 or min(crop[2:]) < 1:
        raise UserError(f"{where}: crop must be x, y, width, height in pixels, found {value!r}")
    return crop


def _read_columns(path: str) -> dict[str, list[Any]]:
    suffix = PurePosixPath(path).suffix.lower()
    if suffix not in (".csv", ".tsv", ".parquet", ".jsonl"):
        raise UserError(f"clip table {path}: expected .csv, .tsv, .parquet or .jsonl")
    try:
        with open_bytes(path) as file:
            if suffix == ".parquet":
                import pyarrow.parquet as pq

                return pq.read_table(file).to_pydict()
            text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"clip table {path}: not UTF-8 text: {error}") from None
    except (OSError, pa.ArrowException) as error:
        told = getattr(error, "strerror", None) or str(error)
        raise UserError(f"clip table {path}: cannot be read: {told}") from None
    names, records = _json_records(text, path) if suffix == ".jsonl" else _csv_records(text, path, suffix)
    return {name: [record.get(name) for record in records] for name in names}


def _csv_records(text: str, path: str, suffix: str) -> tuple[list[str], list[dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if suffix == ".tsv" else ",")
    try:
        records: list[dict[str, Any]] = list(reader)
    except csv.Error as error:
        raise UserError(f"clip table {path}, line {reader.line_num}: {error}") from None
    for number, record in enumerate(records, 1):
        if any(record.get(None) or ()):  # type: ignore[call-overload]  # cells beyond the header's
            raise UserError(f"clip table {path}, row {number}: more cells than the header has; quote text with commas")
    return list(reader.fieldnames or []), records


def _json_records(text: str, path: str) -> tuple[list[str], list[dict[str, Any]]]:
    lines = [(n, line) for n, line in enumerate(_lines(text), 1) if line.strip()]
    records = [_json_object(line, f"clip table {path}, line {n}") for n, line in lines]
    return sorted({key for record in records for key in record}), records
