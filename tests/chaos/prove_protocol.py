"""Kill and pause writers and coordinators at every step of the commit protocol, and check every row afterwards.

    python tests/chaos/prove_protocol.py [--rows 1048576] [--s3-rows 8000] [--only PATTERN]

Prints one JSON line a case and exits with 1 if any failed. Cases, on a local folder and on an S3 server (moto):

    kill        one dataset; coordinator after coordinator dies at the next step; then one finishes
    pause       one dataset; each is paused at a step past its lease, another takes over and commits, the first is woken
    cross       small datasets; A is paused at one step, B, taking over, at another; A is woken in between, then B
    random      one dataset; coordinators are killed at random moments
    crowd       several coordinators start at once, the holder being dead
    create      racing creators of the same tables, some of them killed
    writers     writers die or hang, and a hanging one is woken after its unit was done by another
    ask-again   rows rejected by one expression are asked again under another, with kills in between

After each: every row once with the outcome and payload that arithmetic says, in every column but unit_id, outcomes of
exactly the rows' units, one sentinel a table; after a wake, nothing changed.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import actors  # noqa: E402
from s3_server import BUCKET, s3_server  # noqa: E402

from vidpipe.store.dataset import Dataset  # noqa: E402

# A batch with units of both tables passes `opened`, `checked` and `committed` three times: table 1, table 2, outcomes.
COMMIT_STEPS = [
    "commit:outcomes-staged:3",
    *(f"commit:{step}:{n}" for step in ("opened", "checked", "committed") for n in (4, 5, 6)),
    *(f"commit:between-data-and-outcomes:{n}" for n in (3, 4)),
    "commit:after-outcomes:2",
    "write:start:5",
    "write:done:5",
]
TAKEOVER_STEPS = [
    "lease:beat-written:1",
    "lease:recorded:1",
    *(f"lease:fenced:{n}" for n in (1, 2, 3)),
]
FENCE_PAIR = ("commit:checked:4", "commit:outcomes-staged:1")
"""A checked its lease and is about to commit, B took over and planned: only the fences stop A. Always played."""
CREATE_STEPS = ["create:written:1", "create:published:1", "create:published:2", "create:written:2"]
"""For creators that race from nothing."""
CREATE_CHAIN = [
    "create:written:1",
    "create:published:1",
    "create:published:1",
    "create:written:1",
    "create:published:1",
]
"""For creators one after another: the first table is begun, then there, then the second, then the outcomes."""
RECONCILE_STEPS = ["reconcile:found:1", "reconcile:completed:1"]
DEADLINE_SECONDS = 300.0
T = TypeVar("T")


class Failed(AssertionError):
    """A case found a table in a state that the protocol rules out, or a process did what it should not."""


@dataclass
class World:
    """Where a case plays: a dataset, and how to start processes on it; `every`: in a short run, each n-th step."""

    root: str
    env: Mapping[str, str]
    rows: int
    unit_rows: int
    batch_units: int = 4
    every: int = 1
    lease_seconds: float = 2.4
    processes: list[subprocess.Popen] = field(default_factory=list)

    def start(self, *extra: object, failpoint: str = "", what: str = "coordinate") -> subprocess.Popen:
        path = str(HERE.parents[1])
        env = {**os.environ, **self.env, "VIDPIPE_FAILPOINT": failpoint, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        options = ["--rows", self.rows, "--unit-rows", self.unit_rows, "--batch-units", self.batch_units]
        options += ["--lease-seconds", self.lease_seconds, *extra]
        command = [sys.executable, str(HERE / "actors.py"), what, self.root, *map(str, options)]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def run(self, *extra: object, expect: tuple[int, ...] = (0,), **options: Any) -> subprocess.Popen:
        return finish(self.start(*extra, **options), expect)

    def pick(self, steps: Sequence[T]) -> Sequence[T]:
        """All steps, or in a short run every n-th of them."""
        return steps[self.every // 2 :: self.every]

    def stop_all(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def finish(process: subprocess.Popen, expect: tuple[int, ...] = (0,)) -> subprocess.Popen:
    """Wait for a process and check its exit status."""
    out, err = process.communicate(timeout=DEADLINE_SECONDS)
    process.out = out  # type: ignore[attr-defined]
    if process.returncode not in expect:
        raise Failed(f"exit status {process.returncode}, expected {expect}: {err[-3000:]}")
    return process


def wait_stopped(process: subprocess.Popen) -> bool:
    """Wait until a process has stopped itself; False if it ended without doing so."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return False
        if Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T":
            return True
        time.sleep(0.02)
    raise Failed("neither stopped nor ended")


