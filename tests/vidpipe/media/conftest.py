"""Footage of known content: each picture carries its own number in blocks, so that a test can say which frame it got.

Frames: uint8 RGB [H, W, 3]. A number is 8 bits in 8 vertical stripes of the upper half, dark or light; the lower half
moves, so that predicted pictures hold something.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import av
import numpy as np
import pytest


def draw(number: int, height: int = 64, width: int = 96) -> np.ndarray:
    """Picture of a number in 0..255."""
    frame = np.full((height, width, 3), 128, dtype=np.uint8)
    for bit in range(8):
        left, right = bit * width // 8, (bit + 1) * width // 8
        frame[: height // 2, left:right] = 220 if number >> bit & 1 else 30
    y, x = np.mgrid[0 : height - height // 2, 0:width]
    frame[height // 2 :, :, 0] = (x * 3 + number * 5) % 256
    frame[height // 2 :, :, 1] = (y * 4 + number * 3) % 256
    frame[height // 2 :, :, 2] = ((x + y) * 2 + number * 7) % 256
    return frame


def number_of(frame_HWC: np.ndarray) -> int:
    """Number that a picture carries, at any size."""
    height, width = frame_HWC.shape[:2]
    strip = frame_HWC[height // 8 : height * 3 // 8].mean(axis=(0, 2))
    bits = [strip[(2 * b + 1) * width // 16] > 125 for b in range(8)]
    return sum(1 << b for b, on in enumerate(bits) if on)


def encode(
    path: Path,
    *,
    frames: Sequence[np.ndarray],
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    pts: Sequence[int] | None = None,
    rate: Fraction | int = 25,
    time_base: Fraction | None = None,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
    before: Callable[[object], None] | None = None,
) -> Path:
    """Encode pictures to a file; `before` may change the stream before its encoder opens."""
    with av.open(str(path), "w", container_options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=rate, options={"threads": "1", **(options or {})})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = pix_fmt
        stream.codec_context.thread_count = 1
        if time_base is not None:
            stream.codec_context.time_base = stream.time_base = time_base
        if before is not None:
            before(stream)
        unit = time_base or 1 / Fraction(rate)
        for k, picture in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = (k if pts is None else pts[k]), unit
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


RECIPES: dict[str, dict] = {
    "h264_closed": {"suffix": "mp4", "codec": "libx264", "options": {"g": "12", "bf": "3", "preset": "veryfast"}},
    "h264_open_gop": {
        "suffix": "mp4",
        "codec": "libx264",
        "options": {"x264-params": "open-gop=1:keyint=12:min-keyint=12:bframes=3:b-pyramid=normal:scenecut=0"},
    },
    "h264_intra_refresh": {
        "suffix": "mkv",
        "codec": "libx264",
        "options": {"x264-params": "intra-refresh=1:keyint=16:bframes=0"},
    },
    "h264_pyramid_mkv": {
        "suffix": "mkv",
        "codec": "libx264",
        "options": {"x264-params": "keyint=20:bframes=5:b-pyramid=strict:ref=4"},
    },
    "h264_444_cavlc": {
        "suffix": "mp4",
        "codec": "libx264",
        "pix_fmt": "yuv444p",
        "options": {"x264-params": "keyint=12:cabac=0:8x8dct=1"},
    },
    "hevc_open_gop": {
        "suffix": "mp4",
        "codec": "libx265",
        "options": {
            "x265-params": "open-gop=1:keyint=12:min-keyint=12:bframes=4:log-level=none:pools=1:frame-threads=1"
        },
    },
    "hevc_10bit_mkv": {
        "suffix": "mkv",
        "codec": "libx265",
        "pix_fmt": "yuv420p10le",
        "options": {"x265-params": "keyint=10:bframes=2:log-level=none:pools=1:frame-threads=1"},
    },
    "mpeg2_ts": {"suffix": "ts", "codec": "mpeg2video", "options": {"g": "12", "bf": "2"}},
    "mpeg2_mp4": {"suffix": "mp4", "codec": "mpeg2video", "options": {"g": "12", "bf": "2"}},
    "h264_ts": {"suffix": "ts", "codec": "libx264", "options": {"g": "12", "bf": "3"}},
    "mpeg4_avi": {"suffix": "avi", "codec": "mpeg4", "options": {"g": "12", "bf": "2"}},
    "vp8_altref": {
        "suffix": "webm",
        "codec": "libvpx",
        "options": {"g": "16", "auto-alt-ref": "1", "lag-in-frames": "12", "deadline": "good", "cpu-used": "4"},
    },
    "vp9_altref": {
        "suffix": "webm",
        "codec": "libvpx-vp9",
        "options": {"g": "16", "auto-alt-ref": "1", "lag-in-frames": "12", "deadline": "good", "cpu-used": "5"},
    },
    "av1": {
        "suffix": "mp4",
        "codec": "libsvtav1",
        "options": {"g": "16", "preset": "12", "svtav1-params": "lp=1"},
    },
    "prores": {"suffix": "mov", "codec": "prores_ks", "pix_fmt": "yuv422p10le"},
    "mjpeg": {"suffix": "mkv", "codec": "mjpeg", "pix_fmt": "yuvj420p"},
    "ffv1": {"suffix": "mkv", "codec": "ffv1", "options": {"g": "8"}},
    "flv": {"suffix": "flv", "codec": "libx264", "options": {"g": "12", "bf": "2"}},
}
"""Streams that make seeking hard, each in its own way."""


@pytest.fixture(scope="session")
def recipe_names() -> list[str]:
    return sorted(RECIPES)


@pytest.fixture(scope="session")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """File of a recipe of `RECIPES`: 60 numbered pictures at 25 frames/s, encoded once a session."""
    folder, made = tmp_path_factory.mktemp("recipes"), {}

    def get(name: str) -> Path:
        if name not in made:
            recipe = dict(RECIPES[name])
            path = folder / f"{name}.{recipe.pop('suffix')}"
            made[name] = encode(path, frames=[draw(k) for k in range(60)], **recipe)
        return made[name]

    return get


@pytest.fixture(scope="session")
def footage() -> object:
    """`draw`, `number_of` and `encode`, for tests that make their own files."""

    class Footage:
        pass

    made = Footage()
    made.draw, made.number_of, made.encode = draw, number_of, encode  # type: ignore[attr-defined]
    return made


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `recipe` once a recipe."""
    if "recipe" in metafunc.fixturenames:
        metafunc.parametrize("recipe", sorted(RECIPES))
