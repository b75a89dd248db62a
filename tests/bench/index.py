"""Time and memory to build an index of many rows, and what opening it and planning over it take.

    python tests/bench/index.py FOLDER [--rows 100000000] [--kept 0.3] [--memory-limit 4GB]

Writes clips with a score, a caption a clip, distinct texts, and one latent table of the smallest latents that there are
(128 bytes: the index reads no payload, so their size does not matter), unless FOLDER holds them already. About 27 GB
and six minutes of writing at 10^8 rows. Then builds the index in a process of its own under a filter that keeps
`--kept`. Printed: one JSON line.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from schemas import layout
from schemas.columns import Column, TableSpec
from schemas.latent_spaces import METADATA_KEY
from schemas.tables import CAPTIONS, CLIPS, LATENTS, TEXT
from trainer.data import synthetic

BUCKET = "1x16x16"
PAYLOAD = bytes(128)
BATCH = 1_000_000
TEXTS = 1_000_000
SCORED = CLIPS.with_columns([Column(name="score", type=pa.float32(), meaning="uniform in [0, 1)")])


def ids(kind: int, numbers: np.ndarray) -> pa.Array:
    """16 bytes that look random, the same for the same number."""
    from trainer.data.permutation import mix64

    words = np.stack([mix64(numbers.astype(np.uint64) + np.uint64(kind << 40)), numbers.astype(np.uint64)], axis=1)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(numbers), [None, pa.py_buffer(words.tobytes())])


def write(root: Path, num_rows: int) -> None:
    """Write the tables."""
    texts = min(TEXTS, num_rows)
    encoder = json.dumps({"name": "bench", "source": "", "revision": "1", "dim": 8, "dtype": "bfloat16"})
    space = {METADATA_KEY: synthetic.SPACE.to_json().encode(), layout.BUCKET_KEY: BUCKET.encode()}
    name = layout.latents_name(synthetic.SPACE.name, BUCKET)
    synthetic._write(str(root), "clips", SCORED, [])
    synthetic._write(str(root), "captions", CAPTIONS, [])
    synthetic._write(str(root), "text/bench", TEXT, [], {layout.TEXT_ENCODER_KEY: encoder.encode()})
    synthetic._write(str(root), name, LATENTS, [], space)
    for start in range(0, num_rows, BATCH):
        rows = np.arange(start, min(start + BATCH, num_rows))
        score = np.random.default_rng(start).random(len(rows), np.float32)
        _append(root, "clips", SCORED, {"clip_id": ids(1, rows), "video_id": ids(1, rows), "score": score})
        caption = {"caption_id": ids(2, rows), "clip_id": ids(1, rows), "text_id": ids(3, rows % texts)}
        words = pa.array(["a caption"] * len(rows))
        _append(root, "captions", CAPTIONS, {**caption, "source": pa.array(["s"] * len(rows)), "text": words})
        latent = {"latent_id": ids(4, rows), "clip_id": ids(1, rows), "latent": [PAYLOAD] * len(rows)}
        _append(root, name, LATENTS, {**latent, "latent_crc32": np.full(len(rows), zlib.crc32(PAYLOAD), np.uint32)})
    for start in range(0, texts, BATCH):
        rows = np.arange(start, min(start + BATCH, texts))
        same = {"text": pa.array(["a caption"] * len(rows)), "num_tokens": np.full(len(rows), 8, np.int32)}
        crcs = np.full(len(rows), zlib.crc32(PAYLOAD), np.uint32)
        row = {"text_id": ids(3, rows), "embedding": [PAYLOAD] * len(rows), "embedding_crc32": crcs}
        _append(root, "text/bench", TEXT, {**row, **same})


def _append(root: Path, name: str, spec: TableSpec, columns: dict) -> None:
    import lance

    uri = layout.table_uri(str(root), name)
    schema = lance.dataset(uri).schema
    count = len(next(iter(columns.values())))
    filled = {
        "fingerprint": pa.array([synthetic.FINGERPRINT] * count),
        "unit_id": pa.array(["bench"] * count),
        **columns,
    }
    arrays = []
    for column, field in zip(spec.columns, schema):
        if column.blob:
            arrays.append(lance.blob_array(filled[column.name]))
        else:
            values = filled.get(column.name)
            arrays.append(pa.nulls(count, field.type) if values is None else pa.array(values, field.type))
    table = pa.Table.from_arrays(arrays, schema=schema)
    lance.write_dataset(table, uri, mode="append", data_storage_version="2.2", enable_stable_row_ids=True)


def build(root: Path, cache: Path, kept: float, memory_limit: str) -> dict[str, float]:
    """Build, open again and plan; seconds, and peak memory of this process in MB."""
    from trainer.data.build import build_index
    from trainer.data.index import DataConfig, DatasetConfig, Index
    from trainer.data.packing import FlopModel
    from trainer.data.plan import PlanConfig, Planner

    config = DataConfig(
        datasets=(DatasetConfig(path=str(root)),),
        latents=synthetic.SPACE.name,
        text_encoder="bench",
        filter=f"score < {kept}",
    )
    started = time.perf_counter()
    index = build_index(config, cache, tag=False, memory_limit=memory_limit)
    built = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.perf_counter()
    opened = Index(index.folder, config)
    opening = time.perf_counter() - started
    started = time.perf_counter()
    planner = Planner(opened, PlanConfig(token_budget=4096, packs_per_step=512), FlopModel(quadratic=1.0, linear=14e3))
    first = len(planner.step(0))
    return {
        "rows": float(len(index)),
        "build_seconds": built,
        "peak_mb": peak,
        "open_seconds": opening,
        "first_step_seconds": time.perf_counter() - started,
        "packs": float(first),
        "index_bytes": float(sum(p.stat().st_size for p in index.folder.iterdir())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--kept", type=float, default=0.3)
    parser.add_argument("--memory-limit", default="4GB")
    parser.add_argument("--build-only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    root, cache = args.folder / f"dataset-{args.rows}", args.folder / "cache"
    if args.build_only:
        print(json.dumps(build(root, cache, args.kept, args.memory_limit)))
        return
    if not root.exists():
        write(root, args.rows)
    shutil.rmtree(cache, ignore_errors=True)
    command = [sys.executable, __file__, *sys.argv[1:], "--build-only"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    case = {"rows_written": args.rows, "kept": args.kept, "memory_limit": args.memory_limit, **found}
    print(json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in case.items()}))


if __name__ == "__main__":
    main()