def check(world: World, expression: str = "e1", complete: bool = True) -> dict[str, int]:
    """Every row at most once (`complete`: exactly once), with what arithmetic says it holds, and of matching units."""
    dataset = Dataset(world.root)
    seen = dataset.read(actors.OUTCOMES_NAME)
    numbers = actors.numbers_of(seen["id"])
    if len(np.unique(numbers)) != len(numbers):
        raise Failed(f"{len(numbers) - len(np.unique(numbers))} outcomes twice")
    if complete and len(numbers) != world.rows:
        raise Failed(f"{len(numbers)} outcomes for {world.rows} rows")
    _same(seen, actors.outcomes("", numbers, expression), "outcomes")
    unit_of = dict(zip(numbers.tolist(), seen["unit_id"].to_pylist()))
    status = actors.status_of(numbers, expression)
    for index, name in enumerate(actors.TABLES):
        wanted = numbers[(actors.table_of(numbers) == index) & (status == "kept")]
        _check_table(dataset, name, wanted, unit_of)
    return {"rows": len(numbers), "kept": int((status == "kept").sum())}


def _check_table(dataset: Dataset, name: str, wanted: np.ndarray, unit_of: Mapping[int, str]) -> None:
    table = dataset.table(name)
    columns = ["latent_id", "clip_id", "latent_crc32", "latent", "fingerprint", "unit_id"]
    rows = dataset.read(name, columns)
    numbers = actors.numbers_of(rows["latent_id"])
    if not np.array_equal(np.sort(numbers), np.sort(wanted)):
        extra = sorted(set(numbers.tolist()) - set(wanted.tolist()))[:5]
        missing = sorted(set(wanted.tolist()) - set(numbers.tolist()))[:5]
        raise Failed(f"{name}: {len(numbers)} rows, {len(wanted)} with outcome kept; extra {extra}, missing {missing}")
    _same(rows, actors.latents("", numbers), name)
    if rows["unit_id"].to_pylist() != [unit_of[n] for n in numbers.tolist()]:
        raise Failed(f"{name}: a row is of another unit than its outcome")
    if table.count_rows() != len(numbers) + 1:
        raise Failed(f"{name}: not exactly one sentinel row")


def _same(found: pa.Table, wanted: pa.Table, name: str) -> None:
    for column in found.column_names:
        if column != "unit_id" and not found[column].cast(wanted.schema.field(column).type).equals(wanted[column]):
            raise Failed(f"{name}: column {column} is not what was written")


def units_of(world: World) -> list[list[str]]:
    """Sorted unit ids of each table, one a row: what a woken process may not change."""
    dataset = Dataset(world.root)
    return [sorted(dataset.read(n, ["unit_id"])["unit_id"].to_pylist()) for n in (*actors.TABLES, actors.OUTCOMES_NAME)]


# ---- the cases: each gets a fresh world and yields (name of the step, details) as it goes


def kill(world: World, object_store: bool) -> Iterator[tuple[str, dict]]:
    for step in [*(["create:uploaded:1"] if object_store else []), *CREATE_CHAIN]:
        world.run(failpoint=step, expect=(-signal.SIGKILL,))
        yield step, {}
    steps = [s for pair in itertools.zip_longest(COMMIT_STEPS, [*TAKEOVER_STEPS, *RECONCILE_STEPS]) for s in pair if s]
    for seed, step in enumerate(world.pick(steps)):
        if step in RECONCILE_STEPS:  # needs something to complete
            world.run("--seed", seed, failpoint="commit:between-data-and-outcomes:1", expect=(-signal.SIGKILL,))
        world.run("--seed", seed, failpoint=step, expect=(-signal.SIGKILL,))
        yield step, {}
    world.run("--seed", 99)
    yield "finish", check(world)


