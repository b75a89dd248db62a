"""One rule for sampling in time: known values, and properties over random spans."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import UserError
from vidpipe.media.errors import MediaError
from vidpipe.media.reference import ClipReference
from vidpipe.media.sampling import clip_num_sampled, num_sampled, sample_pts


def clip(start: int, end: int, time_base: Fraction = Fraction(1, 1000)) -> ClipReference:
    return ClipReference(uri="a.mp4", stream_index=0, start_pts=start, end_pts=end, time_base=time_base)


@pytest.mark.parametrize(
    ("duration", "fps", "count"),
    [
        (Fraction(1), Fraction(16), 16),
        (Fraction(81, 16), Fraction(16), 81),
        (Fraction(1001, 200), Fraction(24), 121),
        (Fraction(1, 100), Fraction(16), 1),
        (Fraction(2), Fraction(30000, 1001), 60),
    ],
)
def test_count_follows_from_duration_and_rate(duration, fps, count):
    assert num_sampled(duration, fps) == count


def test_variable_rate_shows_what_is_on_screen():
    pts = [100, 140, 300, 310, 500]
    assert sample_pts(pts, None, clip(100, 600), Fraction(10)).tolist() == [100, 140, 300, 310, 500]
    assert sample_pts(pts, None, clip(100, 600), Fraction(20)).tolist() == [
        100, 140, 140, 140, 300, 310, 310, 310, 500, 500,
    ]  # fmt: skip


def test_instants_are_exact_fractions_without_drift():
    """At 30000/1001 in a 1/90000 time base each output is its own frame, for an hour."""
    pts = [3003 * k for k in range(108_000)]
    chosen = sample_pts(pts, None, clip(0, 3003 * 108_000, Fraction(1, 90_000)), Fraction(30_000, 1001))
    assert chosen.tolist() == pts


def test_every_frame_once_without_a_rate():
    assert sample_pts([1, 5, 6, 20], None, clip(5, 20), None).tolist() == [5, 6]


def test_frames_outside_the_span_are_never_taken():
    assert sample_pts([0, 90, 200, 300], None, clip(100, 250), Fraction(20)).tolist() == [200, 200, 200]


def test_trailing_frames_are_dropped_and_too_few_refused():
    span = clip(0, 1000)
    pts = list(range(0, 1000, 40))
    assert sample_pts(pts, None, span, Fraction(25), 9).tolist() == pts[:9]
    with pytest.raises(MediaError, match="26 frames at 25 fps asked for, 25 in the span"):
        sample_pts(pts, None, span, Fraction(25), 26)
    with pytest.raises(MediaError, match="26 frames at its own rate asked for"):
        sample_pts(pts, None, span, None, 26)


def test_a_span_without_frames_says_where():
    with pytest.raises(MediaError, match=r"a\.mp4, 1\.000-2\.000 s") as caught:
        sample_pts([0, 500], None, clip(1000, 2000), Fraction(8))
    assert caught.value.reason == "no_frames"


def test_rate_must_be_positive():
    with pytest.raises(UserError):
        num_sampled(Fraction(1), Fraction(0))


@given(
    gaps=st.lists(st.integers(1, 400), min_size=1, max_size=60),
    first=st.integers(-5000, 5000),
    window=st.tuples(st.integers(-50, 3000), st.integers(1, 4000)),
    rate=st.fractions(min_value=Fraction(1, 3), max_value=Fraction(120), max_denominator=1001),
)
def test_rule_holds_on_any_span(gaps, first, window, rate):
    pts = first + np.cumsum([0, *gaps])
    span = clip(first + window[0], first + window[0] + window[1])
    inside = [p for p in pts.tolist() if span.start_pts <= p < span.end_pts]
    if not inside:
        with pytest.raises(MediaError):
            sample_pts(pts, None, span, rate)
        return
    chosen = sample_pts(pts, None, span, rate).tolist()
    assert len(chosen) == clip_num_sampled(span, rate) == math.ceil(Fraction(window[1], 1000) * rate)
    assert chosen == sorted(chosen) and set(chosen) <= set(inside)
    for k, got in enumerate(chosen):
        instant = span.start_pts + Fraction(k * 1000) / rate
        assert got == max((p for p in inside if p <= instant), default=inside[0])
