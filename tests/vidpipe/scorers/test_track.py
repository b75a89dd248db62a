"""Which frames are sampled, crops, and the picture area that samples leave bars out of."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.errors import UserError
from vidpipe.scorers.bars import FULL
from vidpipe.scorers.base import Features, Scorer, ScorerConfig, Span
from vidpipe.scorers.track import Due, Grid, Track


def sampled(rate, times):
    grid = Grid(rate)
    return [i for i, t in enumerate(times) if grid.due(t)]


def test_first_frame_at_or_after_each_step():
    assert sampled(8.0, [i / 24 for i in range(24)]) == list(range(0, 24, 3))
    assert sampled(8.0, [i / 30 for i in range(30)]) == [0, 4, 8, 12, 15, 19, 23, 27]
    assert sampled(2.0, [5 + i * 1001 / 30000 for i in range(60)]) == [0, 15, 30, 45]


def test_slow_and_uneven_streams_lose_no_frame_and_repeat_none():
    assert sampled(8.0, [0.0, 1.0, 2.0, 2.5]) == [0, 1, 2, 3]
    assert sampled(2.0, [0.0, 0.01, 0.02, 3.0, 3.01, 3.49, 3.51]) == [0, 3, 6]


class Brightness(Scorer):
    name = "brightness"
    version = 1
    columns = ()

    def measure(self, sample):
        return (float(sample.picture(sample.gray_HW).mean()),)


class Counted(Brightness):
    pairs = True

    def measure_pair(self, previous, sample):
        return (float(sample.index - previous.index),)


def frames(count, height=128, width=200):
    return [np.full((height, width, 3), 10 * i + 10, np.uint8) for i in range(count)]


class Small(Scorer):
    name = "small"
    version = 1
    small = True
    columns = ()

    def measure(self, sample):
        return (float(sample.small_HW.mean()),)


def test_what_is_due_says_how_large_a_picture_is_needed():
    track = Track([Small(ScorerConfig(samples_per_second=8.0)), Brightness(ScorerConfig(samples_per_second=4.0))])
    due = [track.due(k / 8) for k in range(8)]
    assert [d.full for d in due] == [True, False] * 4
    assert [d.bars for d in due] == [True, False, False, False] * 2
    assert all(d.full for d in (Track([Small(ScorerConfig())], crop=(0, 1, 0, 1)).due(0.0),))


def test_small_scorers_take_the_decoder_s_grey_and_others_may_not():
    track = Track([scorer := Small(ScorerConfig(samples_per_second=8.0))])
    frame = frames(1)[0]
    track.measure(0, 0.0, track.due(0.0), frame, np.full((64, 100), 77, np.uint8))
    track.measure(1, 0.125, track.due(0.125), None, np.full((64, 100), 78, np.uint8))
    assert scorer.features.values.ravel().tolist() == [77, 78] and track.analysed_hw == (128, 200)
    wrong = Track([Brightness(ScorerConfig(samples_per_second=8.0))])
    with pytest.raises(AssertionError, match="must not be marked small"):
        wrong.measure(0, 0.0, Due(frozenset([8.0]), False, False), None, np.zeros((64, 100), np.uint8))


def test_grey_is_computed_once_for_all_scorers(monkeypatch):
    calls = []
    import vidpipe.scorers.sample as module

    real = module.cv2.cvtColor
    monkeypatch.setattr(module.cv2, "cvtColor", lambda *a, **k: calls.append(1) or real(*a, **k))
    track = Track([Brightness(ScorerConfig(samples_per_second=24.0)) for _ in range(5)])
    for i, frame in enumerate(frames(10)):
        track.push(i, i / 24, frame)
    assert len(calls) == 10


def test_frames_are_not_copied():
    seen = []

    class Keep(Brightness):
        def measure(self, sample):
            seen.append(sample.rgb_HWC)

    frame = frames(1)[0]
    Track([Keep()]).push(0, 0.0, frame)
    assert seen[0] is frame


def test_crop_is_what_scorers_see():
    frame = np.zeros((100, 200, 3), np.uint8)
    frame[20:60, 50:150] = 200
    scorer = Brightness()
    track = Track([scorer], crop=(0.2, 0.6, 0.25, 0.75))
    track.push(0, 0.0, frame)
    assert track.analysed_hw == (40, 100)
    assert scorer.features.values.tolist() == [[200.0]]


def test_forced_frames_are_sampled_by_all():
    scorer = Brightness()
    track = Track([scorer])
    for i, frame in enumerate(frames(6)):
        track.push(i, i / 24, frame, forced=i == 4)
    assert scorer.features.values.ravel().tolist() == [10.0, 50.0]


def span(first, last):
    return Span(
        first=first,
        last=last,
        start_seconds=0,
        end_seconds=1,
        width=200,
        height=128,
        analysed_width=200,
        analysed_height=128,
    )


def test_rows_of_a_span_depend_on_its_frames_alone():
    scorer = Counted(ScorerConfig(samples_per_second=12.0))
    track = Track([scorer])
    for i, frame in enumerate(frames(12)):
        track.push(i, i / 24, frame)  # samples 0, 2, ..., 10
    assert len(scorer.features.within(span(3, 9))[1]) == 2  # pairs (4, 6) and (6, 8)
    assert len(scorer.features.within(span(4, 8))[1]) == 2
    assert len(scorer.features.within(span(5, 7))[1]) == 0
    assert len(scorer.features.within(span(0, 11))[1]) == 5


def test_features_keep_all_64_bits_and_grow_after_reading():
    features = Features(1, "Q")
    features.append(0, 0, 0.0, (2**64 - 1,))
    assert features.values.tolist() == [[2**64 - 1]]
    features.append(1, 1, 0.5, (7,))
    assert features.values.tolist() == [[2**64 - 1], [7]]


def test_box_holds_until_a_frame_shows_another():
    rng = np.random.default_rng(0)
    picture = rng.integers(60, 200, (128, 200, 3), dtype=np.uint8)
    boxed = picture.copy()
    boxed[:16] = boxed[-16:] = 0
    boxes = []

    class Boxes(Brightness):
        def measure(self, sample):
            boxes.append(sample.box)

    track = Track([Boxes()])
    for i, frame in enumerate([picture, boxed, np.zeros_like(boxed), picture]):
        track.push(i, i * 0.5, frame)
    assert boxes[0] == boxes[3] == FULL
    assert boxes[1] == boxes[2] != FULL
    top, bottom, left, right = boxes[1].pixels(128, 200)
    assert 16 <= top <= 17 and 111 <= bottom <= 112 and (left, right) == (0, 200)  # inwards, by a pixel at most


@pytest.mark.parametrize("rate", [0.0, -1.0, 1000.0])
def test_bad_rates_are_refused(rate):
    with pytest.raises(UserError, match="samples_per_second"):
        ScorerConfig(samples_per_second=rate)
