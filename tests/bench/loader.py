"""MB/s of cached latents as a training loop sees them, shuffled: ours beside other loaders and plain file reads.

    python tests/bench/loader.py setup ENVS                 an environment for each peer, torch borrowed from this one
    python tests/bench/loader.py run ENVS FOLDER [--sizes 0.2 2 8] [--gb 2] [--workers 1 2] [--cold]

The same payload is written for each loader in its own format. An epoch is read once to warm up (or dropped from the
page cache with `--cold`), then one is timed: the consumer, which holds a tensor in the training process, sums all of
its bytes as 64-bit words. Printed, a JSON line a case: MB/s and their ratio to `preadv`, CPU seconds a GB over all
processes, peak memory of the process tree (PSS).

`preadv` is the limit: one process reads rows in shuffled order into one buffer, which stays in the processor's cache,
and sums them. `preadv, shared` is the limit of any loader whose reader is another process: that reads into shared
memory of as many bytes as ours has under way, and does nothing else. `ours` checks checksums and looks for values that
are not finite; `ours, no checks` does what the others do; `ours, Lance` has the fast path off. Processes are started
before the clock is: the first step is taken, then the epoch is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SHAPES = {0.2: (1, 640, 640), 2.0: (21, 800, 832), 8.0: (81, 800, 960)}
"""Bucket whose latents, 16 channels of bfloat16, have about so many MB."""

PACK_MB, AHEAD_STEPS = 16.0, 3

PEERS = {
    "webdataset": ["webdataset", "braceexpand", "pyyaml"],
    "streaming": [
        "mosaicml-streaming",
        "boto3",
        "botocore",
        "s3transfer",
        "jmespath",
        "python-dateutil",
        "six",
        "urllib3",
        "xxhash",
        "zstd",
        "python-snappy",
        "cramjam",
        "brotli",
        "catalogue",
        "tqdm",
        "requests",
        "certifi",
        "idna",
        "charset_normalizer",
    ],
    "litdata": [
        "litdata",
        "lightning-utilities",
        "boto3",
        "botocore",
        "s3transfer",
        "jmespath",
        "python-dateutil",
        "six",
        "urllib3",
        "filelock",
        "obstore",
        "tifffile",
        "requests",
        "certifi",
        "idna",
        "charset_normalizer",
        "typing_extensions",
        "packaging",
        "setuptools",
    ],
    "energon": [
        "megatron-energon",
        "webdataset",
        "braceexpand",
        "pyyaml",
        "click",
        "multi-storage-client",
        "bitstring",
        "bitarray",
        "mfusepy",
        "ratarmountcore",
        "rapidyaml",
        "s3fs",
        "boto3",
        "botocore",
        "s3transfer",
        "jmespath",
        "python-dateutil",
        "six",
        "urllib3",
        "jsonschema",
        "jsonschema-specifications",
        "referencing",
        "rpds-py",
        "attrs",
        "opentelemetry-api",
        "opentelemetry-sdk",
        "opentelemetry-semantic-conventions",
        "xattr",
        "cffi",
        "pycparser",
        "lark",
        "jsonpath-ng",
        "ply",
        "wcmatch",
        "bracex",
        "tqdm",
        "prettytable",
        "wcwidth",
        "python-dateutil",
        "importlib_metadata",
        "zipp",
        "tibs",
        "deprecation",
        "filetype",
    ],
}
"""Packages of each environment, named one by one so that no peer replaces torch."""

STUBS = {
    "streaming": {
        "torchvision.datasets": "VisionDataset = CIFAR10 = object\n",
        "torchvision.transforms.functional": "def to_tensor(picture):\n    raise NotImplementedError\n",
    }
}
"""What a peer imports and does not use here: torchvision of PyPI does not load beside a CPU build of torch."""

LOADERS = ("preadv", "preadv, shared", "ours", "ours, no checks", "ours, Lance", *PEERS)


def payloads(size_mb: float, count: int) -> Iterator[bytes]:
    """Latents of one shape, finite bfloat16 values, each another."""
    words = np.random.default_rng(0).integers(0, 0x3F80, latent_bytes(size_mb) // 2).astype(np.uint16)
    for i in range(count):
        words[:2] = i & 0x3FFF, i >> 14
        yield words.tobytes()


def latent_bytes(size_mb: float) -> int:
    """Stored bytes of a latent."""
    frames, height, width = SHAPES[size_mb]
    return 16 * ((frames - 1) // 4 + 1) * (height // 8) * (width // 8) * 2


# ---- writers


def write_lance(folder: Path, size_mb: float, count: int) -> None:
    """A dataset as vidpipe writes it: clips and one latent table, fragments of about 256 MB."""
    import zlib

    from schemas import ids, layout
    from schemas.buckets import Bucket
    from schemas.latent_spaces import METADATA_KEY
    from schemas.tables import CLIPS, LATENTS
    from trainer.data import synthetic

    bucket = Bucket(*SHAPES[size_mb])
    clips = [synthetic._clip_row(i, bucket) for i in range(count)]
    synthetic._write(str(folder), "clips", CLIPS, clips)
    rows = []
    for clip, data in zip(clips, payloads(size_mb, count)):
        name = ids.latent_id(clip["clip_id"], None, {}, synthetic.FINGERPRINT)
        rows.append({**clip, "latent_id": name, "latent": data, "latent_crc32": zlib.crc32(data), "fps": 24.0})
    space = synthetic.SPACE
    metadata = {METADATA_KEY: space.to_json().encode(), layout.BUCKET_KEY: str(bucket).encode()}
    name = layout.latents_name(space.name, bucket)
    synthetic._write(str(folder), name, LATENTS, rows, metadata, max(1, (256 << 20) // latent_bytes(size_mb)))


def write_tars(folder: Path, size_mb: float, count: int) -> None:
    """Tar shards of about 256 MB, as WebDataset and Energon read them."""
    import io
    import tarfile

    folder.mkdir(parents=True)
    each = max(1, (256 << 20) // latent_bytes(size_mb))
    archive = None
    for i, data in enumerate(payloads(size_mb, count)):
        if i % each == 0:
            if archive:
                archive.close()
            archive = tarfile.open(folder / f"shard-{i // each:05d}.tar", "w")  # noqa: SIM115
        info = tarfile.TarInfo(f"{i:08d}.bin")
        info.size = len(data)
        assert archive is not None
        archive.addfile(info, io.BytesIO(data))
    assert archive is not None
    archive.close()


def write_energon(folder: Path, size_mb: float, count: int) -> None:
    """Energon's index beside the tar shards."""
    from megatron.energon.flavors import BaseWebdatasetFactory

    write_tars(folder, size_mb, count)
    shards = sorted(p.name for p in folder.glob("*.tar"))
    BaseWebdatasetFactory.prepare_dataset(
        folder, shards, split_parts_ratio=[("train", 1.0)], shuffle_seed=None, progress_fn=lambda it, *a, **k: it
    )
    meta = folder / ".nv-meta"
    (meta / "dataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\nsubflavors: {}\n", encoding="utf-8"
    )


