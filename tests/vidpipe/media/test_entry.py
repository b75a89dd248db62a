"""Entries are proven by the bitstream: against what encoders are known to have made."""

from __future__ import annotations

import av
import pytest

from vidpipe.media.entry import entry_kind, is_disposable, is_hidden, nal_length_size, nal_units


def kinds(path) -> tuple[str, list[str | None], list]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        codec, extradata = stream.codec_context.codec.canonical_name, stream.codec_context.extradata
        packets = [bytes(p) for p in container.demux(stream) if p.size]
    return codec, [entry_kind(codec, data, extradata) for data in packets], [codec, packets, extradata]


@pytest.mark.parametrize(
    ("name", "first", "later", "count"),
    [
        ("h264_closed", "clean", "clean", 5),
        ("h264_open_gop", "clean", "open", 5),
        ("h264_intra_refresh", "clean", None, 1),
        ("h264_pyramid_mkv", "clean", "clean", 3),
        ("hevc_open_gop", "clean", "clean", 5),
        ("hevc_10bit_mkv", "clean", "clean", 6),
        ("mpeg2_mp4", "open", "open", 6),
        ("vp8_altref", "clean", "clean", 4),
        ("vp9_altref", "clean", "clean", 4),
        ("av1", "clean", "clean", 4),
        ("prores", "clean", "clean", 60),
        ("mjpeg", "clean", "clean", 60),
        ("ffv1", None, None, 0),
        ("mpeg4_avi", None, None, 0),
    ],
)
def test_entries_are_where_the_encoder_put_them(name, first, later, count, recipe_file):
    _, found, _ = kinds(recipe_file(name))
    assert found[0] == first
    entries = [kind for kind in found if kind]
    assert len(entries) == count
    assert set(entries[1:]) == ({later} if later and count > 1 else set())


def test_disposable_pictures_are_some_and_never_entries(recipe_file):
    for name in ("h264_closed", "hevc_open_gop", "mpeg2_mp4"):
        codec, found, (_, packets, extradata) = kinds(recipe_file(name))
        disposable = [is_disposable(codec, data, extradata) for data in packets]
        assert 10 < sum(disposable) < 50
        assert not any(d and kind for d, kind in zip(disposable, found))


def test_hidden_frames_of_vp8_are_those_that_show_nothing(recipe_file):
    codec, _, (_, packets, _) = kinds(recipe_file("vp8_altref"))
    assert len(packets) - sum(is_hidden(codec, data) for data in packets) == 60


def test_broken_packets_are_no_entries():
    for codec in ("h264", "hevc", "vp8", "vp9", "av1", "mpeg2video"):
        for data in (b"\x00", b"\xff" * 7, bytes(40), b"\x00\x00\x01", b"\x00\x00\x00\xff\x65"):
            assert entry_kind(codec, data, b"\x01" + bytes(30)) is None or codec == "vp9"


def test_nal_units_stop_where_they_do_not_fit():
    data = b"\x00\x00\x00\x02ab" + b"\x00\x00\x00\x03cde" + b"\x00\x00\x00\x09x"
    assert [bytes(u) for u in nal_units(data, 4)] == [b"ab", b"cde"]
    assert [bytes(u) for u in nal_units(b"\x00\x00\x01ab\x00\x00\x01cd", 0)] == [b"ab", b"cd"]
    assert nal_length_size("h264", b"\x01\x64\x00\x1f\xff") == 4
    assert nal_length_size("h264", b"\x00\x00\x00\x01") == 0
