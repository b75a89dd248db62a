"""What a probe learns, and the reason that it gives for each kind of file that is no footage."""

from __future__ import annotations

import json
import os
import tracemalloc
from dataclasses import fields
from fractions import Fraction
from pathlib import Path

import pytest

from schemas.tables import VIDEOS
from vidpipe.media.errors import REASONS, MediaError
from vidpipe.media.facts import VideoFacts
from vidpipe.media.probe import is_vfr, probe


def reason_of(path: Path, data: bytes | None = None) -> str:
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(MediaError) as caught:
        probe(str(path), path.stat().st_size if path.is_file() else -1)
    assert caught.value.reason in REASONS
    assert str(path) in str(caught.value) and len(str(caught.value)) < 400
    return caught.value.reason


def test_facts_are_columns_of_videos(recipe_file):
    row = probe(str(recipe_file("h264_closed"))).to_row()
    assert set(row) < {column.name for column in VIDEOS.columns}
    assert "uri" not in row and len(row) == len(fields(VideoFacts)) - 1


def test_facts_come_back_from_a_row(recipe_file):
    facts = probe(str(recipe_file("h264_closed")))
    row = {**facts.to_row(), "video_id": b"x"}
    assert VideoFacts.of(facts.uri, row) == facts
    del row["codec"]
    assert VideoFacts.of(facts.uri, row) is None


@pytest.mark.parametrize("error", ["MemoryError", "PatchWelcomeError"])
def test_other_complaints_of_ffmpeg_are_bad_headers(error, recipe_file, monkeypatch):
    """Both were met in real files with flipped bits."""
    import av

    def fails(*given, **more):
        raise getattr(av.error, error)(12, "told", "log")

    monkeypatch.setattr(av, "open", fails)
    assert reason_of(recipe_file("h264_closed")) == "bad_header"


def test_facts_of_a_known_file(recipe_file):
    path = recipe_file("h264_open_gop")
    facts = probe(str(path))
    assert (facts.kind, facts.codec, facts.pix_fmt, facts.width, facts.height) == ("video", "h264", "yuv420p", 96, 64)
    assert (facts.num_packets, facts.num_video_streams, facts.has_audio) == (60, 1, False)
    assert (facts.vfr, facts.interlaced, facts.rotation, facts.hflip) == (False, False, 0, False)
    assert facts.avg_fps == pytest.approx(25) and facts.duration_seconds == pytest.approx(2.4)
    assert facts.size_bytes == path.stat().st_size
    assert (facts.end_pts - facts.start_pts) * facts.time_base == Fraction(60, 25)


def test_every_recipe_is_counted_exactly(recipe, recipe_file):
    facts = probe(str(recipe_file(recipe)))
    assert facts.duration_seconds == pytest.approx(2.4, abs=0.05)
    hidden = recipe == "vp8_altref"  # its alternate references are packets of their own
    assert facts.num_packets == 60 or (hidden and facts.num_packets > 60)
    assert facts.vfr is False or hidden


@pytest.mark.parametrize("names", [("a.mp4", "libx264"), ("b.mkv", "libx264"), ("c.mkv", "ffv1")])
def test_long_files_are_read_at_their_ends_only(names, tmp_path, footage, monkeypatch):
    """What lies between is not needed where the container has an index, and not counted where it has none."""
    from vidpipe.media import probe as module

    frames = [footage.draw(k) for k in range(255)]
    path = footage.encode(tmp_path / names[0], frames=frames, codec=names[1], options={"g": "25"})
    whole = probe(str(path))
    monkeypatch.setattr(module, "INDEX_BYTES", 1000)
    part = probe(str(path))
    indexed = names[0].endswith("mp4")
    assert part.num_packets == (255 if indexed else None)
    assert (part.start_pts, part.end_pts, part.vfr) == (whole.start_pts, whole.end_pts, whole.vfr)
    assert part.avg_fps == pytest.approx(whole.avg_fps, rel=0.01)


def test_not_media(tmp_path):
    assert reason_of(tmp_path / "a.mp4", b"") == "empty_file"
    assert reason_of(tmp_path / "a.txt", b"hello world\n" * 50) == "not_media"
    assert reason_of(tmp_path / "b.mp4", os.urandom(9000)) == "not_media"
    assert reason_of(tmp_path / "c.mp4", bytes(9000)) == "not_media"
    assert reason_of(tmp_path / "d.svg", b'<svg xmlns="http://www.w3.org/2000/svg"></svg>') == "not_media"
    assert reason_of(tmp_path / "gone.mp4") == "io_error"


def test_files_that_would_open_others_are_not_media(tmp_path, recipe_file):
    """Playlists must not make a worker read other files, nor the network."""
    other = recipe_file("h264_closed")
    assert reason_of(tmp_path / "a.ffconcat", f"ffconcat version 1.0\nfile '{other}'\n".encode()) == "not_media"
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{other}\n#EXT-X-ENDLIST\n"
    assert reason_of(tmp_path / "b.m3u8", playlist.encode()) == "not_media"


def test_fifo_is_refused_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    assert reason_of(tmp_path / "pipe.mp4") == "io_error"


