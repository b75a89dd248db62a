"""From cuts to clips: known windows, and what holds for any shots."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import UserError
from vidpipe.shots.detector import Transition, merged
from vidpipe.shots.windows import TOLERANCE_SECONDS, WindowRule, cut_windows


def windows(starts, ends, transitions=(), **rule):
    found = cut_windows(np.asarray(starts, float), np.asarray(ends, float), list(transitions), WindowRule(**rule))
    return [(w.shot_index, w.window_index, w.first, w.last) for w in found]


def even(num_frames, fps=25.0):
    times = np.arange(num_frames + 1) / fps
    return times[:-1], times[1:]


def test_trims_at_cuts_and_not_at_the_ends_of_the_video():
    found = windows(*even(150), [Transition(50, 50), Transition(100, 100)], trim_frames=3)
    assert found == [(0, 0, 0, 46), (1, 0, 53, 96), (2, 0, 103, 149)]


def test_frames_of_a_dissolve_belong_to_no_shot():
    assert windows(*even(150), [Transition(60, 75)], trim_frames=0) == [(0, 0, 0, 59), (1, 0, 75, 149)]
    assert windows(*even(150), [Transition(60, 75)], trim_frames=2) == [(0, 0, 0, 57), (1, 0, 77, 149)]


def test_short_shots_give_no_clip_and_keep_their_number():
    cuts = [Transition(c, c) for c in (50, 60)]
    assert windows(*even(150), cuts, trim_frames=0, min_seconds=1.0) == [(0, 0, 0, 49), (2, 0, 60, 149)]


def test_exactly_the_minimum_is_enough():
    assert windows(*even(25), min_seconds=1.0) == [(0, 0, 0, 24)]
    assert windows(*even(24), min_seconds=1.0) == []
    assert windows(*even(30, 30000 / 1001), min_seconds=1.001) == [(0, 0, 0, 29)]


def test_equal_windows():
    assert windows(*even(625), max_seconds=10) == [(0, 0, 0, 207), (0, 1, 208, 416), (0, 2, 417, 624)]
    assert windows(*even(500), max_seconds=10) == [(0, 0, 0, 249), (0, 1, 250, 499)]


def test_fixed_windows_and_their_remainder():
    assert windows(*even(625), max_seconds=10, window="fixed") == [
        (0, 0, 0, 249),
        (0, 1, 250, 499),
        (0, 2, 500, 624),
    ]
    assert windows(*even(520), max_seconds=10, min_seconds=1, window="fixed") == [(0, 0, 0, 249), (0, 1, 250, 499)]


def test_equal_windows_that_would_be_too_short_become_fixed():
    assert windows(*even(275), min_seconds=6, max_seconds=10) == [(0, 0, 0, 249)]


def test_whole_frames_that_do_not_fit_make_one_window_more():
    starts, ends = even(600, 30000 / 1001)
    found = windows(starts, ends, max_seconds=10.005)
    assert len(found) == 3
    assert max(ends[b] - starts[a] for _, _, a, b in found) <= 10.005


def test_a_frame_longer_than_the_maximum_is_a_window_of_its_own():
    starts, ends = [0, 1, 31, 32], [1, 31, 32, 33]
    assert windows(starts, ends, max_seconds=10, min_seconds=0.5, window="fixed") == [
        (0, 0, 0, 0),
        (0, 1, 1, 1),
        (0, 2, 2, 3),
    ]


@pytest.mark.parametrize(
    "rule", [{"min_seconds": 3, "max_seconds": 2}, {"max_seconds": 0, "min_seconds": 0}, {"trim_frames": -1}]
)
def test_bad_rules_are_refused(rule):
    with pytest.raises(UserError):
        WindowRule(**rule)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.sampled_from([0.01, 0.02, 1 / 30, 0.04, 0.1, 0.5, 3.0]), min_size=1, max_size=200),
    cuts=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 20)), max_size=6),
    low=st.sampled_from([0.0, 0.1, 1.0, 2.0]),
    length=st.sampled_from([0.0, 0.5, 3.0]),
    trim=st.integers(0, 3),
    window=st.sampled_from(["equal", "fixed"]),
)
def test_any_shots(steps, cuts, low, length, trim, window):
    edges = np.concatenate(([0.0], np.cumsum(steps)))
    starts, ends, count = edges[:-1], edges[1:], len(steps)
    rule = WindowRule(min_seconds=low, max_seconds=low + length + 0.2, trim_frames=trim, window=window)
    transitions = merged([Transition(a, a + n) for a, n in cuts], count)
    found = list(cut_windows(starts, ends, transitions, rule))
    begins, stops = [0, *(t.end for t in transitions)], [*(t.start for t in transitions), count]
    used: set[int] = set()
    for w in found:
        low_edge, high_edge = begins[w.shot_index], stops[w.shot_index]
        assert low_edge + (trim if w.shot_index else 0) <= w.first <= w.last
        assert w.last <= high_edge - 1 - (trim if high_edge < count else 0)
        seconds = ends[w.last] - starts[w.first]
        assert seconds >= rule.min_seconds - TOLERANCE_SECONDS
        assert seconds <= rule.max_seconds + TOLERANCE_SECONDS or w.first == w.last
        frames = set(range(w.first, w.last + 1))
        assert not frames & used
        used |= frames
