"""The plan: budgets kept, every row its visits, the same steps on any number of ranks and from any start."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import UserError
from trainer.data.deal import MISSING
from trainer.data.packing import FlopModel
from trainer.data.plan import PlanConfig, Planner
from trainer.data.synthetic import StreamIndex

FLOPS = FlopModel(quadratic=1.0, linear=14_000.0)


def planner(rows, *, weights=None, **config):
    defaults = {"token_budget": 1000, "packs_per_step": 4, "seed": 3, "read_bytes": 4096}
    return Planner(StreamIndex.of(rows, weights), PlanConfig(**{**defaults, **config}), FLOPS)


def samples(plan):
    """(row, visit) of every sample of a step, by pack."""
    return [list(zip(pack.rows.tolist(), pack.visits.tolist())) for pack in plan]


@st.composite
def planners(draw):
    lengths = draw(st.lists(st.integers(40, 400), min_size=1, max_size=6, unique=True))
    rows = {length: draw(st.integers(20, 300)) for length in lengths}
    weights = {length: draw(st.sampled_from([1.0, 2.0, 0.5, 1.75, 0.1])) for length in lengths}
    packs = draw(st.integers(1, 9))
    made = planner(
        rows,
        weights=weights,
        token_budget=draw(st.integers(400, 1500)),
        packs_per_step=packs,
        packs_per_rank=draw(st.integers(1, packs)),
        balance=draw(st.sampled_from(["sum", "lockstep"])),
        composition=draw(st.sampled_from(["mixed", "alike"])),
        seed=draw(st.integers(0, 9)),
        window_steps=draw(st.integers(0, 9)),
        read_bytes=draw(st.sampled_from([0, 10_000, 1 << 20])),
    )
    return made, weights


@given(made=planners())
@settings(max_examples=25, deadline=None)
def test_every_row_comes_exactly_as_often_as_its_weight_says(made):
    plan, weights = made
    counts: Counter[int] = Counter()
    pairs: Counter[tuple[int, int]] = Counter()
    for step in range(plan.steps_per_era):
        for pack in plan.step(step):
            assert len(pack.rows) == len(pack.visits)
            assert pack.num_tokens <= plan.config.token_budget
            pairs.update(zip(pack.rows.tolist(), pack.visits.tolist()))
            counts.update(pack.rows.tolist())
    assert set(pairs.values()) == {1}, "a visit of a row came twice"
    epochs = plan.epochs_per_era
    for stream in plan.streams:
        weight = weights[stream.num_tokens]
        seen = [counts[row] for row in range(stream.start, stream.stop)]
        assert min(seen) >= int(weight) * epochs and max(seen) <= -(-weight // 1) * epochs
        if weight == int(weight):
            assert set(seen) == {int(weight) * epochs}


@given(made=planners(), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_steps_do_not_depend_on_the_ranks_that_share_them(made, sizes):
    plan, _ = made
    for step, size in enumerate(sizes):
        packs = plan.step(step)
        slots = packs.deal(min(size, len(packs)))
        dealt = sorted(n for n in slots.reshape(-1).tolist() if n != MISSING)
        assert dealt == list(range(len(packs)))


@given(made=planners(), step=st.integers(0, 500))
@settings(max_examples=25, deadline=None)
def test_a_step_found_directly_equals_the_step_reached(made, step):
    plan, _ = made
    other = Planner(plan.index, plan.config, plan.flops)
    reached = None
    for n in range(max(0, step - 3), step + 1):
        reached = plan.step(n)
    assert samples(reached) == samples(other.step(step))


def test_elastic_run_sees_the_same_samples():
    """1 -> 2 -> 4 -> 3 ranks, each stopped and taken up by a fresh planner, against one rank throughout."""
    rows = {100: 500, 250: 80, 900: 40}
    alone = planner(rows)
    step = 0
    for world_size, steps in ((1, 5), (2, 7), (4, 3), (3, 9)):
        fresh = planner(rows)
        for _ in range(steps):
            packs = fresh.step(step)
            got = [packs[int(n)] for rank in packs.deal(world_size) for n in rank if n != MISSING]
            seen = sorted(pair for pack in got for pair in zip(pack.rows.tolist(), pack.visits.tolist()))
            assert seen == sorted(pair for pack in samples(alone.step(step)) for pair in pack)
            step += 1


def test_fractions_choose_other_rows_each_epoch():
    plan = planner({100: 400}, weights={100: 0.25}, read_bytes=0)
    first = {row for step in range(int(plan.steps_per_epoch)) for pack in plan.step(step) for row in pack.rows}
    steps = range(int(plan.steps_per_epoch), int(2 * plan.steps_per_epoch))
    second = {row for step in steps for pack in plan.step(step) for row in pack.rows}
    assert 0 < len(first & second) < 60


def test_fill_is_high_and_no_window_overflows():
    plan = planner({37: 40_000, 120: 3000, 333: 2000, 810: 500}, packs_per_step=16, token_budget=1000)
    steps = [plan.step(step) for step in range(0, plan.steps_per_era, 7)]
    assert all(len(step) == 16 for step in steps)
    assert np.mean([step.num_tokens.mean() for step in steps]) > 980


def test_a_window_that_does_not_fit_gets_more_packs_and_loses_nothing():
    plan = planner({600: 64 * 8}, packs_per_step=4, fill=1.0)  # one sample of 600 a pack: 0.6 is all that fits
    rows = Counter(row for step in range(plan.steps_per_era) for pack in plan.step(step) for row in pack.rows)
    assert set(rows.values()) == {plan.epochs_per_era}
    assert max(len(plan.step(step)) for step in range(plan.steps_per_era)) > 4


def test_every_step_costs_about_the_same():
    plan = planner({37: 40_000, 120: 3000, 333: 2000, 810: 500}, packs_per_step=16)
    costs = np.array([plan.step(step).costs.sum() for step in range(64)])
    assert costs.std() / costs.mean() < 0.02


def test_steps_of_like_packs_leave_nobody_waiting():
    rows = {37: 20_000, 120: 3000, 333: 2000, 810: 2000}
    waits = {}
    for composition in ("mixed", "alike"):
        plan = planner(rows, packs_per_step=8, composition=composition)
        costs = np.array([plan.step(step).costs for step in range(64)])
        waits[composition] = (costs.max(axis=1) / costs.mean(axis=1)).mean()
    assert waits["alike"] < 1.01 < waits["mixed"]


def test_samples_longer_than_the_budget_are_refused_by_bucket():
    with pytest.raises(UserError, match=r"1x16x32000 \(2,000 tokens, 25.0% of rows\)"):
        planner({100: 75, 2000: 25})
    plan = planner({100: 75, 2000: 25}, allow_skipping=True)
    assert {row for step in range(plan.steps_per_era) for p in plan.step(step) for row in p.rows} == set(range(75))


def test_seeds_give_other_orders():
    assert samples(planner({100: 500}).step(0)) != samples(planner({100: 500}, seed=4).step(0))


def test_read_groups_stay_together():
    plan = planner({10: 5000}, token_budget=1000, packs_per_step=8, read_bytes=10 * 128 * 12)
    rows = plan.step(0)[0].rows
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    assert np.median([len(run) for run in runs]) >= 10


def test_state_restores_the_same_plan_without_a_search():
    rows = {100: 500, 250: 80}
    plan = planner(rows)
    again = Planner(plan.index, plan.config, plan.flops, steps_per_era=plan.steps_per_era)
    assert again.fingerprint == plan.fingerprint
    assert samples(again.step(17)) == samples(plan.step(17))


@pytest.mark.parametrize("wrong", [{"token_budget": 0}, {"packs_per_step": 0}, {"packs_per_rank": 5}, {"fill": 1.5}])
def test_wrong_configurations_are_refused(wrong):
    with pytest.raises(UserError, match="plan"):
        PlanConfig(**{"token_budget": 10, "packs_per_step": 4, **wrong})


def test_batches_vary_as_much_as_read_groups_say():
    """Rows that agree within their read group make a step's mean vary as if it held groups, not rows."""
    inflation = {}
    for read_bytes in (0, 12_800):  # groups of 1 and of 10 rows
        plan = planner({10: 40_000}, token_budget=1000, packs_per_step=4, read_bytes=read_bytes)
        steps = [np.concatenate([pack.rows for pack in plan.step(n)]) for n in range(90)]
        values = np.random.default_rng(0).standard_normal(4000)
        means = np.array([values[rows // 10].mean() for rows in steps])
        inflation[read_bytes] = means.var() * np.mean([len(rows) for rows in steps]) / values.var()
    assert 0.6 < inflation[0] < 1.4
    assert 6 < inflation[12_800] < 13


@pytest.mark.parametrize("balance", ["sum", "lockstep"])
@pytest.mark.parametrize(("packs", "each"), [(9, 7), (9, 4), (9, 9), (5, 2), (7, 1), (1, 1)])
def test_packs_a_rank_need_not_divide_the_step(balance, packs, each):
    plan = planner({100: 900, 250: 80}, packs_per_step=packs, packs_per_rank=each, balance=balance)
    sizes = plan._group_sizes()
    assert sizes.sum() == packs and sizes.max() <= each and sizes.max() - sizes.min() <= 1
    rows = Counter(row for step in range(plan.steps_per_era) for pack in plan.step(step) for row in pack.rows)
    assert set(rows.values()) == {plan.epochs_per_era}
    assert all(len(plan.step(step)) == packs for step in range(10))