def test_cut_headers(tmp_path, recipe_file):
    mp4 = recipe_file("h264_closed").read_bytes()  # its moov is at the end
    assert reason_of(tmp_path / "a.mp4", mp4[: len(mp4) // 2]) == "truncated_header"
    webm = recipe_file("vp9_altref").read_bytes()
    assert reason_of(tmp_path / "a.webm", webm[:200]) in ("truncated_header", "bad_header", "no_video_stream")


def write_audio(path: Path, cover: bool) -> None:
    import av
    import numpy as np

    with av.open(str(path), "w") as container:
        audio = container.add_stream("aac", rate=16000, layout="mono")
        video = container.add_stream("mjpeg", rate=25) if cover else None
        if video is not None:
            video.height, video.width, video.pix_fmt = 64, 64, "yuvj420p"
            video.disposition = 1 << 10  # attached picture
        if video is not None:
            frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
            container.mux(video.encode(frame))
            container.mux(video.encode(None))
        for k in range(20):
            samples = np.zeros((1, 1024), np.float32)
            frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 16000, k * 1024
            container.mux(audio.encode(frame))
        container.mux(audio.encode(None))


def test_sound_alone_and_sound_with_a_cover(tmp_path):
    write_audio(tmp_path / "a.m4a", cover=False)
    assert reason_of(tmp_path / "a.m4a") == "audio_only"
    write_audio(tmp_path / "b.mp4", cover=True)
    assert reason_of(tmp_path / "b.mp4") == "cover_art_only"


def test_encrypted_samples(tmp_path, footage):
    options = {
        "encryption_scheme": "cenc-aes-ctr",
        "encryption_key": "76a6c65c5ea762046bd749a2e632ccbb",
        "encryption_kid": "a7e61c373e219033c21091fa607bf3b8",
    }
    frames = [footage.draw(k) for k in range(5)]
    path = footage.encode(tmp_path / "secret.mp4", frames=frames, container_options=options)
    assert reason_of(path) == "encrypted"


def test_a_codec_that_nobody_knows(tmp_path, recipe_file):
    data = recipe_file("mjpeg").read_bytes()
    assert data.count(b"V_MJPEG") == 1
    assert reason_of(tmp_path / "a.mkv", data.replace(b"V_MJPEG", b"V_QWERT")) == "unsupported_codec"


def test_a_header_that_claims_a_wall_of_pixels(tmp_path, recipe_file, monkeypatch):
    from vidpipe.media import container

    monkeypatch.setattr(container, "MAX_PIXELS", 1000)
    assert reason_of(recipe_file("h264_closed")) == "oversized"


def test_video_without_a_picture(tmp_path, recipe_file):
    data = bytearray(recipe_file("mjpeg").read_bytes())
    at = -1
    while (at := data.find(b"\xff\xd8\xff", at + 1)) >= 0:
        data[at : at + 400] = bytes(400)
    assert reason_of(tmp_path / "a.mkv", bytes(data)) in ("no_frames", "bad_header")


def test_the_largest_of_those_marked_default_is_chosen(tmp_path, footage):
    import av

    sizes = [(64, 96, 1), (128, 160, 1), (256, 320, 0), (48, 64, 1)]
    path = tmp_path / "many.mkv"
    with av.open(str(path), "w") as container:
        streams = []
        for height, width, default in sizes:
            stream = container.add_stream("libx264", rate=25, options={"threads": "1"})
            stream.height, stream.width, stream.pix_fmt, stream.disposition = height, width, "yuv420p", default
            streams.append(stream)
        for stream, (height, width, _) in zip(streams, sizes):
            for k in range(3):
                frame = av.VideoFrame.from_ndarray(footage.draw(k, height, width), format="rgb24")
                frame.pts, frame.time_base = k, Fraction(1, 25)
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    facts = probe(str(path))
    assert (facts.stream_index, facts.height, facts.num_video_streams) == (1, 128, 4)
    assert probe(str(path), stream_index=2).height == 256
    with pytest.raises(MediaError, match="stream 9"):
        probe(str(path), stream_index=9)


def test_vfr_by_the_spread_of_intervals():
    assert is_vfr([0, 33, 67, 100, 133]) is False
    assert is_vfr([0, 40, 80, 120, 200]) is True
    assert is_vfr([0, 1, 2, 4]) is False  # a tick is all the clock can tell
    assert is_vfr([0, 40]) is None


def test_memory_does_not_grow_with_the_file(tmp_path, footage):
    frames = [footage.draw(k % 250, 32, 32) for k in range(2000)]
    path = footage.encode(tmp_path / "long.mkv", frames=frames, codec="mjpeg", pix_fmt="yuvj420p")
    tracemalloc.start()
    probe(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.media
def test_real_files_have_the_facts_of_their_manifest(media_dir):
    checked = 0
    for manifest in (media_dir / "MANIFEST.json", media_dir / "hard" / "MANIFEST.json"):
        for entry in json.loads(manifest.read_text()):
            if not entry.get("decoded_frames") or entry["file"] == "nasa_13013.mp4":  # ours is its second stream
                continue
            facts = probe(str(manifest.parent / entry["file"]))
            found = (facts.coded_width, facts.coded_height, facts.num_packets, facts.num_keyframes)
            assert found == (entry["width"], entry["height"], int(entry["packets"]), entry["keyframes"]), entry["file"]
            assert (facts.vfr, facts.pix_fmt) == (entry["vfr"], entry["pix_fmt"]), entry["file"]
            checked += 1
    assert checked > 50
