"""The whole encode pipeline against its parts: H.264 files in, committed Lance rows out.

    python tests/bench/encode_pipeline.py gpu [--files 16] [--seconds 41] [--bucket 81x480x832] [--output out.json]
    python tests/bench/encode_pipeline.py cpu [--rounds 5]

gpu: 1080p H.264 files, the full Wan 2.1 VAE (random weights), frames decoded as the pipeline decides (`--decoder`).
Prints the frames a second of the VAE alone, on frames that are already on the device and in batches of the same size,
and of the pipeline, from opening files to the commit; their ratio; and where the pipeline's time went: before the VAE's
first batch, between batches, after the last. Units are as large as the engine makes them (`--unit-mb`), two at a time
as in a worker: one decodes and writes while the other encodes. `--concurrent 1 2` compares, by turns.

cpu: one and two worker processes over the same files, bare decoding and the pipeline with `dct` in turn; prints the
speed-up of two processes for each, and the ratio of the two speed-ups.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa

from schemas import ids, layout, tables
from schemas.buckets import Bucket
from vidpipe.encode import batch_limit, encode_clips, table_metadata
from vidpipe.encode_config import EncodeConfig
from vidpipe.sections import EngineConfig
from vidpipe.stages.base import with_provenance
from vidpipe.store.commit import Committer, StagedUnit
from vidpipe.store.dataset import Dataset
from vidpipe.store.lease import Lease
from vidpipe.store.write import write_fragments

FPS = 30


def write_file(path: Path, height: int, width: int, seconds: float, seed: int) -> None:
    """H.264 of a picture with detail that moves, GOPs of 2 s with B-frames, about 8 Mbit/s at 1080p."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 8 + 64, width // 8 + 64, 3), dtype=np.uint8)
    picture = np.kron(coarse, np.ones((8, 8, 1), np.uint8))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        stream.options = {"preset": "veryfast", "crf": "23", "g": str(2 * FPS), "bf": "2", "threads": "1"}
        for i in range(round(seconds * FPS)):
            y, x = i % 256, (2 * i) % 256
            frame = np.ascontiguousarray(picture[y : y + height, x : x + width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        container.mux(stream.encode())


def make_files(folder: Path, count: int, height: int, width: int, seconds: float) -> list[Path]:
    """Footage, in as many threads as there are cores."""
    paths = [folder / f"{i:03d}.mp4" for i in range(count)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda i: write_file(paths[i], height, width, seconds, i), range(count)))
    return paths


def clip_rows(paths: list[Path], clip_seconds: Fraction) -> list[dict[str, Any]]:
    """Rows of the joined clip view: each file cut into clips of one length."""
    from vidpipe.media.decode import open_video

    rows = []
    for path in paths:
        with open_video(str(path), decoder="pyav") as reader:
            facts, index = reader.facts, reader.index()
        height, width = facts.geometry.display_hw
        step = int(clip_seconds / facts.time_base)
        for start in range(facts.start_pts, facts.end_pts - step + 1, step):
            span = (start, start + step)
            rows.append({
                "clip_id": ids.clip_id(path.name.encode(), facts.stream_index, *span, facts.time_base),
                "uris": [str(path)], "stream_index": facts.stream_index, "start_pts": span[0], "end_pts": span[1],
                "time_base_num": facts.time_base.numerator, "time_base_den": facts.time_base.denominator,
                "start_seconds": float(span[0] * facts.time_base), "end_seconds": float(span[1] * facts.time_base),
                "num_frames": round(clip_seconds * FPS), "fps": float(FPS), "width": width, "height": height,
                "user_crop": None, "video_facts": facts.to_row(),
                "packets": index.part(*span).to_bytes(),
            })  # fmt: skip
    return rows


def outcome_rows(outcomes: list[Any], unit_id: str) -> pa.Table:
    """As the engine writes them."""
    now = datetime.datetime.now(datetime.UTC)
    rows = [
        {**vars(o), "host": "bench", "finished_at": now, "fingerprint": "bench", "unit_id": unit_id} for o in outcomes
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema([c.field() for c in tables.OUTCOMES.columns]))


def run_unit(
    root: str, name: str, unit: int, rows: list[Any], bucket: Bucket, vae: Any, config: Any, **how: Any
) -> StagedUnit:
    """What a worker does with a unit: encode and write."""
    unit_id = f"{unit:032x}"
    table, outcomes = encode_clips(rows, bucket, vae, config, fingerprint="bench", **how)
    bad = [o for o in outcomes if o.status != "kept"]
    assert not bad, bad[0].message
    fragments = write_fragments(root, name, with_provenance(table, "bench", unit_id))
    rows_of = {layout.outcomes_name("encode"): outcome_rows(outcomes, unit_id)}
    return StagedUnit(unit_id=unit_id, fragments={name: fragments}, rows=rows_of, fingerprint="bench")


class VaeClock:
    """CUDA events around each call of a VAE's encode."""

    def __init__(self, vae: Any) -> None:
        import torch

        self.origin = torch.cuda.Event(enable_timing=True)
        self.calls: list[tuple[Any, Any]] = []
        real = vae.encode

        def encode(frames: Any) -> Any:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            latents = real(frames)
            end.record()
            self.calls.append((begin, end))
            return latents

        vae.encode = encode

    def start(self) -> None:
        """Zero of the clock."""
        self.calls.clear()
        self.origin.record()

    def account(self, total_s: float) -> dict[str, float]:
        """Seconds before the first call, in calls, between them, and after the last."""
        spans = [(self.origin.elapsed_time(b) / 1e3, self.origin.elapsed_time(e) / 1e3) for b, e in self.calls]
        busy = sum(e - b for b, e in spans)
        between = sum(max(0.0, b - e) for (_, e), (b, _) in pairwise(spans))
        return {"before": spans[0][0], "vae": busy, "between": between, "after": total_s - spans[-1][1]}


def pipeline(
    root: str, name: str, units: list[list[Any]], concurrent: int, committer: Any, *args: Any, **how: Any
) -> None:
    """All units, `concurrent` at once, each committed when it is done."""
    with ThreadPoolExecutor(concurrent) as pool:
        futures = [pool.submit(run_unit, root, name, i, unit, *args, **how) for i, unit in enumerate(units)]
        for future in futures:
            committer.commit([future.result()])


def gpu(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """See the module's docstring."""
    import torch

    from vidpipe.vaes.base import make_vae

    bucket = Bucket.parse(options.bucket)
    source = options.source or random_wan(folder / "wan", options.small)
    vae: Any = make_vae("wan2.1", source=source, device=options.device)
    config = EncodeConfig(fps="16", vae="wan2.1", source=source, batch_frames=options.batch_frames)
    height, width = (int(v) for v in options.size.split("x"))
    paths = make_files(folder, options.files, height, width, options.seconds)
    rows = clip_rows(paths, Fraction(bucket.num_frames, 16) + Fraction(1, 100))
    clip_bytes = math.prod(bucket.latent_shape(vae.space)) * vae.space.element_bytes
    size = max(1, math.ceil(options.unit_mb * 1e6 / clip_bytes))
    units = [rows[i : i + size] for i in range(0, len(rows), size)]
    print(f"{len(paths)} files, {len(rows)} clips, {len(units)} units", flush=True)
    batch = batch_limit(vae, bucket, config)
    resident = torch.randint(0, 256, (batch, 3, *bucket_shape(bucket)), dtype=torch.uint8, device=options.device)
    for _ in range(3):
        vae.encode(resident)

    def alone() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        calls = max(3, min(20, len(rows) // batch))
        for _ in range(calls):
            vae.encode(resident)
        torch.cuda.synchronize()
        return calls * batch * bucket.num_frames / (time.perf_counter() - start)

    clock = VaeClock(vae)
    results: dict[int, list[dict[str, float]]] = {n: [] for n in options.concurrent}
    turns = [n for _ in range(options.rounds) for n in options.concurrent]
    for i, concurrent in enumerate([0, *turns]):  # the first one compiles what is left to compile, and does not count
        name = layout.latents_name("wan2.1", bucket)
        dataset = Dataset(str(folder / f"dataset{i}")).create()
        dataset.ensure(name, tables.LATENTS, table_metadata(vae, bucket))
        lease = Lease.acquire(dataset, "encode")
        before = alone()
        clock.start()
        start = time.perf_counter()
        how = {"decoder": options.decoder, "threads": options.threads}
        pipeline(
            dataset.root,
            name,
            units,
            concurrent or 1,
            Committer(dataset, "encode", lease),
            bucket,
            vae,
            config,
            **how,
        )
        seconds = time.perf_counter() - start
        lease.release()
        assert dataset.table(name).count_rows("unit_id != ''") == len(rows)
        account = clock.account(seconds)
        vae_alone = (before + alone()) / 2
        through = len(rows) * bucket.num_frames / seconds
        result = {"vae_alone": vae_alone, "pipeline": through, "ratio": through / vae_alone, **account}
        print(json.dumps({"concurrent": concurrent, **result}), flush=True)
        if concurrent:
            results[concurrent].append(result)
    return {
        f"concurrent {n}": {k: statistics.median(r[k] for r in rounds) for k in rounds[0]} | {"rounds": rounds}
        for n, rounds in results.items()
    }


def bucket_shape(bucket: Bucket) -> tuple[int, int, int]:
    """T, H, W."""
    return bucket.num_frames, bucket.height, bucket.width


def random_wan(folder: Path, small: bool) -> str:
    """A random checkpoint of the full configuration, or a small one to try the script."""
    import diffusers
    import torch

    torch.manual_seed(0)
    model: Any = diffusers.AutoencoderKLWan(**({"base_dim": 16} if small else {}))
    model.save_pretrained(folder)
    return str(folder)


def cpu_worker(kind: str, paths: list[Path], root: str, barrier: Any, times: Any) -> None:
    """One process: decode its files, or run the pipeline with `dct` on them."""
    import torch

    torch.set_num_threads(1)
    from vidpipe.media.decode import open_video
    from vidpipe.vaes.dct import DctVae

    bucket, vae, config = Bucket(17, 240, 416), DctVae(), EncodeConfig(fps="16")
    rows = clip_rows(paths, Fraction(17, 16) + Fraction(1, 100))
    barrier.wait()
    if kind == "decode":
        for path in paths:
            with open_video(str(path)) as reader:
                for _ in reader.scan(size_hw=(bucket.height, bucket.width)):
                    pass
    else:
        run_unit(root, layout.latents_name("dct", bucket), os.getpid(), rows, bucket, vae, config)
    times.put(time.monotonic())


def seconds_of(kind: str, paths: list[Path], processes: int, folder: Path) -> float:
    """From the moment that all workers are ready to the end of the last."""
    from vidpipe.vaes.dct import DctVae

    context = multiprocessing.get_context("spawn")
    root = str(folder / f"cpu-{time.monotonic_ns()}")
    bucket = Bucket(17, 240, 416)
    Dataset(root).create().ensure(layout.latents_name("dct", bucket), tables.LATENTS, table_metadata(DctVae(), bucket))
    barrier, times = context.Barrier(processes + 1), context.Queue()
    workers = [
        context.Process(target=cpu_worker, args=(kind, paths[i::processes], root, barrier, times))
        for i in range(processes)
    ]
    for worker in workers:
        worker.start()
    barrier.wait()
    start = time.monotonic()
    end = max(times.get() for _ in workers)
    for worker in workers:
        worker.join()
    return end - start


def cpu(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """See the module's docstring."""
    paths = make_files(folder, options.files, 720, 1280, options.seconds)
    measured: dict[tuple[str, int], list[float]] = {(k, n): [] for k in ("decode", "pipeline") for n in (1, 2)}
    for i in range(options.rounds):
        for kind, processes in measured:
            measured[kind, processes].append(seconds_of(kind, paths, processes, folder))
        print(i, {f"{k} x{n}": round(v[-1], 2) for (k, n), v in measured.items()}, flush=True)
    speed_up = {
        kind: statistics.median(a / b for a, b in zip(measured[kind, 1], measured[kind, 2]))
        for kind in ("decode", "pipeline")
    }
    seconds = {f"{k}_x{n}": statistics.median(v) for (k, n), v in measured.items()}
    return {**seconds, "decode_speed_up": speed_up["decode"], "pipeline_speed_up": speed_up["pipeline"],
            "ratio": speed_up["pipeline"] / speed_up["decode"]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("gpu", "cpu"))
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=41.0)
    parser.add_argument("--size", default="1080x1920")
    parser.add_argument("--bucket", default="81x480x832")
    parser.add_argument("--unit-mb", type=float, default=EngineConfig().unit_mb)
    parser.add_argument("--batch-frames", type=int, default=0)
    parser.add_argument("--concurrent", type=int, nargs="+", default=[2])
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--decoder", default="auto")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--source", default="", help="a Wan 2.1 checkpoint; random weights without")
    parser.add_argument("--small", action="store_true", help="a small configuration, to try the script")
    parser.add_argument("--output", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = (gpu if options.mode == "gpu" else cpu)(options, Path(folder))
    print(json.dumps(result, indent=1))
    if options.output:
        Path(options.output).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
