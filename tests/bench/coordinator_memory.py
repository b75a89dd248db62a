"""Resident memory of a coordinator while it commits 10^4 to 10^6 units.

    python tests/bench/coordinator_memory.py [--units 1000000] [--batch 200] [--folder DIR]

Commits units of three rows (captions and their outcomes), as an engine does, and prints one JSON line at each power of
ten and its triple: units, resident MB, the time of a batch's commit, fragments and versions of the outcomes table.
Nothing but the store runs here; what an engine holds of its own comes on top.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from schemas import ids
from schemas.columns import TableSpec
from schemas.layout import outcomes_name
from schemas.tables import CAPTIONS, OUTCOMES
from vidpipe.store.commit import Committer, StagedUnit
from vidpipe.store.dataset import Dataset
from vidpipe.store.lease import Lease

ROWS = 3
WHEN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
EMPTY = ("item", "reason", "rule", "value", "expression_hash", "message", "host")


def units(first: int, count: int) -> list[StagedUnit]:
    """Units of three captions each."""
    num = ROWS * count
    keys = [(ROWS * first + i).to_bytes(16, "big") for i in range(num)]
    names = [ids.unit_id("caption", "f", keys[i : i + ROWS]) for i in range(0, num, ROWS)]
    common = {"fingerprint": ["f"] * num, "unit_id": [name for name in names for _ in range(ROWS)]}
    texts = [f"a caption of some length, number {first + i // ROWS}" for i in range(num)]
    captions = {"caption_id": keys, "clip_id": keys, "text_id": keys, "source": ["s"] * num, "text": texts, **common}
    outcomes = {**{column: [""] * num for column in EMPTY}, "id": keys, "status": ["kept"] * num, **common}
    outcomes |= {"seconds": [0.5] * num, "finished_at": [WHEN] * num}
    tables = {"captions": _table(captions, CAPTIONS), outcomes_name("caption"): _table(outcomes, OUTCOMES)}
    return [
        StagedUnit(unit_id=name, rows={table: rows.slice(ROWS * i, ROWS) for table, rows in tables.items()})
        for i, name in enumerate(names)
    ]


def _table(columns: dict[str, list], spec: TableSpec) -> pa.Table:
    schema = pa.schema([field for field in spec.schema() if field.name in columns])
    return pa.table({field.name: columns[field.name] for field in schema}, schema=schema)


def resident_mb() -> float:
    """Of this process, after a collection."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--folder")
    args = parser.parse_args()
    marks = [m for power in range(3, 8) for m in (10**power, 3 * 10**power) if m <= args.units]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        dataset = Dataset(folder + "/data").create()
        dataset.ensure("captions", CAPTIONS)
        with Lease.acquire(dataset, "caption") as lease:
            committer = Committer(dataset, "caption", lease)
            done, since, seconds = 0, 0, 0.0
            while done < args.units:
                staged = units(done, args.batch)
                started = time.perf_counter()
                committer.commit(staged)
                seconds += time.perf_counter() - started
                done, since = done + args.batch, since + 1
                if marks and done >= marks[0]:
                    marks.pop(0)
                    table = dataset.table(lease.table)
                    line = {
                        "units": done,
                        "resident_mb": round(resident_mb(), 1),
                        "commit_ms": round(1e3 * seconds / since, 1),
                    }
                    line |= {"fragments": len(table.fragment_ids()), "version": table.version}
                    print(json.dumps(line), flush=True)
                    since, seconds = 0, 0.0


if __name__ == "__main__":
    main()