def pause(world: World, _: bool) -> Iterator[tuple[str, dict]]:
    world.run("--max-batches", 1)
    for seed, step in enumerate(world.pick([*COMMIT_STEPS, *TAKEOVER_STEPS])):
        first = world.start("--seed", seed, "--max-batches", 4, failpoint=f"{step}:stop")
        if not wait_stopped(first):
            raise Failed(f"did not reach {step}")
        world.run("--seed", seed + 50, "--max-batches", 2)
        before = units_of(world)
        first.send_signal(signal.SIGCONT)
        if step.startswith("lease:beat-written"):  # it held nothing yet: it takes the lease, now free, and works on
            finish(first)
        elif finish(first, (actors.LOST,)) and units_of(world) != before:
            raise Failed(f"a coordinator woken at {step} changed the tables")
        yield step, check(world, complete=False)
    world.run("--seed", 99)
    yield "finish", check(world)


def cross(world: World, _: bool) -> Iterator[tuple[str, dict]]:
    """A stops at `a`, B at `b` while it takes over or works; A wakes; B wakes; C finishes."""
    root = world.root
    first_steps = [s for s in COMMIT_STEPS if not s.startswith("write")] + TAKEOVER_STEPS
    second_steps = [
        *TAKEOVER_STEPS,
        "commit:outcomes-staged:1",  # it has planned and not begun to commit: the fences of the takeover alone hold
        "commit:checked:1",
        "commit:committed:1",
        "commit:between-data-and-outcomes:1",
    ]
    pairs = world.pick(list(itertools.product(first_steps, second_steps)))
    for number, (a, b) in enumerate([FENCE_PAIR, *(pair for pair in pairs if pair != FENCE_PAIR)]):
        world.root = f"{root}-{number}"
        world.run("--max-batches", 1)
        first = world.start("--seed", 1, failpoint=f"{a}:stop")
        if not wait_stopped(first):
            raise Failed(f"A did not reach {a}")
        second = world.start("--seed", 2, failpoint=f"{b}:stop")
        if not wait_stopped(second):
            raise Failed(f"B did not reach {b}")
        first.send_signal(signal.SIGCONT)
        finish(first, (0, actors.LOST))
        second.send_signal(signal.SIGCONT)
        finish(second, (0, actors.LOST))
        world.run("--seed", 3)
        yield f"{a} / {b}", {**check(world), "first": first.returncode, "second": second.returncode}


def at_random(world: World, _: bool) -> Iterator[tuple[str, dict]]:
    draw = random.Random(0)
    killed = 0
    for seed in world.pick(range(25)):
        process = world.start("--seed", seed)
        time.sleep(draw.uniform(0.8, 4.0))
        if process.poll() is None:
            process.kill()
            killed += 1
        finish(process, (0, -signal.SIGKILL))
        if seed % 5 == 4:
            yield f"after {seed + 1}", {**check_partly(world), "killed": killed}
    world.run("--seed", 99)
    yield "finish", {**check(world), "killed": killed}


def check_partly(world: World) -> dict[str, int]:
    """Between runs, rows may wait for their outcomes; each row at most once all the same."""
    dataset = Dataset(world.root)
    counts = {}
    for name, key in [*((n, "latent_id") for n in actors.TABLES), (actors.OUTCOMES_NAME, "id")]:
        if not dataset.has(name):
            continue
        numbers = actors.numbers_of(dataset.read(name, [key])[key])
        if len(np.unique(numbers)) != len(numbers):
            raise Failed(f"{name}: rows twice")
        counts[name] = len(numbers)
    return counts


def crowd(world: World, _: bool) -> Iterator[tuple[str, dict]]:
    for seed in world.pick(range(6)):
        world.run("--seed", seed, failpoint="commit:committed:2", expect=(-signal.SIGKILL,))
        several = [world.start("--seed", seed * 10 + i, "--max-batches", 3) for i in range(4)]
        ends = [finish(p, (0, actors.HELD, actors.LOST)).returncode for p in several]
        if 0 not in ends:
            raise Failed(f"nobody coordinated: {ends}")
        yield f"round {seed}", {"ends": ends, **check_partly(world)}
    world.run("--seed", 99)
    yield "finish", check(world)


def create(world: World, object_store: bool) -> Iterator[tuple[str, dict]]:
    create_steps = [*CREATE_STEPS, *(["create:uploaded:1", "create:uploaded:2"] if object_store else [])]
    root = world.root
    for number in world.pick(range(6)):
        world.root = f"{root}-{number}"
        doomed = [world.start(what="create", failpoint=step) for step in create_steps]
        paused = world.start(what="create", failpoint=f"{create_steps[number % len(create_steps)]}:stop")
        others = [world.start(what="create") for _ in range(4)]
        for process in doomed:
            finish(process, (0, -signal.SIGKILL))
        for process in others:
            finish(process)
        world.run("--max-batches", 2)
        if wait_stopped(paused):
            before = units_of(world)
            paused.send_signal(signal.SIGCONT)
            finish(paused)
            if units_of(world) != before:
                raise Failed("a creator that was paused changed the tables when it woke")
        world.run()
        yield f"race {number}", check(world)


