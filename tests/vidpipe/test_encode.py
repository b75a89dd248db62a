"""Clips of known content, written losslessly, encoded, read back."""

from __future__ import annotations

import dataclasses
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

from schemas.buckets import Bucket
from schemas.errors import BucketMismatch
from schemas.latent_spaces import LatentSpace
from vidpipe import encode, feed
from vidpipe.encode import EncodeConfig, Turn, encode_clips
from vidpipe.vaes.base import Vae
from vidpipe.vaes.dct import DctVae

BUCKET = Bucket(5, 32, 48)
FPS = 10


def write_video(path: Path, frames_THWC: np.ndarray) -> Path:
    """Lossless RGB at 10 frames/s, time base 1/1000 s."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=FPS)
        stream.height, stream.width = frames_THWC.shape[1:3]
        stream.pix_fmt = "bgr0"
        for frame in frames_THWC:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24").reformat(format="bgr0")))
        container.mux(stream.encode())
    return path


def greys(num: int, height: int = 32, width: int = 48, first: int = 10, step: int = 5) -> np.ndarray:
    """Frame i is grey of value first + step * i."""
    values = np.arange(num, dtype=np.uint8) * step + first
    return np.broadcast_to(values[:, None, None, None], (num, height, width, 3))


def clip_row(path: Path, name: int, start: float, end: float, **more: Any) -> dict[str, Any]:
    row = {
        "clip_id": bytes([name]) * 16,
        "uris": [str(path)],
        "stream_index": 0,
        "start_pts": round(start * 1000),
        "end_pts": round(end * 1000),
        "time_base_num": 1,
        "time_base_den": 1000,
        "start_seconds": start,
        "end_seconds": end,
        "num_frames": round((end - start) * FPS),
        "fps": float(FPS),
        "width": 48,
        "height": 32,
        "user_crop": None,
    }
    return row | more


@pytest.fixture
def two_files(tmp_path: Path) -> list[dict[str, Any]]:
    a = write_video(tmp_path / "a.mkv", greys(20))
    b = write_video(tmp_path / "b.mkv", greys(20, first=100))
    return [clip_row(a, 1, 0, 0.5), clip_row(b, 2, 0.3, 0.9), clip_row(a, 3, 1.0, 1.5), clip_row(b, 4, 1.0, 1.6)]


CONFIG = EncodeConfig(fps="10")


def latents_of(table: Any) -> dict[bytes, torch.Tensor]:
    shape = (16, *BUCKET.latent_shape(DctVae().space)[1:])
    return {
        r["clip_id"]: torch.frombuffer(bytearray(r["latent"]), dtype=torch.bfloat16).view(shape)
        for r in table.to_pylist()
    }


def test_latents_are_those_of_the_frames_at_the_clips_times(two_files):
    table, outcomes = encode_clips(two_files, BUCKET, DctVae(), CONFIG, fingerprint="f")
    assert [(o.status, o.item) for o in outcomes] == [("kept", "5x32x48")] * 4
    assert [o.id for o in outcomes] == [r["clip_id"] for r in two_files]
    latents = latents_of(table)
    for name, first in ((1, 10), (2, 100 + 15), (3, 10 + 50), (4, 100 + 50)):
        frames = torch.from_numpy(greys(5, first=first).copy()).permute(3, 0, 1, 2)[None]
        assert torch.equal(latents[bytes([name]) * 16], DctVae().encode(frames)[0])


def test_rows_say_how_the_clip_was_cut(two_files):
    table, _ = encode_clips(two_files, BUCKET, DctVae(), CONFIG, fingerprint="f")
    rows = {r["clip_id"][0]: r for r in table.to_pylist()}
    assert [rows[i]["frames_dropped"] for i in (1, 2, 3, 4)] == [0, 1, 0, 1]
    assert [rows[i]["start_seconds"] for i in (1, 2, 3, 4)] == [0, 0.3, 1.0, 1.0]
    assert all(r["crop"] == [0, 0, 48, 32] and r["scale"] == 1 and r["cropped_fraction"] == 0 for r in rows.values())
    assert all(r["fps"] == 10 and r["latent_crc32"] == zlib.crc32(r["latent"]) for r in rows.values())
    assert table["latent_id"].to_pylist() == sorted(table["latent_id"].to_pylist())


def test_threads_and_batches_change_no_bit(two_files):
    plain, _ = encode_clips(two_files, BUCKET, DctVae(), CONFIG, fingerprint="f")
    batched = dataclasses.replace(CONFIG, batch_frames=15)
    threaded, outcomes = encode_clips(two_files, BUCKET, DctVae(), batched, fingerprint="f", threads=3)
    assert threaded.equals(plain)
    assert [o.status for o in outcomes] == ["kept"] * 4


def test_a_files_clips_share_one_reader_in_pts_order(two_files, monkeypatch):
    from vidpipe.media import decode

    opened, asked = [], []
    real = decode.open_video

    def open_video(uri, *args, **kwargs):
        opened.append(Path(uri).name)
        return real(uri, *args, **kwargs)

    def decode_clip(reader, row, *args):
        asked.append((Path(row["uris"][0]).name, row["start_pts"]))
        return real_clip(reader, row, *args)

    real_clip = feed.decode_clip
    monkeypatch.setattr(decode, "open_video", open_video)
    monkeypatch.setattr(feed, "decode_clip", decode_clip)
    encode_clips(list(reversed(two_files)), BUCKET, DctVae(), CONFIG, fingerprint="f")
    assert opened == ["a.mkv", "b.mkv"]
    assert asked == [("a.mkv", 0), ("a.mkv", 1000), ("b.mkv", 300), ("b.mkv", 1000)]


def test_bad_clips_become_outcomes_and_the_others_go_on(two_files, tmp_path):
    broken = tmp_path / "broken.mkv"
    broken.write_bytes(b"\x1aE\xdf\xa3" + bytes(3000))
    rows = [
        *two_files,
        clip_row(broken, 5, 0, 0.5),
        clip_row(Path(two_files[0]["uris"][0]), 6, 0, 0.4),
        clip_row(Path(two_files[0]["uris"][0]), 7, 50, 50.5),
        clip_row(Path(two_files[0]["uris"][0]), 8, 0, 0.5, width=40, height=16),
    ]
    table, outcomes = encode_clips(rows, BUCKET, DctVae(), CONFIG, fingerprint="f")
    assert table.num_rows == 4
    by_name = {o.id[0]: o for o in outcomes}
    assert [by_name[i].status for i in range(1, 9)] == ["kept"] * 4 + ["failed", "rejected", "failed", "rejected"]
    assert by_name[6].reason == "too_short"
    assert "needs 5 frames at 10 fps, not 4" in by_name[6].message
    assert by_name[7].reason == "no_frames"
    assert by_name[8].reason == "too_small"
    assert "broken.mkv" in by_name[5].message


def test_a_moved_file_is_read_from_its_other_place(two_files):
    row = two_files[0] | {"uris": ["/nowhere/a.mkv", two_files[0]["uris"][0]]}
    _, outcomes = encode_clips([row], BUCKET, DctVae(), CONFIG, fingerprint="f")
    assert outcomes[0].status == "kept"


def test_another_file_in_its_place_is_not_encoded_under_its_name(two_files):
    row = two_files[0] | {"etags": ["of another file"], "video_id": b"another"}
    table, outcomes = encode_clips([row], BUCKET, DctVae(), CONFIG, fingerprint="f")
    assert table.num_rows == 0
    assert [(o.status, o.reason) for o in outcomes] == [("failed", "changed")]


def test_letterbox_and_user_crop_are_cropped(tmp_path):
    picture = np.zeros((10, 80, 100, 3), np.uint8)
    picture[:, 20:52, 30:78] = 200  # a 48x32 picture inside a user's crop of 60x48 at (26, 12)
    path = write_video(tmp_path / "bars.mkv", picture)
    bars = {"crop_x": 4, "crop_y": 8, "crop_width": 48, "crop_height": 32}
    row = clip_row(path, 1, 0, 0.5, width=60, height=48, user_crop=[26, 12, 60, 48], **bars)
    table, _ = encode_clips([row], BUCKET, DctVae(), CONFIG, fingerprint="f")
    assert table["crop"].to_pylist() == [[30, 20, 48, 32]]
    flat = torch.full((1, 3, 5, 32, 48), 200, dtype=torch.uint8)
    assert torch.equal(latents_of(table)[row["clip_id"]], DctVae().encode(flat)[0])


def test_ids_tell_bucket_rate_crop_and_fingerprint_apart(two_files):
    def the_id(config: EncodeConfig = CONFIG, bucket: Bucket = BUCKET, fingerprint: str = "f", **more: Any) -> bytes:
        row = two_files[1] | more
        return encode_clips([row], bucket, DctVae(), config, fingerprint=fingerprint)[0]["latent_id"].to_pylist()[0]

    bars = {"crop_x": 0, "crop_y": 0, "crop_width": 40, "crop_height": 32}
    small = Bucket(5, 16, 24)
    found = {
        the_id(), the_id(bucket=small), the_id(config=dataclasses.replace(CONFIG, fps="9")), the_id(fingerprint="g"),
        the_id(bucket=small, **bars),
    }  # fmt: skip
    assert len(found) == 5
    assert the_id() == the_id()


def test_an_image_is_a_clip_of_one_frame(tmp_path):
    path = write_video(tmp_path / "still.mkv", greys(1, first=77))
    row = clip_row(path, 1, 0, 0.1)
    table, outcomes = encode_clips([row], Bucket(1, 32, 48), DctVae(), CONFIG, fingerprint="f")
    assert outcomes[0].status == "kept"
    expected = DctVae().encode(torch.full((1, 3, 1, 32, 48), 77, dtype=torch.uint8))
    assert table["latent"].to_pylist()[0] == encode.latent_bytes(expected[0])


class SmallMemory(Vae):
    """Encodes at most two clips at a time, or none."""

    name, device, dtype = "small", "cpu", "float32"

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.batches: list[int] = []

    @property
    def space(self) -> LatentSpace:
        return dataclasses.replace(DctVae().space, revision=f"small{self.capacity}")

    def encode_raw(self, frames_BCTHW: torch.Tensor) -> torch.Tensor:
        self.batches.append(len(frames_BCTHW))
        if len(frames_BCTHW) > self.capacity:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return DctVae().encode_raw(frames_BCTHW)

    def decode_raw(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def test_out_of_memory_halves_the_batch_and_the_limit_stays(two_files, monkeypatch):
    monkeypatch.setattr(encode, "_batch_limits", {})
    vae = SmallMemory(2)
    config = dataclasses.replace(CONFIG, batch_frames=20)
    table, outcomes = encode_clips(two_files, BUCKET, vae, config, fingerprint="f")
    assert vae.batches == [4, 2, 2]
    assert table.num_rows == 4 and all(o.status == "kept" for o in outcomes)
    vae.batches.clear()
    encode_clips(two_files, BUCKET, vae, config, fingerprint="f")
    assert vae.batches == [2, 2]


def test_one_thread_encodes_on_a_gpu_whoever_asks(two_files):
    """cuDNN's choice of algorithms is kept a thread: another thread would try them all again."""
    used: list[int] = []

    class Watched(SmallMemory):
        device = "cuda:0"  # no GPU is touched: the frames are on the CPU

        def encode(self, frames_BCTHW):
            used.append(threading.get_ident())
            return DctVae().encode(frames_BCTHW)

    vae = Watched(4)
    clips = list(feed.feed(two_files, BUCKET, CONFIG, feed.FeedConfig()))
    with ThreadPoolExecutor(2) as pool:
        parts = pool.map(lambda clip: list(encode.encode_batch([clip], vae, BUCKET, CONFIG, {})), clips)
        latents = [tensors["latent"] for part in parts for _, tensors, _ in part]
    assert len(latents) == len(used) == 4 and len(set(used)) == 1
    assert used[0] != threading.get_ident()
    expected = [DctVae().encode(clip.frames_TCHW[None].transpose(1, 2)) for clip in clips]
    assert all(torch.equal(a, b) for a, b in zip(latents, expected))


