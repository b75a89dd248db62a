"""The frames of any clip equal, bit for bit, those that a pass over the whole stream gives for the same times."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from vidpipe.media import pyav
from vidpipe.media.decode import open_video
from vidpipe.media.errors import MediaError
from vidpipe.media.packets import CLEAN, OPEN
from vidpipe.media.reference import ClipReference


def sequential(uri: str) -> tuple[dict[int, bytes], list[int]]:
    """Every frame of a pass, by time; and the times in order."""
    with open_video(uri, decoder="pyav") as reader:
        found = {}
        for batch in reader.scan():
            for frame, pts in zip(batch.frames_THWC, batch.pts.tolist()):
                found[pts] = np.ascontiguousarray(frame).tobytes()
    times = list(found)
    assert times == sorted(times), "times of a pass must ascend"
    return found, times


def window(facts, times: list[int], first: int, count: int, **more) -> ClipReference:
    last = min(first + count, len(times)) - 1
    return ClipReference(
        uri=facts.uri, stream_index=facts.stream_index, start_pts=times[first], end_pts=times[last] + 1,
        time_base=facts.time_base, **more,
    )  # fmt: skip


def pixels(clip_frames) -> list[bytes]:
    return [f.permute(1, 2, 0).contiguous().numpy().tobytes() for f in clip_frames.frames_TCHW]


def assert_windows_exact(uri: str, decoder: str, windows: int, seed: int, intact: bool, longest: int = 9) -> None:
    """Random windows through one reader, in random order, and through fresh ones, equal the pass."""
    truth, times = sequential(uri)
    rng = random.Random(seed)
    with open_video(uri, decoder=decoder) as kept:
        for turn in range(windows):
            first = rng.randrange(len(times))
            clip = window(kept.facts, times, first, rng.randint(1, longest), intact=intact)
            wanted = [t for t in times if clip.start_pts <= t < clip.end_pts]
            reader = kept if turn % 3 else open_video(uri, decoder=decoder, facts=kept.facts)
            assert reader.frame_pts(clip).tolist() == wanted
            chosen = sorted(rng.choices(wanted, k=rng.randint(1, len(wanted) + 1)))
            got = reader.frames(clip, chosen)
            assert got.pts.tolist() == chosen
            assert pixels(got) == [truth[t] for t in chosen]
            if reader is not kept:
                reader.__exit__(None, None, None)


@pytest.fixture
def seeks_readily(monkeypatch):
    """Seek rather than decode on, even to a clip close by."""
    monkeypatch.setattr(pyav, "FORWARD_SECONDS", 0.1)


def test_pass_gives_every_picture_in_order(recipe, recipe_file, footage):
    with open_video(str(recipe_file(recipe)), decoder="pyav") as reader:
        batches = list(reader.scan(batch_size=16))
    numbers = [footage.number_of(frame) for batch in batches for frame in batch.frames_THWC]
    assert numbers == list(range(60))
    assert not any(batch.damaged.any() for batch in batches)
    assert [len(batch) for batch in batches] == [16, 16, 16, 12]


def test_random_windows_equal_the_pass(recipe, recipe_file, seeks_readily):
    assert_windows_exact(str(recipe_file(recipe)), "pyav", windows=14, seed=len(recipe), intact=False)


@pytest.mark.parametrize(
    "name", ["h264_closed", "h264_open_gop", "h264_pyramid_mkv", "hevc_open_gop", "vp8_altref", "vp9_altref", "av1"]
)
def test_torchcodec_windows_equal_the_pass(name, recipe_file, seeks_readily):
    pytest.importorskip("torchcodec")
    assert_windows_exact(str(recipe_file(name)), "torchcodec", windows=8, seed=5, intact=True)


@pytest.mark.parametrize(
    "name", ["h264_closed", "h264_open_gop", "hevc_open_gop", "vp9_altref", "av1", "mpeg2_mp4", "prores"]
)
def test_seeks_are_used_where_they_are_exact(name, recipe_file, seeks_readily):
    uri = str(recipe_file(name))
    _, times = sequential(uri)
    with open_video(uri, decoder="pyav") as reader:
        reader.frames(window(reader.facts, times, 55, 2), times[55:57])
        assert reader.sought


@pytest.mark.parametrize("name", ["h264_intra_refresh", "mpeg2_ts", "h264_ts", "mpeg4_avi", "flv", "ffv1"])
def test_no_seek_where_it_could_be_inexact(name, recipe_file, seeks_readily):
    uri = str(recipe_file(name))
    _, times = sequential(uri)
    with open_video(uri, decoder="pyav") as reader:
        reader.frames(window(reader.facts, times, 55, 2), times[55:57])
        assert not reader.sought


def patched(path: Path, target: Path, old: bytes, new: bytes) -> str:
    """Copy of a file with one run of bytes replaced by another as long."""
    data = path.read_bytes()
    assert data.count(old) == 1 and len(old) == len(new)
    target.write_bytes(data.replace(old, new))
    return str(target)


def test_lying_keyframe_flags_are_seen_through(tmp_path, recipe_file, seeks_readily):
    """Without its table of sync samples an MP4 says that every sample is one; entries are the IDR pictures alone."""
    uri = patched(recipe_file("h264_closed"), tmp_path / "liar.mp4", b"stss", b"free")
    assert_windows_exact(uri, "pyav", windows=10, seed=2, intact=False)
    assert_windows_exact(uri, "torchcodec", windows=4, seed=2, intact=True)
    with open_video(uri, decoder="pyav") as reader:
        flags = reader.index().flags
    assert (flags & (CLEAN | OPEN) > 0).sum() == 5  # g=12 in 60 pictures


def test_missing_keyframe_flags_cost_only_time(tmp_path, recipe_file, seeks_readily):
    """A table of sync samples that names the first alone: decoding starts there, and is exact."""
    data = recipe_file("h264_closed").read_bytes()
    at = data.index(b"stss") + 8
    uri = patched(
        recipe_file("h264_closed"), tmp_path / "few.mp4", data[at - 8 : at + 4], b"stss" + bytes(4) + b"\0\0\0\1"
    )
    assert_windows_exact(uri, "pyav", windows=6, seed=4, intact=False)


@pytest.mark.parametrize("decoder", ["pyav", "torchcodec"])
def test_sei_of_the_first_packet_is_known_after_a_seek(decoder, tmp_path, footage, seeks_readily):
    """FFmpeg reads lossless 8x8 intra blocks of old x264 otherwise, and only the first packet names the version."""
    rng = np.random.default_rng(0)
    noise = [np.kron(rng.integers(0, 256, (16, 24, 3), dtype=np.uint8), np.ones((4, 4, 1), np.uint8)) for _ in range(5)]
    params = {"x264-params": "keyint=10:qp=0:8x8dct=1:bframes=0:scenecut=0:partitions=i8x8"}
    frames = [np.roll(noise[k // 9], k, axis=1) for k in range(40)]
    new = footage.encode(tmp_path / "new.mp4", frames=frames, options=params)
    data = new.read_bytes()
    named = data[data.index(b"x264 - core ") :][:15]
    old = patched(new, tmp_path / "old.mp4", named, b"x264 - core 120")
    (truth, times), (other, _) = sequential(old), sequential(str(new))
    assert any(truth[t] != other[t] for t in times[25:]), "the version must matter late in the file"
    with open_video(old, decoder=decoder) as reader:
        clip = window(reader.facts, times, 25, 15, intact=True)
        assert pixels(reader.frames(clip, times[25:])) == [truth[t] for t in times[25:]]
        assert reader.sought


def test_negative_and_non_zero_starts(tmp_path, footage, seeks_readily):
    for start in (-40, 1_000_000):
        path = footage.encode(
            tmp_path / f"start{start}.mkv", frames=[footage.draw(k) for k in range(40)],
            pts=[start + 40 * k for k in range(40)], time_base=Fraction(1, 1000),
            options={"g": "8", "bf": "2"},
        )  # fmt: skip
        assert_windows_exact(str(path), "pyav", windows=6, seed=1, intact=False)


@pytest.mark.media
def test_real_files_equal_their_pass(media_dir: Path, seeks_readily):
    """A few quick files of each kind; all of them in the long test."""
    names = ["nasa_13013.mp4", "webm_bbb_trailer.webm", "hfds_test_video_66x50.mov"]
    names += ["hard/tc_discard_first_keyframe.mp4", "decord_corrupted.mp4"]
    names += ["hard/mp4ff_frag_multi_segments.mp4", "hard/mp4parse_no_timescale.mp4"]
    for name in names:
        assert_windows_exact(str(media_dir / name), "pyav", windows=4, seed=3, intact=False)


@pytest.mark.media
@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("decoder", ["pyav", "torchcodec"])
def test_all_real_files_equal_their_pass(media_dir: Path, decoder, seeks_readily):
    """Every decodable file; those that torchcodec may decode, with clips as intact as the pass found them."""
    checked = 0
    for path in sorted(p for p in media_dir.rglob("*") if p.is_file()):
        try:
            with open_video(str(path), decoder="pyav") as reader:
                intact = not any(b.damaged.any() for b in reader.scan(max_short_side=64))
        except MediaError:
            continue
        assert_windows_exact(str(path), decoder, windows=6, seed=checked, intact=intact, longest=5)
        checked += 1
    assert checked > 50
