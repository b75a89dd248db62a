"""Decoding speed: on a GPU against bare torchcodec threads, DALI and CPU cores; on one CPU core against FFmpeg's tool.

    python tests/bench/decode.py make FOLDER [--seconds 12]     make the files: 1080p H.264, HEVC and AV1; no GPU needed
    python tests/bench/decode.py gpu FOLDER [--threads 16] [--rounds 3] [--output decode.json]
    python tests/bench/decode.py cpu FOLDER_OR_FILES [--short-side 180] [--rounds 3]

`gpu` gives, for each codec, frames/s of 1080p to 480x832 RGB uint8 frames resident on the device. `bare` is torchcodec
alone, a decoder a file and thread, get_frames_in_range, frames left at 1080p and dropped; `ours` is open_video and
frames(size_hw=...), packet index and resize included, the probe's facts given, as `encode` takes them from the dataset;
both decode every frame of the same files in the same threads, three files a thread, taking turns within a round, and a
figure is the median of the rounds. `dali` is DALI alone, fn.experimental.readers.video in a pipeline a thread, frames
left at 1080p too. `cpu` beside it is PyAV in 16 processes. A codec that this GPU's NVDEC lacks gets that row alone.

`cpu` gives milliseconds of CPU time a frame (user and system, all threads, pinned to one core), the median of rounds
taken by turns: `scan`, our pass to RGB of a short side; `ffmpeg`, its tool with one thread decoding and scaling to that
size (its default filter, bicubic; no RGB) to null; `ffmpeg_area`, the same with the filter that we use; `ffmpeg_bare`
and `bare`, decoding alone by that tool and by PyAV in this process: where `ffmpeg / bare` is below an aim, decoding
itself forbids it. Starting ffmpeg costs some 60 ms, so that short files flatter us.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import queue
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

SIZE_HW = (480, 832)
CHUNK = 48
CODECS: dict[str, tuple[str, dict[str, str]]] = {
    "h264": ("libx264", {"preset": "veryfast", "crf": "23", "g": "60", "bf": "2"}),
    "hevc": ("libx265", {"preset": "ultrafast", "crf": "26", "x265-params": "keyint=60:bframes=2:log-level=error"}),
    "av1": ("libsvtav1", {"preset": "10", "crf": "35", "g": "60"}),
}


def scene(seconds: float, height: int = 1080, width: int = 1920) -> Iterator[np.ndarray]:
    """Textured picture that pans, with grain and a moving bar, 30 frames/s: no codec can skip it."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:height, 0 : 2 * width].astype(np.float32)
    wide = 110 + 40 * np.sin(x / 37) + 35 * np.cos(y / 23 + x / 91) + rng.normal(0, 20, x.shape)
    texture = np.stack([wide, np.roll(wide, 200, 1), 255 - wide], axis=2).clip(0, 255).astype(np.uint8)
    grain = rng.integers(0, 16, (8, height, width, 1), dtype=np.uint8)
    for k in range(round(seconds * 30)):
        left = (6 * k) % width
        frame = texture[:, left : left + width] // 2 + 60 + grain[k % 8]
        frame[:, (17 * k) % (width - 80) :][:, :80] = 235
        yield frame


def make(folder: Path, seconds: float) -> None:
    """Encode the files."""
    import av

    folder.mkdir(parents=True, exist_ok=True)
    for name, (codec, options) in CODECS.items():
        path = folder / f"{name}.mp4"
        with av.open(str(path), "w") as container:
            stream = container.add_stream(codec, rate=30, options=options)
            stream.height, stream.width, stream.pix_fmt = 1080, 1920, "yuv420p"
            for k, picture in enumerate(scene(seconds)):
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = k, Fraction(1, 30)
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", flush=True)


