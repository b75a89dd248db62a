"""Damage: frames whose pixels changed are marked; frames before it, and after the next key frame, are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vidpipe.media.damage import are_errors
from vidpipe.media.decode import open_video
from vidpipe.media.reference import ClipReference


def passed(path: Path) -> dict[int, tuple[np.ndarray, bool]]:
    with open_video(str(path), decoder="pyav") as reader:
        return {
            int(t): (np.ascontiguousarray(f), bool(d))
            for b in reader.scan()
            for f, t, d in zip(b.frames_THWC, b.pts, b.damaged)
        }


def packets_of(path: Path) -> list[tuple[int, int, int]]:
    """(pts, position, size) of each packet, found by its bytes: a container's `pos` may be a header's."""
    import av

    data = path.read_bytes()
    with av.open(str(path)) as container:
        return [(p.pts, data.index(bytes(p)), p.size) for p in container.demux(video=0) if p.size]


@pytest.mark.parametrize("name", ["h264_closed", "h264_pyramid_mkv", "hevc_open_gop", "mpeg2_mp4"])
def test_a_ruined_packet_marks_what_it_ruins_and_no_more(name, recipe_file, tmp_path):
    """Zeroes in the body of one packet: pictures differ from there on, and only marked ones differ."""
    path = recipe_file(name)
    good, packets = passed(path), packets_of(path)
    _, position, size = packets[24]
    data = bytearray(path.read_bytes())
    start = position + size // 3
    data[start : position + size - 4] = bytes(position + size - 4 - start)
    bad = tmp_path / path.name
    bad.write_bytes(bytes(data))
    found = passed(bad)
    differ = {t for t, (frame, _) in found.items() if not np.array_equal(frame, good[t][0])}
    marked = {t for t, (_, damaged) in found.items() if damaged}
    assert marked, "the damage must be seen"
    assert differ <= marked
    assert len(marked) < 40 and max(found) not in marked, "it must end with its group"
    assert min(found) not in marked, "it must not reach back"


def test_checksums_of_ffv1_slices_are_checked(recipe_file, tmp_path):
    path = recipe_file("ffv1")
    good = passed(path)
    pts, position, size = packets_of(path)[29]
    data = bytearray(path.read_bytes())
    data[position + size // 2] ^= 16
    (tmp_path / "flipped.mkv").write_bytes(bytes(data))
    found = passed(tmp_path / "flipped.mkv")
    assert found[pts][1] and not found[pts - 40][1]
    assert {t for t, (f, _) in found.items() if not np.array_equal(f, good[t][0])} <= {t for t in found if found[t][1]}


@pytest.mark.parametrize("name", ["vp9_altref", "av1", "hevc_10bit_mkv", "vp8_altref"])
def test_zeroes_that_no_encoder_writes_are_damage(name, recipe_file, tmp_path):
    """A lost sector in the largest packet: these decoders make some picture of it without a word."""
    path = recipe_file(name)
    pts, position, size = max(packets_of(path), key=lambda p: p[2])
    data = bytearray(path.read_bytes())
    length = min(200, size - 40)
    data[position + 20 : position + 20 + length] = bytes(length)
    (tmp_path / path.name).write_bytes(bytes(data))
    found = passed(tmp_path / path.name)
    assert pts not in found or found[pts][1]


def test_whole_files_have_no_damage(recipe, recipe_file):
    assert not any(damaged for _, damaged in passed(recipe_file(recipe)).values())


def test_a_lost_frame_is_stood_in_for_and_marked(recipe_file, tmp_path, footage):
    """A packet that cannot be split gives no frame: asked for, the one on screen before it comes, marked."""
    path = recipe_file("h264_closed")
    packets = packets_of(path)
    pts, position, _ = packets[30]
    data = bytearray(path.read_bytes())
    data[position : position + 4] = b"\xff\xff\xff\xff"  # its NAL unit claims 4 GiB
    bad = tmp_path / "lost.mp4"
    bad.write_bytes(bytes(data))
    with open_video(str(bad), decoder="pyav") as reader:
        facts = reader.facts
        clip = ClipReference(
            uri=str(bad), stream_index=0, start_pts=facts.start_pts, end_pts=facts.end_pts, time_base=facts.time_base
        )
        times = reader.frame_pts(clip)
        assert pts not in times.tolist() and len(times) == 59
        got = reader.frames(clip, [pts])
    assert got.damaged.tolist() == [True]
    shown = int(times[times < pts][-1]) // 512
    assert footage.number_of(got.frames_TCHW[0].permute(1, 2, 0).numpy()) == shown


def test_what_counts_as_an_error():
    assert are_errors([(16, "h264", "error while decoding MB 4 0")])
    assert are_errors([(32, "mpeg4", "concealing 12 DC, 12 AC, 12 MV errors in P frame")])
    assert not are_errors([(24, "mjpeg", "a warning"), (32, "h264", "for your information")])
    assert not are_errors([(16, "h264", "SEI type 5 size 99 truncated at 12")])


@pytest.mark.media
def test_real_damaged_files(media_dir):
    corrupted = passed(media_dir / "decord_corrupted.mp4")
    marks = [damaged for _, damaged in corrupted.values()]
    assert len(marks) == 49 and not any(marks[:25]) and all(marks[32:])
    assert all(damaged for _, damaged in passed(media_dir / "hard" / "mp4parse_no_timescale.mp4").values())