def write_streaming(folder: Path, size_mb: float, count: int) -> None:
    """MosaicML's MDS shards, of its default 64 MB."""
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"latent": "bytes"}) as writer:
        for data in payloads(size_mb, count):
            writer.write({"latent": data})


def write_litdata(folder: Path, size_mb: float, count: int) -> None:
    """LitData's chunks, of its default 64 MB, through its writer."""
    import torch
    from litdata.streaming.writer import BinaryWriter

    folder.mkdir(parents=True)
    writer = BinaryWriter(str(folder), chunk_bytes="64MB")
    for i, data in enumerate(payloads(size_mb, count)):
        writer[i] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    writer.done()
    writer.merge()


WRITERS: dict[str, Callable[[Path, float, int], None]] = {
    "lance": write_lance,
    "webdataset": write_tars,
    "energon": write_energon,
    "streaming": write_streaming,
    "litdata": write_litdata,
}


def format_of(loader: str) -> str:
    """Which of the written formats a loader reads."""
    return loader if loader in PEERS else "lance"


# ---- readers: each yields tensors (or arrays) in the training process, one epoch


def read_preadv(folder: Path, size_mb: float, count: int, workers: int) -> Iterator[Any]:
    """Rows in shuffled order by `preadv` into one buffer."""
    index = _index(folder)
    stream = index.streams[0]
    root = folder / f"{stream.table}.lance"
    files = [os.open(root / name, os.O_RDONLY) for name in stream.files]
    buffer = np.empty(stream.latent_bytes, np.uint8)
    for row in np.random.default_rng(1).permutation(count):
        os.preadv(files[int(index.files[row])], [buffer], int(index.positions[row]))
        yield buffer
    for descriptor in files:
        os.close(descriptor)


