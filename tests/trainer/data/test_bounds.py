"""Bounds hold for what planners make, and are reached where that is known."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.bounds import cap_bound, fill_bound, lockstep_bound, sum_bound
from trainer.data.packing import Classes, FlopModel, pack_groups, pack_tiers

FLOPS = FlopModel(quadratic=1.0, linear=100.0)


def classes_of(lengths, budget):
    return Classes(lengths=np.array(lengths), costs=FLOPS.costs(np.array(lengths), budget), budget=budget)


@pytest.mark.parametrize(
    ("lengths", "counts", "budget", "fill"),
    [
        ([60], [10], 100, 0.6),  # one a pack
        ([60, 40], [10, 10], 100, 1.0),
        ([60, 40], [10, 5], 100, 0.8),  # ten packs hold 800 tokens
        ([51, 49], [1, 1], 100, 1.0),
        ([34], [30], 100, 0.68),
        ([70, 30, 45], [10, 10, 20], 100, 0.95),  # 70 + 30 and 45 + 45
    ],
)
def test_known_fills(lengths, counts, budget, fill):
    assert fill_bound(np.array(lengths), np.array(counts), budget) == pytest.approx(fill, abs=1e-3)


@given(
    lengths=st.lists(st.integers(5, 100), min_size=1, max_size=6, unique=True),
    seed=st.integers(0, 100),
)
@settings(max_examples=30, deadline=None)
def test_no_packing_fills_more_than_the_bound(lengths, seed):
    counts = np.random.default_rng(seed).integers(1, 200, len(lengths))
    classes = classes_of(lengths, 100)
    bound = fill_bound(classes.lengths, counts, 100)
    num_packs = int(np.ceil(counts @ classes.lengths / 100))
    while pack_groups(classes, counts, np.ones(num_packs, int)).left.any():
        num_packs += 1
    assert counts @ classes.lengths / (100 * num_packs) <= bound + 1e-6


@given(
    lengths=st.lists(st.integers(5, 100), min_size=1, max_size=6, unique=True),
    ranks=st.integers(1, 6),
    slots=st.integers(1, 5),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_no_dealing_beats_the_bounds(lengths, ranks, slots, seed):
    classes = classes_of(lengths, 100)
    counts = np.random.default_rng(seed).integers(1, 30, len(lengths))
    sizes = np.ones(ranks * slots, int)
    for packed in (pack_groups(classes, counts, sizes), pack_tiers(classes, counts, [ranks] * slots)):
        held = counts - packed.left
        if not held.any():
            continue
        costs = -np.sort(-(packed.table @ classes.costs)).reshape(slots, ranks)
        assert costs[:, 0].sum() * ranks / costs.sum() >= lockstep_bound(classes, held, ranks * slots, ranks) - 1e-9
        orders = itertools.islice(itertools.permutations(range(ranks)), 20)
        best = min(sum(row[list(order)] if i % 2 else row for i, row in enumerate(costs)).max() for order in orders)
        assert best * ranks / costs.sum() >= sum_bound(classes, held, ranks * slots, ranks) - 1e-9


def test_one_long_sample_bounds_one_pack_a_rank():
    classes = classes_of([10, 100], 100)
    counts = np.array([30, 1])  # four full packs: 100; 10 x 10 three times
    expected = 4 * classes.costs[1] / (classes.costs[1] + 30 * classes.costs[0])
    assert sum_bound(classes, counts, 4, 4) == pytest.approx(expected)
    assert lockstep_bound(classes, counts, 4, 4) == pytest.approx(expected)
    assert lockstep_bound(classes, counts, 4, 1) == 1


def test_what_fills_up_beside_long_samples_is_there_once():
    # three full packs: 70 + 15 + 15, 70 + 30, 50 + 50; the two of 70 share the 15s, which are cheapest, and the 30
    classes = classes_of([15, 30, 50, 70], 100)
    counts = np.array([2, 1, 2, 2])
    long_ones = (2 * classes.costs[3] + 2 * classes.costs[0] + classes.costs[1]) / 2
    expected = long_ones * 3 / (counts @ classes.costs)
    assert lockstep_bound(classes, counts, 3, 3) == pytest.approx(expected)
    assert sum_bound(classes, counts, 3, 3) == pytest.approx(expected)


@given(lengths=st.lists(st.integers(10, 100), min_size=1, max_size=5, unique=True), seed=st.integers(0, 50))
@settings(max_examples=15, deadline=None)
def test_no_pack_cost_beats_the_cap(lengths, seed):
    classes = classes_of(lengths, 100)
    counts = np.random.default_rng(seed).integers(1, 30, len(lengths))
    num_packs = int(np.ceil(counts @ classes.lengths / 100))
    while (packed := pack_groups(classes, counts, np.ones(num_packs, int))).left.any():
        num_packs += 1
    costs = packed.table @ classes.costs
    assert costs.max() / costs.mean() >= cap_bound(classes, counts, num_packs) - 1e-9


def test_cap_knows_what_must_go_together():
    # as many 60s as packs, and 40s to fill them: every pack is 60 + 40, so the cap is the mean
    classes = classes_of([40, 60], 100)
    assert cap_bound(classes, np.array([10, 10]), 10) == pytest.approx(1.0, abs=0.01)
    # eight 50s and two 100s in six full packs: a 100 is alone, and costs more than 50 + 50
    classes = classes_of([50, 100], 100)
    costs = classes.costs
    mean = (8 * costs[0] + 2 * costs[1]) / 6
    assert cap_bound(classes, np.array([8, 2]), 6) == pytest.approx(costs[1] / mean, abs=0.01)
