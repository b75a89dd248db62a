"""The loader against an object store on loopback with 50 ms median and 500 ms p99 latency: beside peers, and 8 ranks.

    python tests/bench/loader_s3.py peers ENVS FOLDER [--size 2] [--gb 1] [--workers 2] [--rounds 3]
    python tests/bench/loader_s3.py ranks FOLDER [--ranks 8] [--steps 60] [--rate 574] [--slow 4]

`peers` writes the same latents for each loader as `loader.py` does (ENVS are its environments) and reads one shuffled
epoch through `s3_server.py`, nothing cached; the clock runs from the first sample, when some are read ahead already:
the rate of the second half leaves that out. A figure is the median of the rounds, in which the loaders take turns;
`same_bytes` says whether a loader's samples add up to what ours do.

`ranks` runs the loader of every rank, its readers and planner in processes of their own, on images of 256 to 1,024 px
with short clips and cached text. The training processes are threads of one: each takes its packs, waits for the
others, and sleeps as long as the step's dearest rank would compute (Wan 2.1 1.3B forward and backward, three times the
forward FLOPs, at `--rate` TFLOP/s: 58% of an H200's 989). All ranks wait for the last, so the data wait of a step is
the longest of any rank. `--loaders` runs those of the first ranks alone, with their share of the traffic, where the
cores do not carry all; `--slow` stretches latencies and steps alike, so that a machine of few cores stands for one of
as many times more. Packs stay where the readers put them: on a GPU machine their bytes are sent from that pinned
memory as they are, and cut into tokens on the GPU. Printed, a JSON line a case.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

BUCKET = "bucket"
AHEAD_STEPS = 16
MEDIAN_SECONDS, P99_SECONDS = 0.05, 0.5
PEERS = ("ours", "webdataset", "streaming", "litdata", "energon")
WARM_UP_STEPS = 4
MIX = {
    "1x256x256": 0.3, "1x512x512": 0.3, "1x768x768": 0.15, "1x1024x1024": 0.1, "1x832x480": 0.15, "1x640x368": 0.1,
    "17x256x256": 0.06, "33x256x256": 0.04, "17x480x832": 0.036, "33x480x832": 0.024,
    "17x368x640": 0.036, "33x368x640": 0.024,
}  # fmt: skip
"""Bucket -> share of samples: the third mix of `packing.py`."""


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def options(url: str) -> dict[str, str]:
    """Environment of every client."""
    return {
        "AWS_ENDPOINT": url,
        "AWS_ENDPOINT_URL": url,
        "S3_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def serve(folder: Path, slow: float = 1.0) -> tuple[subprocess.Popen[str], str]:
    """The server in a process of its own, and its address."""
    script = Path(__file__).with_name("s3_server.py")
    latency = ["--median", str(slow * MEDIAN_SECONDS), "--p99", str(slow * P99_SECONDS)]
    server = subprocess.Popen([sys.executable, str(script), str(folder), *latency], stdout=subprocess.PIPE, text=True)
    assert server.stdout
    return server, server.stdout.readline().strip()


def one(name: str, root: Path, size: float, count: int, workers: int) -> dict[str, Any]:
    """Read one epoch in this interpreter."""
    loader = _module("loader")
    loader.AHEAD_STEPS = AHEAD_STEPS
    folder = root / BUCKET / f"{loader.format_of(name)}-{size:g}"
    if name == "litdata":  # it has no option that lets its client speak plain HTTP
        from litdata.streaming import downloader

        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    read, times = loader.READERS[name], []

    def timed(*arguments: Any) -> Iterator[Any]:
        for item in read(*arguments):
            times.append(time.perf_counter())
            yield item

    loader.READERS[name] = timed
    found = loader.measure(name, folder, size, count, workers, False, False)
    late = len(times) // 2
    bytes_late = (len(times) - 1 - late) * loader.latent_bytes(size)
    return {**found, "second_half_mb_per_second": bytes_late / (times[-1] - times[late]) / 1e6}


def peers(args: argparse.Namespace) -> None:
    """Write, serve, and read with each loader."""
    loader = _module("loader")
    envs, root = Path(args.envs), Path(args.folder)
    count = int(args.gb * 1e9 / loader.latent_bytes(args.size))
    for form in dict.fromkeys(map(loader.format_of, args.loaders)):
        folder = root / BUCKET / f"{form}-{args.size:g}"
        if not folder.exists():
            arguments = [loader.__file__, "write", form, str(folder), str(args.size), str(count)]
            subprocess.run([loader.python_of(form, envs), *arguments], check=True, env=_environment({}))
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    server, url = serve(root)
    try:
        for _ in range(args.rounds):
            for name in args.loaders:
                for workers in args.workers:
                    case = _peer(loader, envs, root, name, args.size, count, workers, url)
                    found.setdefault((name, workers), []).append(case)
                    print(json.dumps(case), file=sys.stderr, flush=True)
        right = next((cases[0].get("sum") for (name, _), cases in found.items() if name == "ours"), None)
        for cases in found.values():
            print(json.dumps(_median(cases, right)), flush=True)
    finally:
        server.kill()
        server.wait()


def _peer(
    loader: ModuleType, envs: Path, root: Path, name: str, size: float, count: int, workers: int, url: str
) -> dict[str, Any]:
    """One loader's epoch, with nothing cached."""
    form = f"{loader.format_of(name)}-{size:g}"
    place, folder = f"s3://{BUCKET}/{form}", f"{url}/{BUCKET}/{form}"
    keys = {"BENCH_ROOT": place, "BENCH_S3": place, "BENCH_URL": folder}
    keys |= {"BENCH_CACHE": str(root / "index"), "HOME": str(root / "home")}
    if name == "energon":  # it reads object stores by NVIDIA's Multi-Storage Client
        (root / "msc.json").write_text(json.dumps({"profiles": {"bench": _msc_profile(url)}}))
        keys |= {"BENCH_MSC": f"msc://bench/{form}", "MSC_CONFIG": str(root / "msc.json")}
    for cache in (root / BUCKET / f"{form}-cache", root / "home", root / "index"):
        shutil.rmtree(cache, ignore_errors=True)
    return _read(loader, envs, root, name, size, count, workers, keys | options(url))