def read_preadv_shared(folder: Path, size_mb: float, count: int, workers: int) -> Iterator[Any]:
    """The same by a second process, into shared memory of as many bytes as `ours` has under way."""
    import mmap
    import multiprocessing

    stream = (index := _index(folder)).streams[0]
    per_pack = max(1, round(PACK_MB / size_mb))
    places = (AHEAD_STEPS + 1) * per_pack
    size = -(-stream.latent_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, places * size), np.uint8).reshape(places, size)
    memory[:] = 0
    root = folder / f"{stream.table}.lance"
    files = [os.open(root / name, os.O_RDONLY) for name in stream.files]
    order = np.random.default_rng(1).permutation(count)
    context = multiprocessing.get_context("fork")
    free, full = context.Semaphore(AHEAD_STEPS + 1), context.Semaphore(0)

    def read() -> None:
        for start in range(0, count, per_pack):
            free.acquire()
            for i, row in enumerate(order[start : start + per_pack], start):
                target = memory[i % places, : stream.latent_bytes]
                os.preadv(files[int(index.files[row])], [target], int(index.positions[row]))
            full.release()

    process = context.Process(target=read, daemon=True)
    process.start()
    for start in range(0, count, per_pack):
        full.acquire()
        for i in range(start, min(start + per_pack, count)):
            yield memory[i % places, : stream.latent_bytes]
        free.release()
    process.join()
    for descriptor in files:
        os.close(descriptor)


def _index(folder: Path) -> Any:
    from trainer.data.build import build_index
    from trainer.data.index import DataConfig, DatasetConfig

    cache = Path(os.environ.get("BENCH_CACHE", str(folder.parent / "index")))
    config = DataConfig(datasets=(DatasetConfig(path=os.environ.get("BENCH_ROOT", str(folder))),), latents="synthetic")
    return build_index(config, cache, tag=False)


def read_ours(folder: Path, size_mb: float, count: int, workers: int, **options: Any) -> Iterator[Any]:
    """Packs of about 16 MB; little is read ahead, since a disk has no latency to hide."""
    from trainer.data.loader import LoaderConfig, PackLoader
    from trainer.data.packing import FlopModel
    from trainer.data.plan import PlanConfig, Planner

    index = _index(folder)
    length = index.streams[0].num_tokens
    config = PlanConfig(token_budget=length * max(1, round(PACK_MB / size_mb)), packs_per_step=1, fill=1.0)
    planner = Planner(index, config, FlopModel(quadratic=0.0, linear=1.0))
    reading = LoaderConfig(num_readers=workers, ahead_steps=AHEAD_STEPS, **options)
    given = 0
    with PackLoader(index, planner, config=reading, pad=False, copy=False) as loader:
        for packs in loader:
            for pack in packs:
                for block in pack.blocks:
                    for latent in block.latents_NCTHW:
                        yield latent
                        given += 1
                        if given == count:
                            return


def read_webdataset(folder: Path, size_mb: float, count: int, workers: int) -> Iterator[Any]:
    """Shards in random order, a shuffle buffer of 100."""
    import torch
    import webdataset as wds

    base = os.environ.get("BENCH_URL")
    shards = sorted(p.name for p in folder.glob("*.tar"))
    urls = [f"pipe:curl -s -f {base}/{name}" if base else str(folder / name) for name in shards]
    data = wds.WebDataset(urls, shardshuffle=len(urls), empty_check=False).shuffle(100).map(_tensor_of)
    yield from torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers)


def _tensor_of(sample: dict[str, Any]) -> Any:
    import torch

    return torch.frombuffer(bytearray(sample["bin"]), dtype=torch.uint8)


def read_streaming(folder: Path, size_mb: float, count: int, workers: int) -> Iterator[Any]:
    """Its default shuffle."""
    import torch
    from streaming import StreamingDataset

    remote = os.environ.get("BENCH_S3")
    local = f"{folder}-cache" if remote else str(folder)

    class Latents(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            return torch.frombuffer(bytearray(super().__getitem__(at)["latent"]), dtype=torch.uint8)

    data = Latents(local=local, remote=remote, shuffle=True, batch_size=1)
    yield from torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers)


def read_litdata(folder: Path, size_mb: float, count: int, workers: int) -> Iterator[Any]:
    """Its default shuffle."""
    from litdata import StreamingDataLoader, StreamingDataset

    data = StreamingDataset(os.environ.get("BENCH_S3", str(folder)), shuffle=True, drop_last=False)
    for batch in StreamingDataLoader(data, batch_size=1, num_workers=workers, shuffle=True):
        yield batch[0]