def writers(world: World, _: bool) -> Iterator[tuple[str, dict]]:
    for seed, step in enumerate(
        world.pick(["write:start:1", "write:start:1:stop", "write:done:1:stop", "write:done:1"])
    ):
        options = ["--processes", "--writer-failpoint", step, "--writer-seconds", 6, "--max-batches", 1, "--seed", seed]
        done = world.run(*options)
        left = [int(line.split()[1]) for line in done.out.splitlines() if line.startswith("left")]  # type: ignore[attr-defined]
        if len(left) != step.endswith("stop"):
            raise Failed(f"{len(left)} writers hung at {step}")
        before = units_of(world)
        for pid in left:
            os.kill(pid, signal.SIGCONT)
            _wait_gone(pid)
        if units_of(world) != before:
            raise Failed(f"a writer woken at {step} changed the tables")
        yield step, check(world, complete=False)
    world.run("--seed", 99)
    yield "finish", check(world)


def _wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return
        except FileNotFoundError:
            return
        time.sleep(0.05)
    raise Failed(f"writer {pid} did not end")


def ask_again(world: World, _: bool) -> Iterator[tuple[str, dict]]:
    world.run()
    check(world)
    steps = [
        "commit:committed:1",
        "commit:between-data-and-outcomes:1",
        "commit:committed:3",
        "commit:after-outcomes:1",
    ]
    for seed, step in enumerate(world.pick(steps)):
        world.run("--expression", "e2", "--seed", seed, failpoint=step, expect=(-signal.SIGKILL,))
        yield step, check_partly(world)
    world.run("--expression", "e2", "--seed", 99)
    yield "finish", check(world, "e2")


@dataclass(frozen=True)
class Case:
    """A case and how large it is."""

    play: Callable[[World, bool], Iterator[tuple[str, dict]]]
    share: float = 1.0  # of the rows asked for
    units: int = 120  # units to cut them into


CASES = {
    "kill": Case(kill, units=300),
    "pause": Case(pause, units=500),
    "cross": Case(cross, share=0.01, units=24),
    "random": Case(at_random),
    "crowd": Case(crowd, units=240),
    "create": Case(create, share=0.01, units=12),
    "writers": Case(writers, share=0.2, units=24),
    "ask-again": Case(ask_again),
}


def play(
    storage: str, name: str, root: str, env: Mapping[str, str], rows: int, every: int = 1
) -> Iterator[dict[str, Any]]:
    """Play a case; yields a line for each of its steps, the last of them with what failed, if anything did."""
    case = CASES[name]
    rows = max(2 * actors.BLOCK_ROWS, int(rows * case.share))
    units = max(30, case.units // every)
    world = World(root=root, env=env, rows=rows, unit_rows=max(8, rows // units), every=every)
    line = {"case": name, "storage": storage, "rows": rows}
    started = time.monotonic()
    try:
        with _environment(env):
            for step, details in case.play(world, storage == "s3"):
                seconds = round(time.monotonic() - started, 1)
                yield {**line, "step": step, "ok": True, "seconds": seconds, "found": details}
                started = time.monotonic()
    except (Failed, subprocess.TimeoutExpired) as error:
        yield {**line, "ok": False, "seconds": round(time.monotonic() - started, 1), "error": str(error)}
    finally:
        world.stop_all()


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.__setitem__(key, value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1 << 20)
    parser.add_argument("--s3-rows", type=int, default=8_000)
    parser.add_argument("--only", default="*", help="STORAGE/CASE pattern, such as 's3/*'")
    args = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory(prefix="prove-") as folder, s3_server() as env:
        for storage, name in itertools.product(("local", "s3"), CASES):
            if not fnmatch.fnmatch(f"{storage}/{name}", args.only):
                continue
            root, rows = (
                (f"{folder}/{name}", args.rows) if storage == "local" else (f"s3://{BUCKET}/{name}", args.s3_rows)
            )
            for line in play(storage, name, root, env if storage == "s3" else {}, rows):
                print(json.dumps(line), flush=True)
                failures += not line["ok"]
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
