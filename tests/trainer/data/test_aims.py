"""What packing is to reach on three mixes (tests/bench/packing.py has the full table): fill, rank sums, lockstep."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from trainer.data.bounds import fill_bound, lockstep_bound
from trainer.data.plan import PlanConfig, Planner
from trainer.data.synthetic import StreamIndex

SLOTS = 8


@pytest.fixture(scope="module")
def bench():
    path = Path(__file__).parents[2] / "bench" / "packing.py"
    spec = importlib.util.spec_from_file_location("bench_packing", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_packing"] = module
    spec.loader.exec_module(module)
    return module


def plan(bench, mix, budget, ranks, balance):
    shares = bench.MIXES[mix][0]()
    rows = {n: max(1, int(30e6 * share / sum(shares.values()))) for n, share in sorted(shares.items())}
    config = PlanConfig(
        token_budget=budget, packs_per_step=ranks * SLOTS, packs_per_rank=SLOTS, balance=balance, seed=1
    )
    return Planner(StreamIndex.of(rows), config, bench.FLOPS)


MIXES = [("open-sora", 131_072), ("wan", 75_600), ("wan", 151_200), ("short", 32_768)]
RANKS = [8, pytest.param(64, marks=pytest.mark.long), pytest.param(1024, marks=pytest.mark.long)]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("mix", "budget"), MIXES)
def test_packs_are_full_and_rank_sums_level(bench, mix, budget, ranks):
    planner = plan(bench, mix, budget, ranks, "sum")
    steps = [planner.step(n) for n in range(2 * planner.window_steps)]
    sums = np.array([np.append(s.costs, 0)[s.deal(ranks)].sum(axis=1) for s in steps])
    level = sums.max(axis=1) / sums.mean(axis=1)
    assert level.mean() < 1.005 and level.max() < 1.01
    fill = np.mean([s.num_tokens.sum() / (budget * len(s)) for s in steps])
    assert fill > 0.99 and fill > fill_bound(planner.lengths, planner.epoch_counts(), budget) - 0.01
    assert all(len(s) == ranks * SLOTS for s in steps), "no window overflows"


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("mix", "budget"), MIXES)
def test_lockstep_is_near_its_bound(bench, mix, budget, ranks):
    planner = plan(bench, mix, budget, ranks, "lockstep")
    step = planner.step(0)
    costs = step.costs[step.deal(ranks)]
    found = costs.max(axis=0).sum() / costs.mean(axis=0).sum()
    assert found < 1.03 * lockstep_bound(planner.classes, planner.class_counts(step), len(step), ranks)
