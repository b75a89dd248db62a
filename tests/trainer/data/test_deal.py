"""Every pack is dealt once; sums agree; slots hold like costs; too many ranks are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import UserError
from trainer.data.deal import MISSING, deal


@given(
    costs=st.lists(st.integers(0, 10**9), min_size=1, max_size=60),
    ranks=st.integers(1, 20),
    balance=st.sampled_from(["sum", "lockstep"]),
)
@settings(max_examples=150, deadline=None)
def test_every_pack_goes_to_one_rank_and_slots_are_even(costs, ranks, balance):
    ranks = min(ranks, len(costs))
    slots = deal(np.array(costs), ranks, balance)
    assert slots.shape == (ranks, -(-len(costs) // ranks))
    dealt = slots[slots != MISSING]
    assert sorted(dealt.tolist()) == list(range(len(costs)))
    assert (slots == MISSING).sum() == slots.size - len(costs)
    assert ((slots != MISSING).sum(axis=1) >= 1).all()


def test_known_deal_levels_the_sums():
    slots = deal(np.array([8, 7, 6, 5, 4, 3, 2, 1]), 2)
    assert np.array([8, 7, 6, 5, 4, 3, 2, 1])[slots].sum(axis=1).tolist() == [18, 18]


def test_lockstep_slots_have_the_least_sum_of_maxima():
    costs = np.random.default_rng(0).integers(1, 1000, 64)
    slots = deal(costs, 8, "lockstep")
    assert costs[slots].max(axis=0).sum() == np.sort(costs)[::-1].reshape(8, 8)[:, 0].sum()


def test_random_packs_level_to_half_a_percent():
    costs = np.random.default_rng(1).integers(500, 1500, 8 * 64)
    sums = costs[deal(costs, 64)].sum(axis=1)
    assert sums.max() / sums.mean() < 1.005


def test_missing_packs_sit_with_the_heaviest_ranks():
    slots = deal(np.array([10, 10, 10, 1, 1]), 2)
    assert (slots == MISSING).sum() == 1
    padded = np.array([10, 10, 10, 1, 1, 0])
    assert sorted(padded[slots].sum(axis=1).tolist()) == [12, 20]


def test_more_ranks_than_packs_are_refused():
    with pytest.raises(UserError, match="5 ranks share 4 packs"):
        deal(np.ones(4, np.int64), 5)
