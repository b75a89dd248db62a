"""The processes that `prove_protocol.py` kills and pauses: coordinators and writers over rows that mean nothing.

Row n's fate is known beforehand (`status_of`), so any state of the tables can be checked by arithmetic. Rows go to one
of two tables in blocks; units are consecutive rows without an outcome, cut differently for each `--seed`, so that a
coordinator that takes over plans other units than the one before.

    python tests/chaos/actors.py coordinate ROOT --rows 100000
    python tests/chaos/actors.py create ROOT

Exit status: 0 done, 3 the lease was lost, 4 the lease is another's. Failpoints come by VIDPIPE_FAILPOINT.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from schemas import ids
from schemas.latent_spaces import METADATA_KEY, LatentSpace
from schemas.layout import outcomes_name
from schemas.tables import LATENTS, OUTCOMES
from vidpipe.store.commit import Committer, StagedUnit
from vidpipe.store.dataset import Dataset
from vidpipe.store.lease import Lease, LeaseConfig, LeaseHeld, LeaseLost
from vidpipe.store.reconcile import KeptRows, reconcile
from vidpipe.store.write import write_fragments

STAGE = "encode"
OUTCOMES_NAME = outcomes_name(STAGE)
TABLES = ("latents/toy/1x8x8", "latents/toy/1x8x16")
BLOCK_ROWS = 512
FINGERPRINT = "f" * 16
SPACE = LatentSpace(
    name="toy", vae="dct", revision="1", channels=1, stride_t=1, stride_h=8, stride_w=8, mean=(0.0,), std=(1.0,)
)
LOST, HELD = 3, 4
_WHEN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def table_of(numbers: np.ndarray) -> np.ndarray:
    """Index into TABLES of each row."""
    return numbers // BLOCK_ROWS % len(TABLES)


def status_of(numbers: np.ndarray, expression: str) -> np.ndarray:
    """`kept`, `rejected` or `failed`; expression `e2` lets in half of what `e1` rejects."""
    rejected = (numbers % 7 == 3) & ((expression == "e1") | (numbers % 14 != 3))
    return np.where(numbers % 31 == 5, "failed", np.where(rejected, "rejected", "kept"))


def id_column(numbers: np.ndarray) -> pa.Array:
    """binary(16) ids, big endian."""
    raw = np.zeros((len(numbers), 2), dtype=">u8")
    raw[:, 1] = numbers
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(numbers), [None, pa.py_buffer(raw.tobytes())])


def numbers_of(column: pa.ChunkedArray) -> np.ndarray:
    """Row numbers of ids."""
    parts = [
        np.frombuffer(c.buffers()[1], ">u8").reshape(-1, 2)[c.offset : c.offset + len(c), 1] for c in column.chunks
    ]
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)


def payload_of(number: int) -> bytes:
    """Sixteen bytes that name the row."""
    return f"latent {number:9d}".encode()


def latents(unit: str, numbers: np.ndarray) -> pa.Table:
    """Rows of a latent table."""
    payloads = [payload_of(n) for n in numbers.tolist()]
    return pa.table(
        {
            "latent_id": id_column(numbers),
            "clip_id": id_column(numbers),
            "latent_crc32": pa.array([zlib.crc32(p) for p in payloads], pa.uint32()),
            "latent": pa.array(payloads, pa.large_binary()),
            "fingerprint": [FINGERPRINT] * len(numbers),
            "unit_id": [unit] * len(numbers),
        }
    )


def outcomes(unit: str, numbers: np.ndarray, expression: str) -> pa.Table:
    """Rows of the outcomes table."""
    num = len(numbers)
    status = status_of(numbers, expression)
    columns = {
        "id": id_column(numbers),
        "item": [""] * num,
        "status": pa.array(status),
        "reason": pa.array(np.where(status == "kept", "", "because")),
        "expression_hash": pa.array(np.where(status == "rejected", expression, "")),
        "rule": [""] * num,
        "value": [""] * num,
        "message": [f"row {n}" for n in numbers.tolist()],  # outcomes made up anew would not have it
        "seconds": [0.5] * num,
        "host": ["h"] * num,
        "finished_at": [_WHEN] * num,
        "fingerprint": [FINGERPRINT] * num,
        "unit_id": [unit] * num,
    }
    schema = OUTCOMES.schema()
    return pa.table({f.name: columns[f.name] for f in schema}, schema=schema)


def ensure(dataset: Dataset) -> None:
    """Create both latent tables."""
    for name in TABLES:
        dataset.ensure(name, LATENTS, {METADATA_KEY: SPACE.to_json().encode()})


def todo(dataset: Dataset, num_rows: int, expression: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows without an outcome or rejected by another expression; and which of them were rejected."""
    seen = dataset.read(OUTCOMES_NAME, ["id", "status", "expression_hash"])
    numbers = numbers_of(seen["id"])
    stale = (np.array(seen["status"]) == "rejected") & (np.array(seen["expression_hash"]) != expression)
    done = np.zeros(num_rows, bool)
    done[numbers[~stale]] = True
    rejected = np.zeros(num_rows, bool)
    rejected[numbers[stale]] = True
    return np.flatnonzero(~done), rejected