def test_a_compiled_vae_sees_one_batch_size(two_files, monkeypatch):
    monkeypatch.setattr(encode, "_batch_limits", {})
    vae = SmallMemory(9)
    vae.compile = True
    config = dataclasses.replace(CONFIG, batch_frames=15)
    table, _ = encode_clips(two_files, BUCKET, vae, config, fingerprint="f")
    assert vae.batches == [3, 3]
    expected, _ = encode_clips(two_files, BUCKET, DctVae(), CONFIG, fingerprint="f")
    assert table["latent"].equals(expected["latent"])


def test_a_full_batch_for_one_clip_that_runs_out_of_memory_is_halved(two_files, monkeypatch):
    monkeypatch.setattr(encode, "_batch_limits", {})
    vae = SmallMemory(1)
    vae.compile = True
    config = dataclasses.replace(CONFIG, batch_frames=20)
    _, outcomes = encode_clips(two_files[:1], BUCKET, vae, config, fingerprint="f")
    assert vae.batches == [4, 2, 1] and outcomes[0].status == "kept"


def test_a_bucket_that_never_fits_fails_its_clips(two_files, monkeypatch):
    monkeypatch.setattr(encode, "_batch_limits", {})
    table, outcomes = encode_clips(two_files, BUCKET, SmallMemory(0), CONFIG, fingerprint="f")
    assert table.num_rows == 0
    assert {(o.status, o.reason) for o in outcomes} == {("failed", "out_of_memory")}


