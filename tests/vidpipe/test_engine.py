"""The engine over toy stages: what is not done is done once; rules, retries, limits and resumption."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from schemas import tables
from schemas.columns import ID, Column, TableSpec
from schemas.errors import UnknownColumn, UserError
from schemas.outcomes import Outcome
from vidpipe.engine import Engine, dry_run
from vidpipe.executor import InlineExecutor
from vidpipe.redo import adopt, adoptable, check_redo
from vidpipe.sandbox import UnitCrashed
from vidpipe.sections import EngineConfig
from vidpipe.stages.base import Context, Result, Row, Stage, Unit, batched_by
from vidpipe.stages.view import View
from vidpipe.store.dataset import Dataset
from vidpipe.store.reconcile import KeptRows

NUM_SOURCES = 30
SQUARES = TableSpec(
    name="squares",
    key="clip_id",
    meaning="toy",
    columns=(
        Column(name="clip_id", type=ID, nullable=False, meaning="row of clips"),
        Column(name="square", type=pa.int64(), meaning="its number squared"),
        *tables.SPLIT.columns[-2:],
    ),
)


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


@dataclass(frozen=True, kw_only=True)
class Numbers(Stage):
    """Toy source stage: rows 0 .. count - 1 of `clips`."""

    name = "analyze"
    version = 1
    count: int = NUM_SOURCES

    def tables(self) -> dict[str, tuple[TableSpec, dict[bytes, bytes]]]:
        return {"clips": (tables.CLIPS, {})}

    def kept_rows(self) -> dict[str, KeptRows]:
        return {"clips": KeptRows(id_column="video_id")}

    def candidates(self, view: View) -> str | None:
        return f"SELECT unhex(printf('%032x', n)) AS id, n FROM range({self.count}) t(n)"

    def units(self, rows: Iterable[Row], view: View, final: bool) -> Iterator[Unit | Result]:
        for batch in batched_by(rows, 4):
            yield self.make_unit(view.accepted[self.name][0], batch)

    def process(self, unit: Unit, context: Context) -> Result:
        n = len(unit.rows)
        columns: dict[str, Any] = {
            "clip_id": [r["id"] for r in unit.rows],
            "video_id": [r["id"] for r in unit.rows],
            "num_frames": pa.array([r["n"] for r in unit.rows], pa.int32()),
        }
        table = pa.table({k: pa.array(v, ID) if k.endswith("_id") else v for k, v in columns.items()})
        assert table.num_rows == n
        return Result(rows={"clips": table}, outcomes=[Outcome(id=r["id"], status="kept") for r in unit.rows])


@dataclass(frozen=True, kw_only=True)
class Squares(Stage):
    """Toy second stage over selected clips; `poison` rows raise."""

    name = "square"
    version = 1
    upstream = ("analyze",)
    computes_from = ("analyze",)
    where: str = "true"
    power: int = 2
    poison: frozenset[int] = frozenset()

    def params(self) -> Mapping[str, Any]:
        return {"power": self.power}

    def tables(self) -> dict[str, tuple[TableSpec, dict[bytes, bytes]]]:
        return {"tables/square": (SQUARES, {})}

    def kept_rows(self) -> dict[str, KeptRows]:
        return {"tables/square": KeptRows(id_column="clip_id")}

    def candidates(self, view: View) -> str | None:
        return 'SELECT *, clip_id AS id FROM "cur/clips"' if view.has("clips") else None

    def units(self, rows: Iterable[Row], view: View, final: bool) -> Iterator[Unit | Result]:
        for batch in batched_by(rows, 4):
            yield self.make_unit(view.accepted[self.name][0], batch)

    def process(self, unit: Unit, context: Context) -> Result:
        if self.poison & {r["num_frames"] for r in unit.rows}:
            raise UnitCrashed("boom")
        table = pa.table(
            {
                "clip_id": pa.array([r["id"] for r in unit.rows], ID),
                "square": [r["num_frames"] ** self.power for r in unit.rows],
            }
        )
        return Result(rows={"tables/square": table}, outcomes=[Outcome(id=r["id"], status="kept") for r in unit.rows])


class Silent:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def update(self, stage: str, **counts: float) -> None:
        pass

    def log(self, line: str) -> None:
        self.lines.append(line)


def run(root: Path, *stages: Stage, **options: Any) -> dict[str, dict[str, int]]:
    dataset = Dataset(root).create()
    engine = Engine(dataset, stages, stages, EngineConfig(commit_seconds=0.1), InlineExecutor(), Silent(), **options)
    return {name: dict(counts) for name, counts in engine.run().items()}


def squares(root: Path) -> list[int]:
    return sorted(Dataset(root).read("tables/square")["square"].to_pylist())


def test_does_everything_once_and_a_second_run_nothing(tmp_path: Path) -> None:
    counts = run(tmp_path / "d", Numbers(), Squares())
    assert counts == {"analyze": {"kept": NUM_SOURCES}, "square": {"kept": NUM_SOURCES}}
    assert squares(tmp_path / "d") == [n * n for n in range(NUM_SOURCES)]
    versions = {n: Dataset(tmp_path / "d").table(n).count_rows() for n in Dataset(tmp_path / "d").names()}
    assert run(tmp_path / "d", Numbers(), Squares()) == {"analyze": {}, "square": {}}
    assert versions == {n: Dataset(tmp_path / "d").table(n).count_rows() for n in versions}


def test_new_sources_cost_only_themselves(tmp_path: Path) -> None:
    run(tmp_path / "d", Numbers(count=10), Squares())
    assert run(tmp_path / "d", Numbers(count=13), Squares()) == {"analyze": {"kept": 3}, "square": {"kept": 3}}
    assert squares(tmp_path / "d") == [n * n for n in range(13)]


def test_a_rule_rejects_with_its_term_and_value_and_a_moved_threshold_costs_what_it_lets_in(tmp_path: Path) -> None:
    root = tmp_path / "d"
    counts = run(root, Numbers(), Squares(where="num_frames >= 20 and num_frames < 25"))
    assert counts["square"] == {"kept": 5, "rejected": 25}
    outcomes = Dataset(root).read("outcomes/square", filter="status = 'rejected'").to_pylist()
    by_id = {o["id"]: o for o in outcomes}
    assert (by_id[key(3)]["rule"], by_id[key(3)]["value"]) == ("num_frames >= 20", "num_frames=3")
    assert by_id[key(27)]["rule"] == "num_frames < 25"
    counts = run(root, Numbers(), Squares(where="num_frames >= 18 and num_frames < 25"))
    assert counts["square"]["kept"] == 2
    assert squares(root) == [n * n for n in range(18, 25)]
    assert Dataset(root).read("outcomes/square").num_rows == NUM_SOURCES
    assert run(root, Numbers(), Squares(where="num_frames >= 18 and num_frames < 25"))["square"] == {}


def test_the_same_rows_turned_away_by_another_expression_say_so_once(tmp_path: Path) -> None:
    root = tmp_path / "d"
    for where in ("num_frames > 3.5", "num_frames > 3.2", "num_frames > 3.5"):
        assert run(root, Numbers(count=6), Squares(where=where))["square"]["rejected"] == 4
        assert run(root, Numbers(count=6), Squares(where=where))["square"] == {}
        rules = [r for r in Dataset(root).read("outcomes/square")["rule"].to_pylist() if r]
        assert rules == [where] * 4


def test_null_is_false(tmp_path: Path) -> None:
    assert run(tmp_path / "d", Numbers(), Squares(where="fps > 0"))["square"] == {"rejected": NUM_SOURCES}


def test_an_expression_may_end_in_a_comment(tmp_path: Path) -> None:
    counts = run(tmp_path / "d", Numbers(), Squares(where="num_frames >= 20 -- the long ones"))
    assert counts["square"] == {"kept": 10, "rejected": 20}


def test_unknown_column_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'num_frames'") as error:
        run(tmp_path / "d", Numbers(), Squares(where="num_frame > 3"))
    assert isinstance(error.value.__cause__ or error.value, (UnknownColumn, UserError))


def test_a_bad_row_is_isolated_and_becomes_an_outcome(tmp_path: Path) -> None:
    counts = run(tmp_path / "d", Numbers(), Squares(poison=frozenset({7, 8})))
    assert counts["square"] == {"kept": NUM_SOURCES - 2, "failed": 2}
    failed = Dataset(tmp_path / "d").read("outcomes/square", filter="status = 'failed'").to_pylist()
    assert {o["id"] for o in failed} == {key(7), key(8)} and {o["reason"] for o in failed} == {"crashed"}
    assert run(tmp_path / "d", Numbers(), Squares())["square"] == {}
    assert run(tmp_path / "d", Numbers(), Squares(), retry_failed=True)["square"] == {"kept": 2}
    assert squares(tmp_path / "d") == [n * n for n in range(NUM_SOURCES)]
    assert Dataset(tmp_path / "d").read("outcomes/square").num_rows == NUM_SOURCES


@dataclass(frozen=True, kw_only=True)
class Flaky(Squares):
    """Its rows have an item each, and cannot be read while `down`."""

    single_item = False
    down: bool = False
    reason: str = "io_error"

    def items(self, row: Row) -> tuple[str, ...]:
        return ("it",)

    def process(self, unit: Unit, context: Context) -> Result:
        if self.down:
            return Result(outcomes=[o for r in unit.rows for o in self.failed(r, self.reason, "down")])
        made = super().process(unit, context)
        return replace(made, outcomes=[replace(o, item="it") for o in made.outcomes])


@pytest.mark.parametrize("reason", ["io_error", "captioner_failed", "changed"])
def test_what_could_not_be_read_is_asked_again_when_told_to(tmp_path: Path, reason: str) -> None:
    root, numbers = tmp_path / "d", Numbers(count=3)
    assert run(root, numbers, Flaky(down=True, reason=reason))["square"] == {"failed": 3}
    assert run(root, numbers, Flaky())["square"] == {}
    assert run(root, numbers, Flaky(), retry_failed=True)["square"] == {"kept": 3}
    assert Dataset(root).read("outcomes/square")["status"].to_pylist() == ["kept"] * 3  # the old ones are replaced
    assert run(root, numbers, Flaky(), retry_failed=True)["square"] == {}


def test_a_server_that_answers_nothing_stops_the_run_and_what_it_cost_is_asked_again(tmp_path: Path) -> None:
    root, numbers = tmp_path / "d", Numbers(count=30)
    with pytest.raises(UserError, match=r"20 of 20 rows crashed, hung, raised or got no answer.*down"):
        run(root, numbers, Flaky(down=True, reason="captioner_failed"))
    assert run(root, numbers, Flaky(), retry_failed=True)["square"] == {"kept": 30}
    assert run(tmp_path / "other", numbers, Flaky(down=True, reason="io_error"))["square"] == {"failed": 30}


def test_too_many_faults_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="max_error_fraction"):
        run(tmp_path / "d", Numbers(count=100), Squares(poison=frozenset(range(100))))


def test_limit_takes_that_many_rows_of_each_stage(tmp_path: Path) -> None:
    assert run(tmp_path / "d", Numbers(), Squares(), limit=6) == {"analyze": {"kept": 6}, "square": {"kept": 6}}
    assert run(tmp_path / "d", Numbers(), Squares())["square"] == {"kept": NUM_SOURCES - 6}


class EightWorkers(InlineExecutor):
    """As if there were so many."""

    def slots(self, gpu: float = 0.0) -> int:
        return 8


@pytest.mark.parametrize(("limit", "most"), [(None, 4), (63, 4), (48, 3), (16, 1), (5, 1)])
def test_what_is_too_little_for_full_units_is_shared_by_all_workers(
    tmp_path: Path, limit: int | None, most: int
) -> None:
    sizes: list[int] = []

    @dataclass(frozen=True, kw_only=True)
    class Shared(Numbers):
        def units(self, rows: Iterable[Row], view: View, final: bool) -> Iterator[Unit | Result]:
            for batch in batched_by(rows, 4, slots=view.slots):
                sizes.append(len(batch))
                yield self.make_unit(view.accepted[self.name][0], batch)

    stage = Shared(count=160)
    dataset = Dataset(str(tmp_path / "d")).create()
    Engine(dataset, [stage], [stage], EngineConfig(), EightWorkers(), Silent(), limit=limit).run()
    assert max(sizes) == most and sum(sizes) == (limit or 160)


def test_looking_ahead_for_shares_is_bounded_and_weights_of_nothing_end_a_unit() -> None:
    taken = 0

    def rows() -> Iterator[Row]:
        nonlocal taken
        while True:
            taken += 1
            yield {"seconds": 0.0 if taken < 6000 else 10.0}

    units = batched_by(rows(), 60.0, "seconds", lambda: 1000)
    assert len(next(units)) == 4096 and taken == 4096
    assert len(next(units)) == 6000 - 4097 + 6
    assert [len(b) for b in batched_by([{"seconds": None}] * 9, 60.0, "seconds", lambda: 4)] == [9]
    assert [len(b) for b in batched_by([{"seconds": 10.0}] * 12, 60.0, "seconds", lambda: 1)] == [6, 6]


def test_changed_parameter_wants_redo_or_adopt(tmp_path: Path) -> None:
    dataset = Dataset(tmp_path / "d")
    run(tmp_path / "d", Numbers(), Squares())
    changed = [Numbers(), Squares(power=3)]
    with pytest.raises(UserError, match="--redo square"):
        check_redo(dataset, changed, changed, ())
    check_redo(dataset, changed, changed, ("square",))
    adopting = {"square": adoptable(dataset, changed[1], changed)}
    check_redo(dataset, changed, changed, (), adopting)
    assert [r["rows"] for r in dry_run(dataset, changed, changed, adopting)] == [0, 0]
    with pytest.raises(UserError):  # nothing is written by asking
        check_redo(dataset, changed, changed, ())
    adopt(dataset, changed, adopting)
    check_redo(dataset, changed, changed, ())
    assert run(tmp_path / "d", *changed)["square"] == {}


def test_redo_of_an_upstream_stage_covers_what_computes_from_it(tmp_path: Path) -> None:
    dataset = Dataset(tmp_path / "d")
    run(tmp_path / "d", Numbers(), Squares())

    class Newer(Numbers):
        version = 2

    changed = [Newer(), Squares()]
    check_redo(dataset, changed, changed, ("analyze",))
    assert run(tmp_path / "d", *changed)["square"] == {"kept": NUM_SOURCES}


def test_outcomes_cut_off_by_a_crash_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vidpipe.store import failpoints

    monkeypatch.setattr(failpoints, "_plan", {"commit:between-data-and-outcomes": [(1, "raise")]})
    monkeypatch.setattr(failpoints, "_passes", {})
    with pytest.raises(OSError, match="failpoint"):
        run(tmp_path / "d", Numbers(), replace(Squares(), power=2))
    assert Dataset(tmp_path / "d").read("clips").num_rows > 0
    assert Dataset(tmp_path / "d").read("outcomes/analyze").num_rows == 0
    monkeypatch.setattr(failpoints, "_plan", {})
    run(tmp_path / "d", Numbers(), Squares())
    assert squares(tmp_path / "d") == [n * n for n in range(NUM_SOURCES)]
    ids = Dataset(tmp_path / "d").read("clips")["clip_id"].to_pylist()
    assert len(ids) == len(set(ids)) == NUM_SOURCES
    assert Dataset(tmp_path / "d").read("outcomes/analyze").num_rows == NUM_SOURCES
