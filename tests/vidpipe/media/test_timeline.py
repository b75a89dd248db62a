"""Times strictly increase, by one rule."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from vidpipe.media.timeline import Timeline

MS = Fraction(1, 1000)


def times(pts: list[int | None], container: str = "matroska,webm", rate: int | None = 25) -> list[int]:
    timeline = Timeline(MS, None if rate is None else Fraction(rate), container)
    return [timeline.time(p) for p in pts]


def test_good_times_stay():
    assert times([-80, -40, 0, 33, 500]) == [-80, -40, 0, 33, 500]


def test_missing_times_go_on_at_the_nominal_interval():
    assert times([None, None, None]) == [0, 40, 80]
    assert times([100, None, 180, None]) == [100, 140, 180, 220]


def test_duplicates_and_swaps_go_one_tick_on():
    assert times([0, 40, 40, 80]) == [0, 40, 41, 80]
    assert times([0, 80, 40, 120]) == [0, 80, 81, 120]


def test_a_clock_that_was_reset_goes_on():
    assert times([90_000, 90_040, 0, 40]) == [90_000, 90_040, 90_080, 90_120]


def test_short_parts_that_were_put_one_after_another_go_on():
    assert times([0, 40, 3_000, 3_040, 0, 40, 80], "mpegts") == [0, 40, 3_000, 3_040, 3_080, 3_120, 3_160]
    assert times([2_000, 2_040, 0, 2_080]) == [2_000, 2_040, 2_041, 2_080], "no clock jumps here: one bad time"


def test_a_jump_ahead_is_kept_but_in_transport_streams():
    assert times([0, 40, 3_600_000]) == [0, 40, 3_600_000]
    assert times([0, 40, 3_600_000, 3_600_040], "mpegts") == [0, 40, 80, 120]


def test_repairs_are_counted():
    timeline = Timeline(MS, Fraction(25), "avi")
    for p in (0, 40, 40, None, 120):
        timeline.time(p)
    assert timeline.repaired == 2


@given(
    st.lists(st.none() | st.integers(-(10**7), 10**7), max_size=60),
    st.sampled_from(["mpegts", "avi"]),
    st.sampled_from([None, 1, 25]),
)
def test_times_always_strictly_increase(pts, container, rate):
    found = times(pts, container, rate)
    assert all(a < b for a, b in pairwise(found))