def bare(path: str, device: str) -> int:
    """torchcodec alone."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(path, device=device)
    for start in range(0, len(decoder), CHUNK):
        decoder.get_frames_in_range(start, min(start + CHUNK, len(decoder)))
    return len(decoder)


@functools.cache
def facts_of(path: str) -> Any:
    """As the dataset has them."""
    from vidpipe.media.probe import probe

    return probe(path)


def ours(path: str, device: str, decoder: str) -> int:
    """Every frame of the file through the reader, in clips of CHUNK frames, as `encode` asks for them."""
    from vidpipe.media.decode import open_video
    from vidpipe.media.reference import ClipReference

    facts = facts_of(path)
    with open_video(path, decoder=decoder, device=device, facts=facts) as reader:
        tick = (facts.end_pts - facts.start_pts) * CHUNK // (facts.num_packets or CHUNK)
        count = 0
        for start in range(facts.start_pts, facts.end_pts, tick):
            clip = ClipReference(
                uri=path, stream_index=facts.stream_index, start_pts=start, end_pts=min(start + tick, facts.end_pts),
                time_base=facts.time_base, intact=True,
            )  # fmt: skip
            pts = reader.frame_pts(clip)
            count += len(reader.frames(clip, pts, size_hw=SIZE_HW)) if len(pts) else 0
            if reader.decoder_name != decoder:
                why = getattr(reader, "problem", "")
                raise RuntimeError(f"{path}: decoded by {reader.decoder_name}, not by {decoder}: {why}")
        return count


@functools.cache
def idle_streams(threads: int) -> Any:
    """CUDA streams, the same ones in every round: freed memory is kept a stream."""
    import torch

    streams: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(threads):
        streams.put(torch.cuda.Stream())
    return streams


def rate_threads(work: Callable[[str], int], path: str, threads: int, files: int) -> float:
    """Frames/s of `threads` threads, each in a CUDA stream of its own, over `files` files (the same one)."""
    import torch

    streams = idle_streams(threads)

    def run(_: int) -> int:
        stream = streams.get()
        with torch.cuda.stream(stream):
            count = work(path)
            stream.synchronize()
        streams.put(stream)
        return count

    torch.cuda.synchronize()
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        frames = sum(pool.map(run, range(files)))
    torch.cuda.synchronize()
    return frames / (time.perf_counter() - start)


def rate_dali(path: str, threads: int) -> float:
    """Frames/s of DALI's reader in a pipeline a thread, an epoch each; building them is not counted."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=1, num_threads=1, device_id=0)
    def reading() -> Any:
        return fn.experimental.readers.video(device="gpu", filenames=[path], sequence_length=CHUNK, step=CHUNK)

    frames = facts_of(path).num_packets // CHUNK
    pipelines = [reading() for _ in range(threads)]
    for pipeline in pipelines:
        pipeline.build()

    def run(pipeline: Any) -> int:
        return sum(pipeline.run()[0].shape()[0][0] for _ in range(frames))

    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        total = sum(pool.map(run, pipelines))
        return total / (time.perf_counter() - start)


def _cpu_ready() -> None:
    import torch

    from vidpipe.media import pyav  # noqa: F401

    torch.set_num_threads(1)


def _cpu_process(path: str) -> int:
    return ours(path, "cpu", "pyav")


def rate_processes(path: str, processes: int) -> float:
    """Frames/s of PyAV, resized on the CPU, in as many processes; starting them is not counted."""
    import multiprocessing

    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _cpu_ready) as pool:
        list(pool.map(time.sleep, [1.0] * processes))
        start = time.perf_counter()
        frames = sum(pool.map(_cpu_process, [path] * processes))
        return frames / (time.perf_counter() - start)