def read_energon(folder: Path, size_mb: float, count: int, workers: int) -> Iterator[Any]:
    """A shuffle buffer of 100."""
    import torch
    from megatron.energon import (
        Cooker,
        DefaultTaskEncoder,
        WorkerConfig,
        basic_sample_keys,
        get_loader,
        get_train_dataset,
    )
    from megatron.energon.flavors.base_dataset import Sample
    from megatron.energon.task_encoder.base import stateless

    global EnergonLatent
    from dataclasses import dataclass

    @dataclass
    class EnergonLatent(Sample):
        latent: torch.Tensor

    @stateless
    def cook(sample: dict[str, Any]) -> Any:
        return EnergonLatent(
            **basic_sample_keys(sample), latent=torch.frombuffer(bytearray(sample["bin"]), dtype=torch.uint8)
        )

    class Encoder(DefaultTaskEncoder):
        cookers = [Cooker(cook)]  # noqa: RUF012

        def encode_sample(self, sample: Any) -> Any:
            return sample

        def batch(self, samples: list[Any]) -> Any:
            return samples[0]

    worker_config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
    data = get_train_dataset(
        os.environ.get("BENCH_MSC") or folder,
        batch_size=1,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=Encoder(),
        worker_config=worker_config,
        repeat=False,
    )
    for sample in get_loader(data):
        yield sample.latent


READERS: dict[str, Callable[..., Iterator[Any]]] = {
    "preadv": read_preadv,
    "preadv, shared": read_preadv_shared,
    "ours": read_ours,
    "ours, no checks": lambda *args: read_ours(*args, check=False),
    "ours, Lance": lambda *args: read_ours(*args, fast_path=False),
    "webdataset": read_webdataset,
    "streaming": read_streaming,
    "litdata": read_litdata,
    "energon": read_energon,
}


# ---- measuring


def total(items: Iterable[Any]) -> tuple[int, int, int, float]:
    """Samples, bytes, the sum of all bytes as 64-bit words, and seconds from the first sample on."""
    count = size = 0
    summed = 0
    started = 0.0
    for item in items:
        started = started or time.perf_counter()
        if not isinstance(item, np.ndarray):
            import torch

            item = item.contiguous().view(torch.uint8).numpy()
        words = item.reshape(-1).view(np.uint64)
        summed = (summed + int(words.sum(dtype=np.uint64))) % (1 << 64)
        size += words.nbytes
        count += 1
    return count, size, summed, time.perf_counter() - started


def drop_from_cache(folder: Path) -> None:
    """Forget a folder's pages; they must be on disk first."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


class _Memory(threading.Thread):
    """Peak PSS of this process and its children, sampled."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self._stop_now = 0, threading.Event()

    def run(self) -> None:
        while not self._stop_now.wait(0.25):
            self.peak = max(self.peak, sum(map(_pss, _family(os.getpid()))))

    def stop(self) -> int:
        self._stop_now.set()
        self.join()
        return self.peak


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += _family(int(child))
    return found


def _pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def measure(loader: str, folder: Path, size_mb: float, count: int, workers: int, cold: bool, warm_up: bool) -> dict:
    """One line of the table; run in a process of its own, in the loader's environment."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    read = READERS[loader]
    if warm_up:
        total(read(folder, size_mb, count, workers))
    if cold:
        drop_from_cache(folder)
    memory = _Memory()
    memory.start()
    before = _cpu_seconds()
    begun = time.perf_counter()
    samples, size, summed, seconds = total(read(folder, size_mb, count, workers))
    spent = _cpu_seconds() - before
    return {
        "loader": loader,
        "size_mb": size_mb,
        "workers": workers,
        "cold": cold,
        "samples": samples,
        "start_seconds": time.perf_counter() - begun - seconds,
        "mb_per_second": size / seconds / 1e6,
        "cpu_seconds_a_gb": spent / (size / 1e9),
        "peak_mb": memory.stop() / 1024,
        "sum": summed,
    }


def _cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def python_of(loader: str, envs: Path) -> str:
    """Interpreter of a loader's environment."""
    return str(envs / loader / "bin" / "python") if loader in PEERS else sys.executable


