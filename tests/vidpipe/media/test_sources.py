"""Listings are complete, sorted and the same each time; tables of spans say what is wrong with them."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.errors import UserError
from vidpipe.media.files import Section, open_bytes, split_member
from vidpipe.media.sources import find_sidecars, kind_hint, list_sources, read_clip_table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.mp4", "a.txt", "a.mp4", "sub/c.webm", "sub/deep/d.jpg", "B.json", "notes"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.mp4").symlink_to(tmp_path / "nowhere")
    return tmp_path


def names(files, root: Path) -> list[str]:
    return [str(Path(f.uri).relative_to(root)) for f in files]


def test_folder_lists_regular_files_sorted_without_pipes_loops_and_dangling_links(folder):
    listed = names(list_sources(str(folder)), folder)
    assert listed == ["B.json", "a.mp4", "a.txt", "b.mp4", "notes", "sub/c.webm", "sub/deep/d.jpg"]
    assert names(list_sources(str(folder), recursive=False), folder) == ["B.json", "a.mp4", "a.txt", "b.mp4", "notes"]


def test_facts_of_a_listed_file(folder):
    file = next(f for f in list_sources(str(folder)) if f.uri.endswith("a.mp4"))
    assert (file.size_bytes, file.kind_hint) == (5, "video")
    os.utime(file.uri, (1, 1))
    changed = next(f for f in list_sources(str(folder)) if f.uri == file.uri)
    assert changed.etag != file.etag


def test_glob(folder):
    assert names(list_sources(f"{folder}/*.mp4"), folder) == ["a.mp4", "b.mp4"]
    assert names(list_sources(f"{folder}/**/*.jpg"), folder) == ["sub/deep/d.jpg"]
    assert names(list_sources(f"{folder}/**/?.mp4"), folder) == ["a.mp4", "b.mp4"]
    assert names(list_sources(f"{folder}/s*/**/*"), folder) == ["sub/c.webm", "sub/deep/d.jpg"]
    with pytest.raises(UserError, match="nothing matches"):
        list(list_sources(f"{folder}/*.avi"))


def test_no_source_at_all():
    with pytest.raises(UserError, match="source '': expected a path"):
        list(list_sources(""))


def test_nothing_there(folder):
    with pytest.raises(UserError, match="no such file or folder"):
        list(list_sources(f"{folder}/missing"))


def test_list_files_keep_their_order_and_list_twice_once(folder):
    text = folder / "list.txt"
    text.write_text("# mine\nsub\n\nb.mp4\na.mp4\nb.mp4\n")
    assert names(list_sources(str(text)), folder) == ["sub/c.webm", "sub/deep/d.jpg", "b.mp4", "a.mp4"]
    jsonl = folder / "list.jsonl"
    jsonl.write_text('{"uri": "b.mp4", "label": 3}\n' + json.dumps({"uri": str(folder / "a.mp4")}) + "\n")
    assert names(list_sources(str(jsonl)), folder) == ["b.mp4", "a.mp4"]


def test_lists_of_other_systems_and_names_with_odd_line_breaks(tmp_path):
    for name in ("a.mp4", "b\u2028c.mp4", "d\x85.mp4"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "l.txt").write_bytes("a.mp4\r\n\r\nb\u2028c.mp4\r\na.mp4".encode())
    assert names(list_sources(str(tmp_path / "l.txt")), tmp_path) == ["a.mp4", "b\u2028c.mp4"]
    (tmp_path / "l.jsonl").write_bytes('{"uri":"b\u2028c.mp4"}\r\n{"uri":"d\x85.mp4"}\n'.encode())
    assert names(list_sources(str(tmp_path / "l.jsonl")), tmp_path) == ["b\u2028c.mp4", "d\x85.mp4"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.txt", "missing.mp4\n", r"l\.txt:1: source .*no such file"),
        ("l.jsonl", "{}\n", r'l\.jsonl:1: expected an object with a string "uri"'),
        ("l.jsonl", "[1]\n", r"l\.jsonl:1: expected a JSON object"),
        ("l.jsonl", "nonsense\n", r"l\.jsonl:1: not JSON"),
        ("l.txt", "other.txt\n", r"l\.txt:1: .*itself a list"),
    ],
)
def test_malformed_lists_name_the_line(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(UserError, match=message):
        list(list_sources(str(folder / name)))


def make_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_tar_members_follow_their_archive_and_read_at_random(tmp_path):
    data = bytes(range(256)) * 40
    make_tar(tmp_path / "a.tar", {"z/v.mp4": data, "b.txt": b"hello"})
    listed = list(list_sources(str(tmp_path)))
    assert [f.uri.removeprefix(f"{tmp_path}/") for f in listed] == ["a.tar", "a.tar::b.txt", "a.tar::z/v.mp4"]
    assert [f.kind_hint for f in listed] == ["archive", "sidecar", "video"]
    assert [f.size_bytes for f in listed[1:]] == [5, len(data)]
    with open_bytes(listed[2].uri) as file:
        file.seek(5000)
        assert file.read(300) == data[5000:5300]
        file.seek(-3, os.SEEK_END)
        assert file.read() == data[-3:]
    with pytest.raises(FileNotFoundError, match="no member 'x'"):
        open_bytes(f"{tmp_path}/a.tar::x")


def test_one_member_is_a_source(tmp_path):
    make_tar(tmp_path / "set.tar", {"a/1.mp4": b"one", "a/2.mp4": b"two"})
    uri = f"{tmp_path}/set.tar::a/2.mp4"
    (tmp_path / "l.txt").write_text(f"{uri}\nset.tar::a/1.mp4\n")
    assert [f.uri for f in list_sources(uri)] == [uri]
    assert [f.uri for f in list_sources(str(tmp_path / "l.txt"))] == [uri, f"{tmp_path}/set.tar::a/1.mp4"]
    with pytest.raises(UserError, match=r"set\.tar has no such member"):
        list(list_sources(f"{tmp_path}/set.tar::a/3.mp4"))


def test_truncated_or_broken_tar_gives_what_is_whole(tmp_path):
    make_tar(tmp_path / "a.tar", {"a.mp4": b"x" * 2000, "b.mp4": b"y" * 2000})
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(data[: 512 + 2048 + 100])
    assert [f.uri.rpartition("::")[2] for f in list_sources(str(tmp_path / "a.tar"))][1:] == ["a.mp4"]
    (tmp_path / "bad.tar").write_bytes(b"no tar at all" * 100)
    assert [f.kind_hint for f in list_sources(str(tmp_path / "bad.tar"))] == ["archive"]


def test_member_marks_only_count_after_a_tar():
    assert split_member("/a/b.tar::c/d.mp4") == ("/a/b.tar", "c/d.mp4")
    assert split_member("/a/odd::name.mp4") == ("/a/odd::name.mp4", None)


def test_section_never_leaves_its_span():
    section = Section(io.BytesIO(b"0123456789"), 2, 5)
    assert section.read(100) == b"23456"
    assert section.read(1) == b""
    section.seek(4)
    assert section.read(9) == b"6"


def test_remote_prefix_glob_and_object():
    import fsspec

    filesystem = fsspec.filesystem("memory")
    for name in ("/bucket/b.mp4", "/bucket/a.mp4", "/bucket/x/c.jpg"):
        with filesystem.open(name, "wb") as file:
            file.write(name.encode())
    listed = list(list_sources("memory://bucket"))
    assert [f.uri for f in listed] == ["memory://bucket/a.mp4", "memory://bucket/b.mp4", "memory://bucket/x/c.jpg"]
    assert [f.uri for f in list_sources("memory://bucket", recursive=False)] == [f.uri for f in listed[:2]]
    assert [f.uri for f in list_sources("memory://bucket/*.mp4")] == [f.uri for f in listed[:2]]
    assert [f.uri for f in list_sources("memory://bucket/a.mp4")] == [listed[0].uri]
    assert listed[0].size_bytes == len("/bucket/a.mp4")
    with open_bytes(listed[0].uri) as file:
        assert file.read() == b"/bucket/a.mp4"
    with pytest.raises(UserError, match="nothing is there"):
        list(list_sources("memory://empty"))


def test_sidecars_share_folder_and_stem(tmp_path):
    for name in ("a.mp4", "a.txt", "a.json", "a.mp4.json", "b.mp4", "x/a.txt", "c.txt", "a.jsonl", "d.png", "d.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    found = find_sidecars(list_sources(str(tmp_path)))
    shown = {Path(k).name: [Path(v).name for v in vs] for k, vs in found.items()}
    assert shown == {"a.mp4": ["a.json", "a.mp4.json", "a.txt"], "d.png": ["d.txt"]}


def test_kind_hints():
    assert [kind_hint(n) for n in ("A.MP4", "b.jpeg", "c.jsonl", "d.csv", "e.tar", "f", "g.gif")] == [
        "video", "image", "sidecar", "clip_table", "archive", "other", "video",
    ]  # fmt: skip


ROWS = [
    {"uri": "/v/a.mp4", "start": 1.5, "end": 3.25, "caption": "a dog, running", "crop": "0,10,64,48"},
    {"uri": "/v/b.mp4", "start": None, "end": None, "caption": None, "crop": None},
]
EXPECTED = [
    ("/v/a.mp4", 1.5, 3.25, "a dog, running", [0, 10, 64, 48]),
    ("/v/b.mp4", None, None, None, None),
]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_clip_tables_of_every_kind_read_alike(tmp_path, kind):
    path = tmp_path / f"t.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    else:
        mark = "," if kind == "csv" else "\t"
        cell = lambda v: "" if v is None else f'"{v}"'  # noqa: E731
        lines = [mark.join(ROWS[0])] + [mark.join(cell(v) for v in row.values()) for row in ROWS]
        path.write_text("\n".join(lines) + "\n")
    table = read_clip_table(str(path))
    assert table.column_names == ["uri", "start_seconds", "end_seconds", "caption", "crop_xywh"]
    assert [tuple(row.values()) for row in table.to_pylist()] == EXPECTED


def test_clip_table_uris_are_relative_to_it(tmp_path):
    (tmp_path / "t.csv").write_text("uri,start,end\nx/a.mp4,0,1\ns3://b/k.mp4,0,1\n")
    assert read_clip_table(str(tmp_path / "t.csv"))["uri"].to_pylist() == [f"{tmp_path}/x/a.mp4", "s3://b/k.mp4"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("urx,start,end\na,0,1\n", "no column 'uri'; did you mean 'urx'"),
        ("uri,start,end\na,0,1\nb,2,2\n", "row 2: expected 0 <= start < end, found 2 and 2"),
        ("uri,start,end\na,x,1\n", "row 1: start and end must be seconds, found 'x'"),
        ("uri,start,end\na,0,inf\n", "row 1: start and end must be seconds, found 'inf'"),
        ("uri,start,end\n,0,1\n", "row 1: uri must be a non-empty string"),
        ('uri,start,end,crop\na,0,1,"1,2,3"\n', "row 1: crop must be x, y, width, height"),
        ("uri,start,end,caption\na,0,1,a dog, running\n", "row 1: more cells than the header has"),
    ],
)
def test_clip_table_says_what_is_wrong(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_clip_table(str(tmp_path / "t.csv"))


def test_a_caption_keeps_its_lines(tmp_path):
    (tmp_path / "t.csv").write_bytes(b'uri,start,end,caption,\r\n/a.mp4,0,1,"two\nlines \xe2\x80\xa8 and more",\r\n')
    (tmp_path / "t.jsonl").write_text('{"uri": "/a.mp4", "caption": "one\u2028line"}\n')
    assert read_clip_table(str(tmp_path / "t.csv"))["caption"].to_pylist() == ["two\nlines \u2028 and more"]
    assert read_clip_table(str(tmp_path / "t.jsonl"))["caption"].to_pylist() == ["one\u2028line"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.csv", None, r"t\.csv: cannot be read: No such file"),
        ("t.parquet", b"", r"t\.parquet: cannot be read: .*Parquet"),
        ("t.parquet", b"uri\na.mp4\n", r"t\.parquet: cannot be read: .*Parquet"),
        ("t.csv", b"uri\nM\xfcnchen.mp4\n", r"t\.csv: not UTF-8 text"),
        ("t.jsonl", b'{"uri": "a"}\n\n{"uri"\n', r"t\.jsonl, line 3: not JSON"),
    ],
)
def test_clip_table_that_cannot_be_read(tmp_path, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=message):
        read_clip_table(str(tmp_path / name))


def test_clip_table_of_another_kind_is_refused(tmp_path):
    (tmp_path / "t.xlsx").write_bytes(b"x")
    with pytest.raises(UserError, match=r"expected \.csv"):
        read_clip_table(str(tmp_path / "t.xlsx"))


def test_a_name_that_is_no_utf8_is_listed_as_text(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"x")
    with open(os.fsencode(tmp_path) + b"/b\xff.mp4", "wb") as file:
        file.write(b"x")
    names = [f.uri.rpartition("/")[2] for f in list_sources(str(tmp_path))]
    assert names == ["a.mp4", r"b\xff.mp4"] and all(name.encode() for name in names)