def gpu(folder: Path, threads: int, rounds: int) -> list[dict[str, Any]]:
    """Rows of the GPU table."""
    from vidpipe.media.doctor import dali_problem, nvdec_problem
    from vidpipe.media.nvdec import engines

    if nvdec_problem():
        raise SystemExit(f"NVDEC cannot be used: {nvdec_problem()}")
    ways: dict[str, Callable[[str], int]] = {
        "bare": lambda path: bare(path, "cuda"),
        "ours": lambda path: ours(path, "cuda", "torchcodec-cuda"),
    }
    rows = []
    for name in CODECS:
        path = str(folder / f"{name}.mp4")
        row: dict[str, Any] = {"codec": name, "nvdec_engines": engines(name), "threads": threads}
        if not engines(name):
            row["cpu_16_processes"] = round(rate_processes(path, 16))
            print(json.dumps(row), flush=True)
            rows.append(row)
            continue
        found: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(rounds + 1):
            for way, work in ways.items():
                speed = rate_threads(work, path, threads, 3 * threads if turn else threads)
                if turn:  # the first warms up
                    found[way].append(speed)
        row |= {way: round(statistics.median(speeds)) for way, speeds in found.items()}
        row["ours_over_bare"] = round(row["ours"] / row["bare"], 3)
        row["rounds"] = {way: [round(v) for v in speeds] for way, speeds in found.items()}
        if not dali_problem():
            try:
                row["dali"] = round(rate_dali(path, threads))
            except RuntimeError as error:
                row["dali"] = str(error)
        row["cpu_16_processes"] = round(rate_processes(path, 16))
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def cpu_seconds() -> float:
    """User and system time of this process and its ended children."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


def passed(path: str, facts: Any, short_side: int) -> int:
    """Frames of our pass."""
    from vidpipe.media.decode import open_video

    with open_video(path, decoder="pyav", facts=facts) as reader:
        return sum(len(batch) for batch in reader.scan(max_short_side=short_side))


def decoded(path: str, stream_index: int) -> int:
    """Frames that PyAV's decoder gives, which nobody looks at."""
    import av

    with av.open(path) as container:
        stream = container.streams[stream_index]
        stream.codec_context.thread_count, stream.codec_context.thread_type = 1, "NONE"
        return sum(len(packet.decode()) for packet in container.demux(stream))


def tool(command: list[str]) -> None:
    """Run ffmpeg to null."""
    subprocess.run([*command, "-f", "null", "-"], check=True)


def cpu(paths: list[str], short_side: int, rounds: int) -> list[dict[str, Any]]:
    """Rows of the CPU table."""
    from vidpipe.media.decode import open_video

    with suppress(AttributeError, OSError):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    rows = []
    for path in paths:
        with open_video(path, decoder="pyav") as reader:
            facts = reader.facts
            height, width = next(reader.scan(max_short_side=short_side)).frames_THWC.shape[1:3]

        found = {way: [] for way in ("scan", "ffmpeg", "ffmpeg_area", "ffmpeg_bare", "bare")}  # type: ignore[var-annotated]
        ffmpeg = ["ffmpeg", "-v", "error", "-threads", "1", "-i", path, "-map", f"0:{facts.stream_index}"]
        size = f"scale={width}:{height}"
        ways: dict[str, Callable[[], Any]] = {
            "scan": lambda path=path, facts=facts: passed(path, facts, short_side),
            "ffmpeg": lambda ffmpeg=ffmpeg, size=size: tool([*ffmpeg, "-vf", size]),
            "ffmpeg_area": lambda ffmpeg=ffmpeg, size=size: tool([*ffmpeg, "-vf", f"{size}:flags=area"]),
            "ffmpeg_bare": lambda ffmpeg=ffmpeg: tool(ffmpeg),
            "bare": lambda path=path, facts=facts: decoded(path, facts.stream_index),
        }
        frames = passed(path, facts, short_side)
        for _ in range(rounds):
            for way, work in ways.items():
                start = cpu_seconds()
                work()
                found[way].append((cpu_seconds() - start) * 1000 / frames)
        row: dict[str, Any] = {"file": Path(path).name, "frames": frames, "to": f"{width}x{height}"}
        row |= {f"{way}_ms": round(statistics.median(times), 3) for way, times in found.items()}
        row["ratio"] = round(row["ffmpeg_ms"] / row["scan_ms"], 2)
        row["bound"] = round(row["ffmpeg_ms"] / row["bare_ms"], 2)
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "gpu", "cpu"])
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short-side", type=int, default=180)
    parser.add_argument("--output")
    given = parser.parse_args()
    first = Path(given.paths[0])
    if given.what == "make":
        make(first, given.seconds)
        return
    if given.what == "gpu":
        rows = gpu(first, given.threads, given.rounds)
    else:
        files = sorted(map(str, first.glob("*.mp4"))) if first.is_dir() else given.paths
        rows = cpu(files, given.short_side, given.rounds)
    if given.output:
        Path(given.output).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
