"""On a GPU: the pipeline's latents are those of a CPU, whatever the threads and batches; memory limits are learned."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

from schemas.buckets import Bucket
from vidpipe import encode
from vidpipe.encode import encode_clips
from vidpipe.encode_config import EncodeConfig
from vidpipe.vaes.dct import DctVae

pytestmark = pytest.mark.gpu

BUCKET = Bucket(17, 96, 160)


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, Any]]:
    """Six clips of three H.264 files."""
    found = []
    for i in range(3):
        path = tmp_path / f"{i}.mp4"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=30)
            stream.height, stream.width, stream.pix_fmt = 192, 320, "yuv420p"
            y, x = np.mgrid[:192, :320]
            for t in range(90):
                picture = (128 + 60 * np.sin(x / 20 + t / (5 + i)) + 50 * np.cos(y / 15))[..., None].repeat(3, 2)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture.astype(np.uint8), "rgb24")))
            container.mux(stream.encode())
        with av.open(str(path)) as container:
            base = container.streams.video[0].time_base
        for k in range(2):
            start, end = (round(s / base) for s in (1.2 * k, 1.2 * k + 1.1))
            found.append({
                "clip_id": bytes([i, k]) * 8, "uris": [str(path)], "stream_index": 0, "start_pts": start,
                "end_pts": end, "time_base_num": base.numerator, "time_base_den": base.denominator,
                "start_seconds": 1.2 * k, "end_seconds": 1.2 * k + 1.1, "num_frames": 33, "fps": 30.0, "width": 320,
                "height": 192, "user_crop": None,
            })  # fmt: skip
    return found


def test_latents_agree_with_the_cpu(rows):
    config = EncodeConfig(fps="16", batch_frames=51)
    plain, _ = encode_clips(rows, BUCKET, DctVae(), config, fingerprint="f", decoder="pyav")
    found, outcomes = encode_clips(rows, BUCKET, DctVae(device="cuda"), config, fingerprint="f")
    assert [o.status for o in outcomes] == ["kept"] * 6
    assert found["latent_id"].to_pylist() == plain["latent_id"].to_pylist()
    for a, b in zip(found["latent"].to_pylist(), plain["latent"].to_pylist()):
        ours, theirs = (torch.frombuffer(bytearray(v), dtype=torch.bfloat16).float() for v in (a, b))
        assert (ours - theirs).abs().mean() < 0.03  # NVDEC, and resizing within 2 code values


def test_threads_and_batches_change_no_bit(rows):
    vae = DctVae(device="cuda")
    one, _ = encode_clips(rows, BUCKET, vae, EncodeConfig(batch_frames=17), fingerprint="f", threads=1)
    many, _ = encode_clips(rows, BUCKET, vae, EncodeConfig(batch_frames=102), fingerprint="f", threads=8)
    assert one.equals(many)


def test_two_units_at_once_take_turns_and_change_no_bit(rows):
    who: list[int] = []

    class Told(DctVae):
        def encode_raw(self, frames_BCTHW: torch.Tensor) -> torch.Tensor:
            who.append(int(frames_BCTHW[0].long().sum()))
            return super().encode_raw(frames_BCTHW)

    def unit(part: list[dict[str, Any]]) -> Any:
        return encode_clips(part, BUCKET, vae, EncodeConfig(batch_frames=17), fingerprint="f")[0]

    vae = Told(device="cuda")
    units = [rows[:3], rows[3:]]
    plain = [unit(part) for part in units]
    (first, second), who = (set(who[:3]), set(who[3:])), []
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(unit, units))
    assert [a.equals(b) for a, b in zip(found, plain)] == [True, True]
    assert {frozenset(who[:3]), frozenset(who[3:])} == {frozenset(first), frozenset(second)}


def test_a_real_out_of_memory_is_survived(rows, monkeypatch):
    monkeypatch.setattr(encode, "_batch_limits", {})

    class Greedy(DctVae):
        def encode_raw(self, frames_BCTHW: torch.Tensor) -> torch.Tensor:
            if len(frames_BCTHW) > 2:
                torch.empty(1 << 44, dtype=torch.uint8, device=frames_BCTHW.device)
            return super().encode_raw(frames_BCTHW)

    table, outcomes = encode_clips(rows, BUCKET, Greedy(device="cuda"), EncodeConfig(), fingerprint="f")
    assert table.num_rows == 6 and all(o.status == "kept" for o in outcomes)
    assert set(encode._batch_limits.values()) == {2}