def units(rows: np.ndarray, unit_rows: int, seed: int) -> Iterator[np.ndarray]:
    """Cut rows into units of one table each, shifted by the seed."""
    for table in range(len(TABLES)):
        mine = rows[table_of(rows) == table]
        first = seed * 37 % unit_rows
        cuts = [0, *range(first or unit_rows, len(mine), unit_rows), len(mine)]
        yield from (mine[a:b] for a, b in itertools.pairwise(cuts) if b > a)


def interleaved(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Alternate between the tables, so that a commit has units of both."""
    by_table: list[list[np.ndarray]] = [[p for p in parts if table_of(p[:1])[0] == t] for t in range(len(TABLES))]
    longest = max(map(len, by_table))
    return [column[i] for i in range(longest) for column in by_table if i < len(column)]


class Writers:
    """Writes a unit's rows here, or in a process of its own that may die or hang."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.failpoint = args.writer_failpoint
        self.pool = ThreadPoolExecutor(2)

    def write(self, unit: str, numbers: np.ndarray) -> list[str]:
        if not self.args.processes:
            return write_unit(self.args.root, unit, numbers)
        for _ in range(10):
            env = {**os.environ, "VIDPIPE_FAILPOINT": self.failpoint}
            self.failpoint = ""
            command = [sys.executable, __file__, "write", self.args.root, "--unit", unit]
            pipes: dict = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
            process = subprocess.Popen(command, **pipes, stderr=subprocess.DEVNULL, env=env, text=True)
            try:
                answer, _ = process.communicate(json.dumps(numbers.tolist()), timeout=self.args.writer_seconds)
            except subprocess.TimeoutExpired:
                print(f"left {process.pid}", flush=True)  # as a lost node is; prove_protocol wakes it later
                continue
            if process.returncode == 0:
                return json.loads(answer)
        raise RuntimeError("ten writers died")


def write_unit(root: str, unit: str, numbers: np.ndarray) -> list[str]:
    """Fragments of the rows that are kept."""
    return write_fragments(root, TABLES[table_of(numbers[:1])[0]], latents(unit, numbers))


def stage_unit(writers: Writers, numbers: np.ndarray, rejected: np.ndarray, expression: str) -> StagedUnit:
    """Do a unit: half of them send their outcomes as fragments, half as rows."""
    keys = id_column(numbers).to_pylist()
    unit = ids.unit_id(STAGE, FINGERPRINT, [*keys, expression.encode()])
    kept = numbers[status_of(numbers, expression) == "kept"]
    fragments = {TABLES[table_of(numbers[:1])[0]]: writers.write(unit, kept)} if len(kept) else {}
    rows = outcomes(unit, numbers, expression)
    as_fragments = int(unit[0], 16) % 2 == 0
    if as_fragments:
        fragments[OUTCOMES_NAME] = write_fragments(writers.args.root, OUTCOMES_NAME, rows)
    return StagedUnit(
        unit_id=unit,
        fragments=fragments,
        rows={} if as_fragments else {OUTCOMES_NAME: rows},
        fingerprint=FINGERPRINT,
        replaces=[(keys[i], "") for i in np.flatnonzero(rejected[numbers])],
    )


def coordinate(args: argparse.Namespace) -> int:
    """Take the lease, complete what was cut off, do what is not done."""
    dataset = Dataset(args.root).create()
    ensure(dataset)
    config = LeaseConfig(lease_seconds=args.lease_seconds, beat_seconds=args.lease_seconds / 8)
    try:
        lease = Lease.acquire(dataset, STAGE, config)
    except LeaseHeld:
        return HELD
    try:
        with lease:
            committer = Committer(dataset, STAGE, lease)
            reconcile(committer, dict.fromkeys(TABLES, KeptRows(id_column="clip_id")))
            _work(args, dataset, committer)
    except LeaseLost:
        return LOST
    return 0


def _work(args: argparse.Namespace, dataset: Dataset, committer: Committer) -> None:
    rows, rejected = todo(dataset, args.rows, args.expression)
    parts = interleaved(list(units(rows, args.unit_rows, args.seed)))
    writers = Writers(args)
    starts = range(0, len(parts), args.batch_units)
    for start in list(starts)[: args.max_batches]:
        batch = parts[start : start + args.batch_units]
        committer.commit(stage_unit(writers, part, rejected, args.expression) for part in batch)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["coordinate", "create", "write"])
    parser.add_argument("root")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--unit-rows", type=int, default=500)
    parser.add_argument("--batch-units", type=int, default=4)
    parser.add_argument("--max-batches", type=int)
    parser.add_argument("--expression", default="e1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lease-seconds", type=float, default=2.4)
    parser.add_argument("--processes", action="store_true", help="a process a unit writes the fragments")
    parser.add_argument("--writer-failpoint", default="", help="for the first of those processes")
    parser.add_argument("--writer-seconds", type=float, default=10.0)
    parser.add_argument("--unit", default="")
    args = parser.parse_args()
    if args.what == "coordinate":
        return coordinate(args)
    if args.what == "create":
        ensure(Dataset(args.root).create())
        return 0
    print(json.dumps(write_unit(args.root, args.unit, np.array(json.load(sys.stdin), np.int64))))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main())