def setup(envs: Path) -> None:
    """Make the environments; torch and numpy come from this one, behind each peer's own packages."""
    ours = next(p for p in sys.path if p.endswith("site-packages"))
    for name, packages in PEERS.items():
        subprocess.run([sys.executable, "-m", "venv", str(envs / name)], check=True)
        python = python_of(name, envs)
        command = [python, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check", *packages]
        subprocess.run(command, check=True)
        found = subprocess.run([python, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True)
        site = Path(found.stdout.decode().strip())
        (site / "zz_borrowed.pth").write_text(ours + "\n")
        for module, text in STUBS.get(name, {}).items():
            path = site.joinpath(*module.split(".")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def call(python: str, arguments: list[str], env: dict[str, str] | None = None) -> dict:
    """Run this script's `one` in another interpreter and read its line."""
    found = subprocess.run(
        [python, __file__, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", **(env or {})},
    )
    if found.returncode:
        return {"error": (found.stderr.strip().splitlines() or ["?"])[-1][:200]}
    return json.loads(found.stdout.strip().splitlines()[-1])


def median(results: list[dict]) -> dict:
    """The round of middling speed."""
    good = sorted((r for r in results if "error" not in r), key=lambda r: r["mb_per_second"])
    return good[len(good) // 2] if good else results[0]


def run(args: argparse.Namespace) -> None:
    """Write each size for each loader, read it, remove it."""
    rows: list[dict] = []
    for size in args.sizes:
        count = int(args.gb * 1e9 / latent_bytes(size))
        caches = (False, True) if args.cold else (False,)
        for form in dict.fromkeys(map(format_of, args.loaders)):
            folder = Path(args.folder) / f"{form}-{size:g}"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(folder.parent / "index", ignore_errors=True)
            made = call(python_of(form, Path(args.envs)), ["write", form, str(folder), str(size), str(count)])
            names = [name for name in args.loaders if format_of(name) == form]
            todo = [(n, w, c) for n in names for w in ([0] if n.startswith("preadv") else args.workers) for c in caches]
            taken: dict[tuple[str, int, bool], list[dict]] = {key: [] for key in todo}
            for _ in range(args.rounds):  # in turns, so that a busy moment of the machine meets them all
                for key in todo:
                    arguments = ["one", key[0], str(folder), str(size), str(count), str(key[1]), str(int(key[2]))]
                    found = made if "error" in made else call(python_of(key[0], Path(args.envs)), arguments)
                    taken[key].append({**found, "loader": key[0], "size_mb": size, "workers": key[1], "cold": key[2]})
            for (_, _, cold), results in taken.items():
                row = median(results)
                limit = [r for r in rows if r["loader"] == "preadv" and r["size_mb"] == size and r["cold"] == cold]
                if limit and "error" not in row:
                    row["over_preadv"] = round(row["mb_per_second"] / limit[0]["mb_per_second"], 3)
                rows.append(row)
                print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
            if not args.keep:
                shutil.rmtree(folder, ignore_errors=True)
        sums = {row["sum"] for row in rows if row.get("size_mb") == size and row.get("samples") == count}
        assert len(sums) <= 1, f"loaders that read every sample once disagree about their bytes: {rows}"
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("setup").add_argument("envs")
    everything = commands.add_parser("run")
    everything.add_argument("envs")
    everything.add_argument("folder")
    everything.add_argument("--sizes", nargs="+", type=float, default=list(SHAPES))
    everything.add_argument("--gb", type=float, default=2.0)
    everything.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    everything.add_argument("--loaders", nargs="+", default=list(LOADERS), choices=LOADERS)
    everything.add_argument("--rounds", type=int, default=3, help="in turns; the median counts")
    everything.add_argument("--cold", action="store_true")
    everything.add_argument("--keep", action="store_true")
    everything.add_argument("--json")
    write = commands.add_parser("write")
    one = commands.add_parser("one")
    for command in (write, one):
        for name in ("loader", "folder"):
            command.add_argument(name)
        command.add_argument("size", type=float)
        command.add_argument("count", type=int)
    one.add_argument("workers", type=int)
    one.add_argument("cold", type=int)
    args = parser.parse_args()
    if args.command == "setup":
        setup(Path(args.envs))
    elif args.command == "run":
        run(args)
    elif args.command == "write":
        WRITERS[args.loader](Path(args.folder), args.size, args.count)
        print("{}")
    else:
        cold = bool(args.cold)
        print(json.dumps(measure(args.loader, Path(args.folder), args.size, args.count, args.workers, cold, not cold)))


if __name__ == "__main__":
    main()
