"""Parts of a packet index: with them a clip's frames are the same bits, and little of the file is read."""

from __future__ import annotations

import dataclasses

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFile

from vidpipe.media.decode import open_video
from vidpipe.media.packets import PacketIndex, index_of, seek_margin
from vidpipe.media.reference import ClipReference
from vidpipe.store.dataset import Dataset

COUNT = 240
KINDS = {
    "closed.mp4": {"bf": "3", "g": "24"},
    "closed.mkv": {"bf": "2", "g": "24"},
    "open.mp4": {"bf": "3", "g": "24", "x264-params": "open-gop=1"},
    "one-key.mp4": {"bf": "3", "g": "1000", "sc_threshold": "0"},
    "stream.ts": {"bf": "2", "g": "24"},
}


@pytest.fixture(scope="module")
def film(tmp_path_factory, footage):
    folder, made = tmp_path_factory.mktemp("films"), {}

    def of(name: str) -> str:
        if name not in made:
            frames = [footage.draw(k % 200) for k in range(COUNT)]
            made[name] = str(footage.encode(folder / name, frames=frames, options=KINDS[name]))
        return made[name]

    return of


def spans(facts, count=COUNT) -> list[tuple[int, int]]:
    tick = (facts.end_pts - facts.start_pts) // count
    return [
        (facts.start_pts + a * tick, facts.start_pts + b * tick)
        for a, b in ((0, 9), (100, 131), (125, 150), (200, 240))
    ]


def clip_of(facts, span) -> ClipReference:
    return ClipReference(
        uri=facts.uri, stream_index=facts.stream_index, start_pts=span[0], end_pts=span[1], time_base=facts.time_base,
        intact=True,
    )  # fmt: skip


def row_of(index: PacketIndex, span, facts) -> dict:
    return {"packets": index.part(*span, seek_margin(facts)).to_bytes()}


@pytest.mark.parametrize("name", KINDS)
def test_a_pass_gives_the_index_that_reading_gives(film, name):
    with open_video(film(name), decoder="pyav") as reader:
        read = reader.index()
    with open_video(film(name), decoder="pyav") as reader:
        for _ in reader.scan(max_short_side=32):
            pass
        seen = reader.index()
    for field in dataclasses.fields(PacketIndex):
        assert np.array_equal(getattr(read, field.name), getattr(seen, field.name)), field.name
    assert read.whole and len(read.pts) == COUNT


@pytest.mark.parametrize("decoder", ["pyav", "torchcodec"])
@pytest.mark.parametrize("name", KINDS)
def test_frames_are_the_same_bits(film, name, decoder, monkeypatch):
    if decoder == "torchcodec":
        pytest.importorskip("torchcodec")
    with open_video(film(name), decoder=decoder) as reader:
        facts, index, clips = reader.facts, reader.index(), [clip_of(reader.facts, s) for s in spans(reader.facts)]
        times = [reader.frame_pts(clip) for clip in clips]
        expected = [reader.frames(clip, pts).frames_TCHW for clip, pts in zip(clips, times)]
        name_used = reader.decoder_name
    packets = index_of([row_of(index, span, facts) for span in spans(facts)])
    assert packets is not None and len(packets.pts) < COUNT
    monkeypatch.setattr("vidpipe.media.pyav.read_index", None)  # reading the file through would fail
    with open_video(film(name), decoder=decoder, facts=facts, packets=packets) as reader:
        for k in (2, 0, 3, 1):
            assert np.array_equal(reader.frame_pts(clips[k]), times[k])
            assert reader.frames(clips[k], times[k]).frames_TCHW.equal(expected[k])
        assert reader.decoder_name == name_used
    assert name_used == decoder or name in ("open.mp4", "stream.ts")


def test_a_clip_that_no_part_covers_is_read(film):
    with open_video(film("closed.mp4")) as reader:
        facts, index = reader.facts, reader.index()
        first, second = (clip_of(facts, span) for span in spans(facts)[:2])
        expected = reader.frames(second, reader.frame_pts(second)).frames_TCHW
    part = index_of([row_of(index, spans(facts)[0], facts)])
    with open_video(film("closed.mp4"), facts=facts, packets=part) as reader:
        assert len(reader.frames(first, reader.frame_pts(first))) == 9
        assert reader.frames(second, reader.frame_pts(second)).frames_TCHW.equal(expected)
        assert reader.index().whole


def test_bytes_of_another_release_are_no_index(film):
    with open_video(film("closed.mp4")) as reader:
        row = row_of(reader.index(), spans(reader.facts)[1], reader.facts)
    part = PacketIndex.from_bytes(row["packets"])
    assert part.spans == (spans(reader.facts)[1],) and not part.whole and part.to_bytes() == row["packets"]
    assert len(row["packets"]) < 400
    for broken in (b"", b"\2" + row["packets"][1:], row["packets"][:-3], row["packets"][:18]):
        assert index_of([row, {"packets": broken}]) is None
    assert index_of([row, {"packets": None}]) is None and index_of([row, {}]) is None and index_of([]) is None


@pytest.mark.parametrize("decoder", ["pyav", "torchcodec"])
def test_little_of_a_remote_film_is_read(footage, tmp_path, monkeypatch, decoder):
    """12 s of noise, some 40 MB: a clip in its middle with its part, and without it."""
    if decoder == "torchcodec":
        pytest.importorskip("torchcodec")
    noise = np.random.default_rng(0)
    frames = [noise.integers(0, 256, (192, 256, 3), dtype=np.uint8) for _ in range(300)]
    options = {"preset": "ultrafast", "qp": "2", "g": "24"}
    path = footage.encode(tmp_path / "film.mp4", frames=frames, options=options)
    size = path.stat().st_size
    uri = f"memory://film-{decoder}.mp4"
    fsspec.filesystem("memory").pipe(uri, path.read_bytes())
    with open_video(uri) as reader:
        facts, index = reader.facts, reader.index()
    span = spans(facts, 300)[3]
    part = index_of([row_of(index, span, facts)])
    read = []
    plain = MemoryFile.read
    monkeypatch.setattr(MemoryFile, "read", lambda self, n=-1: read.append(len(d := plain(self, n))) or d)

    def cost(packets) -> tuple[int, object]:
        read.clear()
        with open_video(uri, decoder=decoder, facts=facts, packets=packets) as reader:
            clip = clip_of(facts, span)
            frames = reader.frames(clip, reader.frame_pts(clip)).frames_TCHW
            assert reader.decoder_name == decoder
        return sum(read), frames

    without, expected = cost(None)
    with_part, found = cost(part)
    assert found.equal(expected)
    assert without > size and with_part < size / 3, (size, without, with_part)


def test_a_dataset_keeps_a_part_with_each_clip(demo_dataset):
    con = Dataset(str(demo_dataset)).open().connect()
    clips = con.sql("SELECT c.*, v.uris FROM clips c JOIN videos v USING (video_id)").to_arrow_table()
    assert clips.num_rows
    for row in clips.to_pylist():
        part = index_of([row])
        assert part is not None and part.covers(row["start_pts"], row["end_pts"]), row["uris"]
        assert not part.regular or len(part.between(row["start_pts"], row["end_pts"])) == row["num_frames"]
