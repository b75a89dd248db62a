"""The permutation is one, for any size and key; it looks random; its inverse undoes it."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.permutation import SMALL, Permutation, hash_key, keyed_uniform, mix64


@given(size=st.one_of(st.integers(1, 300), st.integers(SMALL - 2, SMALL + 3000)), key=st.integers(-(2**63), 2**63))
@settings(max_examples=40, deadline=None)
def test_every_index_comes_once_and_the_inverse_undoes_it(size, key):
    order = Permutation(size, key)
    there = order.forward(np.arange(size))
    assert np.array_equal(np.sort(there), np.arange(size))
    assert np.array_equal(order.inverse(there), np.arange(size))


@pytest.mark.parametrize("size", [SMALL + 1, 10**6 + 3, 10**9 + 7, 2**40 + 1])
def test_large_sizes_stay_in_range_without_repeats(size):
    index = np.random.default_rng(0).choice(size, 20_000, replace=False) if size < 1 << 32 else np.arange(20_000) * 77
    order = Permutation(size, 3)
    there = order.forward(index)
    assert there.min() >= 0 and there.max() < size
    assert len(np.unique(there)) == len(index)
    assert np.array_equal(order.inverse(there), index)


def test_neighbours_and_places_are_spread_evenly():
    size = 1 << 20
    there = Permutation(size, 11).forward(np.arange(size))
    cells = np.histogram2d(np.arange(size), there, bins=32)[0]
    expected = size / 1024
    chi2 = ((cells - expected) ** 2 / expected).sum() / 1023
    assert 0.8 < chi2 < 1.2
    assert abs(np.corrcoef(there[1:], there[:-1])[0, 1]) < 0.005
    assert (np.diff(there) == 1).sum() < 10


def test_small_sizes_reach_every_order_evenly():
    counts = collections.Counter(tuple(Permutation(4, key).forward(np.arange(4))) for key in range(2400))
    assert len(counts) == 24
    assert max(counts.values()) < 145 and min(counts.values()) > 60  # 100 expected, sd 10


def test_equal_keys_give_equal_orders_and_others_do_not():
    first = Permutation(100_000, 5).forward(np.arange(1000))
    assert np.array_equal(first, Permutation(100_000, 5).forward(np.arange(1000)))
    assert (first == Permutation(100_000, 6).forward(np.arange(1000))).mean() < 0.01


def test_known_values_hold_on_every_machine():
    assert Permutation(10**6, 42).forward(np.arange(4)).tolist() == PERMUTED
    assert Permutation(10, 42).forward(np.arange(10)).tolist() == PERMUTED_SMALL
    assert hash_key(1, 2, 3) == HASHED


def test_out_of_range_is_refused():
    with pytest.raises(IndexError):
        Permutation(10, 0).forward(np.array([10]))
    with pytest.raises(ValueError, match="size"):
        Permutation(0, 0)


def test_mixer_is_a_bijection_and_uniform():
    values = np.arange(100_000, dtype=np.uint64)
    assert len(np.unique(mix64(values))) == len(values)
    draws = keyed_uniform(7, values)
    assert draws.min() >= 0 and draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(draws, keyed_uniform(8, values))[0, 1]) < 0.02


PERMUTED = [547936, 413389, 860731, 974091]
PERMUTED_SMALL = [3, 2, 1, 0, 8, 9, 5, 4, 6, 7]
HASHED = 5246500226706903259