def test_other_errors_of_a_vae_stop_the_unit(two_files):
    class Broken(SmallMemory):
        def encode_raw(self, frames_BCTHW):
            raise RuntimeError("cudnn is broken")

    for threads in (0, 2):
        with pytest.raises(RuntimeError, match="cudnn is broken"):
            encode_clips(two_files, BUCKET, Broken(1), CONFIG, fingerprint="f", threads=threads)


def test_progress_names_the_clip_being_decoded(two_files):
    seen: list[int] = []
    encode_clips(two_files, BUCKET, DctVae(), CONFIG, fingerprint="f", progress=seen.append)
    assert list(dict.fromkeys(seen)) == [0, 2, 1, 3]  # a.mkv's clips, then b.mkv's


def test_damaged_frames_are_rejected_beyond_the_limit(two_files, monkeypatch):
    from vidpipe.media.decode import ClipFrames

    real = feed._sampled

    def sampled(*args):
        frames, first = real(*args)
        damaged = np.array([True, False, False, False, False])
        return ClipFrames(frames_TCHW=frames.frames_TCHW, pts=frames.pts, damaged=damaged), first

    monkeypatch.setattr(feed, "_sampled", sampled)
    _, outcomes = encode_clips(two_files[:1], BUCKET, DctVae(), CONFIG, fingerprint="f")
    assert (outcomes[0].status, outcomes[0].reason, outcomes[0].value) == (
        "rejected",
        "damaged",
        "damaged_fraction=0.2",
    )
    lenient = dataclasses.replace(CONFIG, max_damaged=0.2)
    assert encode_clips(two_files[:1], BUCKET, DctVae(), lenient, fingerprint="f")[1][0].status == "kept"