def _msc_profile(url: str) -> dict[str, Any]:
    storage = {"base_path": BUCKET, "endpoint_url": url, "region_name": "us-east-1"}
    keys = {"access_key": "a", "secret_key": "b"}
    return {
        "storage_provider": {"type": "s3", "options": storage},
        "credentials_provider": {"type": "S3Credentials", "options": keys},
    }


def _median(cases: list[dict[str, Any]], right: int | None) -> dict[str, Any]:
    """Median figures of the rounds, and whether all gave the same bytes as ours."""
    made = dict(cases[0], rounds=len(cases))
    for key, value in cases[0].items():
        if isinstance(value, float) and key != "size_mb":
            made[key] = statistics.median(case[key] for case in cases if key in case)
    made["same_bytes"] = all(case.pop("sum", None) == right for case in cases)
    made.pop("sum", None)
    return made


def _environment(more: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", **more}


def _read(
    loader: ModuleType, envs: Path, root: Path, name: str, size: float, count: int, workers: int, keys: dict[str, str]
) -> dict[str, Any]:
    arguments = [__file__, "one", name, str(root), str(size), str(count), str(workers)]
    python = loader.python_of(name, envs)
    found = subprocess.run([python, *arguments], capture_output=True, text=True, env=_environment(keys))
    case: dict[str, Any] = {"loader": name, "store": "s3", "size_mb": size, "workers": workers}
    if found.returncode:
        return {**case, "error": (found.stderr.strip().splitlines() or ["?"])[-1][:200]}
    case |= json.loads(found.stdout.strip().splitlines()[-1])
    del case["cold"]
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in case.items()}


# ---- eight ranks


