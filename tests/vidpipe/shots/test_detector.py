"""Merging what several detectors saw."""

from __future__ import annotations

from vidpipe.shots.detector import Transition, merged


def T(start, end=None):
    return Transition(start, start if end is None else end)


def test_order_repeats_and_edges():
    assert merged([T(41), T(7), T(41), T(0), T(100)], 100) == [T(7), T(41)]


def test_overlaps_are_united_and_neighbours_stay_apart():
    assert merged([T(10, 20), T(15, 25), T(25), T(10), T(18)], 100) == [T(10, 25)]
    assert merged([T(10), T(11), T(12, 14)], 100) == [T(10), T(11), T(12, 14)]


def test_transitions_at_the_videos_edges_are_clipped():
    assert merged([T(0, 12), T(90, 100)], 100) == [T(0, 12), T(90, 100)]
    assert merged([T(-5, 3), T(95, 120), T(130)], 100) == [T(0, 3), T(95, 100)]