def test_a_bucket_off_the_rule_stops_at_once(two_files):
    with pytest.raises(BucketMismatch, match="5x32x48"):
        encode_clips(two_files, Bucket(6, 32, 48), DctVae(), CONFIG, fingerprint="f")


def test_rate_of_the_stream_itself(two_files):
    config = dataclasses.replace(CONFIG, fps="native")
    table, _ = encode_clips(two_files[:1], BUCKET, DctVae(), config, fingerprint="f")
    assert table["fps"].to_pylist() == [10.0]
    assert config.rate is None and CONFIG.rate == Fraction(10)


def test_units_on_one_gpu_take_turns_from_the_first_batch_to_the_last() -> None:
    """The lock alone: no GPU is touched."""
    told: list[str] = []

    def unit(name: str) -> None:
        with Turn("cuda:test") as turn:
            for _ in range(3):
                turn.take()
                told.append(name)
                time.sleep(0.02)
            turn.end()
            told.append("writes")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(unit, "abcd"))
    batches = [t for t in told if t != "writes"]
    assert all(len(set(batches[i : i + 3])) == 1 for i in range(0, 12, 3))
    with pytest.raises(ZeroDivisionError), Turn("cuda:test") as turn:
        turn.take()
        raise ZeroDivisionError
    with Turn("cuda:test") as turn:
        turn.take()  # the failed one let go