def write_mix(root: Path, samples: int, text_tokens: int, text_dim: int) -> None:
    """The mix, one caption a clip, its embedding of `text_tokens`; payloads are random."""
    import zlib

    import numpy as np

    from schemas import ids, layout
    from schemas.buckets import Bucket
    from schemas.latent_spaces import METADATA_KEY
    from schemas.tables import CAPTIONS, CLIPS, LATENTS, TEXT
    from trainer.data import synthetic

    noise = synthetic.to_bfloat16(np.random.default_rng(0).standard_normal(1 << 24))

    def payload(number: int, size_bytes: int) -> dict[str, Any]:
        start = (number * 7919) % (len(noise) - size_bytes // 2)
        data = noise[start : start + size_bytes // 2].tobytes()
        return {"data": data, "crc": zlib.crc32(data)}

    clips, captions, texts = [], [], []
    for name, share in MIX.items():
        bucket = Bucket.parse(name)
        rows = []
        for _ in range(max(8, round(samples * share / sum(MIX.values())))):
            clip = synthetic._clip_row(len(clips), bucket)
            clips.append(clip)
            made = payload(len(clips), 2 * int(np.prod(bucket.latent_shape(synthetic.SPACE))))
            identity = ids.latent_id(clip["clip_id"], None, {"bucket": name}, synthetic.FINGERPRINT)
            rows.append(
                {**clip, "latent_id": identity, "latent": made["data"], "latent_crc32": made["crc"], "fps": 24.0}
            )
            text = f"caption {len(clips)}"
            caption = {"caption_id": ids.caption_id(clip["clip_id"], "s", text), "text_id": ids.text_id(text)}
            captions.append({**clip, **caption, "source": "s", "text": text})
            made = payload(3 * len(clips), 2 * text_tokens * text_dim)
            row = {"text_id": ids.text_id(text), "text": text, "num_tokens": text_tokens, "embedding": made["data"]}
            texts.append({**row, "embedding_crc32": made["crc"]})
        metadata = {METADATA_KEY: synthetic.SPACE.to_json().encode(), layout.BUCKET_KEY: name.encode()}
        synthetic._write(str(root), layout.latents_name(synthetic.SPACE.name, bucket), LATENTS, rows, metadata, 4096)
    facts = {"name": "bench", "source": "", "revision": "1", "dim": text_dim, "dtype": "bfloat16"}
    synthetic._write(str(root), "clips", CLIPS, clips)
    synthetic._write(str(root), "captions", CAPTIONS, captions)
    metadata = {layout.TEXT_ENCODER_KEY: json.dumps(facts).encode()}
    synthetic._write(str(root), "text/bench", TEXT, texts, metadata)


class Rank(threading.Thread):
    """A training process that computes nothing: takes its packs, meets the others, sleeps."""

    def __init__(self, loader: Any, meeting: threading.Barrier, steps: int, seconds_of: Any) -> None:
        super().__init__()
        self.loader, self.meeting, self.steps, self.seconds_of = loader, meeting, steps, seconds_of
        self.waits: list[float] = []
        self.computes: list[float] = []
        self.ends: list[float] = []
        self.size_bytes = 0

    def run(self) -> None:
        try:
            self._train()
        except BaseException:
            self.meeting.abort()  # else the others would wait for ever
            raise

    def _train(self) -> None:
        for step in range(self.steps):
            started = time.perf_counter()
            packs = next(self.loader)
            self.waits.append(time.perf_counter() - started)
            if step >= WARM_UP_STEPS:
                self.size_bytes += sum(p.text_LD.nbytes + sum(b.latents_NCTHW.nbytes for b in p.blocks) for p in packs)
            del packs
            self.computes.append(self.seconds_of(step))
            self.meeting.wait()
            time.sleep(self.computes[-1])
            self.meeting.wait()
            self.ends.append(time.perf_counter())


def ranks(args: argparse.Namespace) -> None:
    """Write the mix, serve it, run all ranks."""
    root = Path(args.folder)
    if not (root / BUCKET / "mix").exists():
        write_mix(root / BUCKET / "mix", args.samples, args.text_tokens, args.text_dim)
    server, url = serve(root, args.slow)
    try:
        print(json.dumps(_ranks(args, root, url)), flush=True)
    finally:
        server.kill()
        server.wait()


def _ranks(args: argparse.Namespace, root: Path, url: str) -> dict[str, Any]:
    from trainer.data.build import build_index
    from trainer.data.index import DataConfig, DatasetConfig
    from trainer.data.loader import LoaderConfig, PackLoader
    from trainer.data.plan import PlanConfig, Planner

    os.environ.update(options(url))
    flops = _module("packing").FLOPS
    data = DatasetConfig(path=f"s3://{BUCKET}/mix")
    config = DataConfig(datasets=(data,), latents="synthetic", text_encoder="bench")
    index = build_index(config, root / "index", tag=False)
    packs = PlanConfig(token_budget=args.budget, packs_per_step=args.ranks * args.packs, packs_per_rank=args.packs)
    planner = Planner(index, packs, flops)
    reading = LoaderConfig(num_readers=args.readers, ahead_steps=args.ahead)

    def seconds_of(step: int) -> float:
        plan = planner.step(step)
        dealt = plan.deal(args.ranks)
        return (
            max(3 * sum(plan[n].flops for n in row if n >= 0) for row in dealt.tolist())
            * args.slow
            / (args.rate * 1e12)
        )

    steps = WARM_UP_STEPS + args.steps
    computes = [seconds_of(step) for step in range(steps)]
    real = args.loaders or args.ranks
    meeting = threading.Barrier(real)
    loaders = [
        PackLoader(index, planner, rank=r, world_size=args.ranks, config=reading, copy=False) for r in range(real)
    ]
    threads = [Rank(loader, meeting, steps, computes.__getitem__) for loader in loaders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    causes = sorted({loader.wait_cause for loader in loaders})
    for loader in loaders:
        loader.close()
    waits = [max(each) for each in zip(*(t.waits for t in threads))][WARM_UP_STEPS:]
    total = threads[0].ends[-1] - threads[0].ends[WARM_UP_STEPS - 1]
    return {
        "case": "ranks",
        "ranks": args.ranks,
        "loaders": real,
        "slow": args.slow,
        "packs_a_rank": args.packs,
        "readers_a_rank": args.readers,
        "ahead_steps": args.ahead,
        "steps": args.steps,
        "step_seconds": round(sum(computes[WARM_UP_STEPS:]) / args.steps, 4),
        "run_seconds": round(total, 3),
        "data_wait": round(sum(waits) / total, 5),
        "longest_wait_seconds": round(max(waits), 4),
        "mb_a_second": round(sum(t.size_bytes for t in threads) / total / 1e6, 1),
        "wait_causes": causes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    beside = commands.add_parser("peers")
    beside.add_argument("envs")
    beside.add_argument("folder")
    beside.add_argument("--size", type=float, default=2.0)
    beside.add_argument("--gb", type=float, default=1.0)
    beside.add_argument("--workers", nargs="+", type=int, default=[2])
    beside.add_argument("--rounds", type=int, default=3)
    beside.add_argument("--loaders", nargs="+", default=list(PEERS))
    single = commands.add_parser("one")
    single.add_argument("name")
    single.add_argument("folder", type=Path)
    single.add_argument("size", type=float)
    single.add_argument("count", type=int)
    single.add_argument("workers", type=int)
    many = commands.add_parser("ranks")
    many.add_argument("folder")
    many.add_argument("--ranks", type=int, default=8)
    many.add_argument("--loaders", type=int, default=0, help="ranks whose loaders run; 0 runs all")
    many.add_argument("--packs", type=int, default=4, help="a rank and step")
    many.add_argument("--steps", type=int, default=60)
    many.add_argument("--readers", type=int, default=1, help="processes a rank")
    many.add_argument("--ahead", type=int, default=4, help="steps")
    many.add_argument("--budget", type=int, default=32_768, help="tokens a pack")
    many.add_argument("--rate", type=float, default=574.0, help="TFLOP/s that the model reaches")
    many.add_argument("--slow", type=float, default=1.0, help="stretches latencies and steps")
    many.add_argument("--samples", type=int, default=4000)
    many.add_argument("--text-tokens", type=int, default=64)
    many.add_argument("--text-dim", type=int, default=4096)
    args = parser.parse_args()
    if args.command == "one":
        print(json.dumps(one(args.name, args.folder, args.size, args.count, args.workers)))
    else:
        {"peers": peers, "ranks": ranks}[args.command](args)


if __name__ == "__main__":
    main()
