"""Packs keep their budget, lose nothing, fill up and even out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.packing import Classes, FlopModel, pack_groups, pack_tiers, pour

FLOPS = FlopModel(quadratic=1.0, linear=14_000.0)


def classes_of(lengths, budget):
    lengths = np.array(lengths)
    return Classes(lengths=lengths, costs=FLOPS.costs(lengths, budget), budget=budget)


def check(classes, counts, packed, num_packs):
    assert packed.table.shape == (num_packs, len(classes.lengths))
    assert (packed.table >= 0).all()
    assert (packed.table @ classes.lengths <= classes.budget).all()
    assert np.array_equal(packed.table.sum(axis=0) + packed.left, counts)


@st.composite
def problems(draw):
    budget = draw(st.integers(50, 5000))
    lengths = draw(st.lists(st.integers(1, budget), min_size=1, max_size=12, unique=True))
    counts = draw(st.lists(st.integers(0, 200), min_size=len(lengths), max_size=len(lengths)))
    return classes_of(lengths, budget), np.array(counts), draw(st.integers(1, 12)), draw(st.integers(1, 8))


@given(problem=problems())
@settings(max_examples=100, deadline=None)
def test_groups_never_exceed_the_budget_and_lose_nothing(problem):
    classes, counts, groups, width = problem
    sizes = [width] * groups
    sizes[-1] = max(1, width - 1)
    packed = pack_groups(classes, counts, sizes)
    check(classes, counts, packed, sum(sizes))
    for c in np.flatnonzero(packed.left):  # a sample is left only where no pack has room for it
        assert (classes.budget - packed.table @ classes.lengths).max() < classes.lengths[c]


@given(problem=problems())
@settings(max_examples=100, deadline=None)
def test_tiers_never_exceed_the_budget_and_lose_nothing(problem):
    classes, counts, packs, tiers = problem
    packed = pack_tiers(classes, counts, [packs] * tiers)
    check(classes, counts, packed, packs * tiers)


@given(
    load=st.lists(st.integers(0, 1000), min_size=1, max_size=20),
    cost=st.integers(1, 300),
    count=st.integers(0, 500),
    seed=st.integers(0, 99),
)
@settings(max_examples=100, deadline=None)
def test_pour_equals_giving_one_at_a_time_to_the_least_loaded(load, cost, count, seed):
    load = np.array(load)
    places = np.random.default_rng(seed).integers(0, 30, len(load))
    given_ = pour(load, places, cost, count)
    level, slow = load.copy(), np.zeros(len(load), int)
    for _ in range(min(count, int(places.sum()))):
        i = int(np.argmin(np.where(slow < places, level + cost, np.iinfo(np.int64).max)))
        slow[i] += 1
        level[i] += cost
    assert given_.sum() == slow.sum()
    assert (given_ <= places).all()
    assert np.array_equal(np.sort((load + given_ * cost)[given_ > 0]), np.sort(level[slow > 0]))


def test_known_packs():
    classes = classes_of([60, 40], 100)
    packed = pack_groups(classes, [3, 3], [1, 1, 1])
    assert packed.table.tolist() == [[1, 1]] * 3 and not packed.left.any()


def test_odd_remainders_take_the_classes_that_fit_them():
    # 3 x 33 leaves 1 of 100; 2 x 33 + 34 fills it: the 34s must go one a pack, not two
    classes = classes_of([33, 34], 100)
    packed = pack_groups(classes, [20, 10], np.ones(10, int))
    assert not packed.left.any()
    assert (packed.table == [2, 1]).all()


def test_groups_give_way_to_a_heavy_sample():
    """One long sample in a step: the other packs of its rank stay light, so that the ranks' sums agree."""
    classes = classes_of([1000, 20_000, 100_000], 120_000)
    packed = pack_groups(classes, [3600, 150, 4], [8] * 8)
    assert not packed.left.any()
    sums = (packed.table @ classes.costs).reshape(8, 8).sum(axis=1)
    assert sums.max() / sums.mean() < 1.01


def test_tiers_put_the_heavy_packs_together():
    classes = classes_of([1000, 50_000, 100_000], 120_000)
    counts = [3000, 40, 4]
    packed = pack_tiers(classes, counts, [8] * 8)
    costs = -np.sort(-(packed.table @ classes.costs)).reshape(8, 8)
    flat = pack_groups(classes, counts, np.ones(64, int))
    level = -np.sort(-(flat.table @ classes.costs)).reshape(8, 8)
    assert costs[0].min() > 1.3 * level[0].min()
    assert costs.max(axis=1).sum() < 0.97 * level.max(axis=1).sum()


def test_too_long_a_class_is_refused():
    with pytest.raises(ValueError, match="exceeds the budget"):
        classes_of([11], 10)


def test_flop_model_fits_times_that_it_made():
    rng = np.random.default_rng(0)
    tokens, squares = rng.uniform(1e3, 1e5, 50), rng.uniform(1e6, 1e9, 50)
    fitted = FlopModel.fit(tokens, squares, 2e-9 * squares + 3e-6 * tokens)
    assert fitted.quadratic == pytest.approx(2e-9) and fitted.linear == pytest.approx(3e-6)
    flat = FlopModel.fit(tokens, squares, 3e-6 * tokens - 1e-11 * squares)
    assert flat.quadratic == 0 and flat.linear > 0


def test_costs_are_integers_and_a_full_pack_costs_two_to_the_thirty():
    costs = FLOPS.costs(np.array([1, 50_000, 100_000]), 100_000)
    assert costs.dtype == np.int64 and costs[2] == 1 << 30
    assert costs[1] == pytest.approx((1 << 30) * 0.5 * (64_000 / 114_000), rel=1e-6)
