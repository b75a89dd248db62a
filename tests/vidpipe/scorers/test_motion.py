"""Motion: a known velocity is measured at any resolution and frame rate."""

from __future__ import annotations

import numpy as np
import pytest

from vidpipe.scorers.motion import Motion


@pytest.mark.parametrize("velocity", [(0.02, 0.0), (0.0, 0.1), (0.2, 0.15)])
def test_pan_is_measured_in_diagonals_a_second(footage, velocity):
    frames = footage.pan(footage.scene(), 0.8, velocity)
    values = footage.score(Motion(), frames)
    speed = float(np.hypot(*velocity))
    assert values["motion_score"] == pytest.approx(speed, rel=0.15)
    assert values["motion_median"] == pytest.approx(speed, rel=0.1)


def test_resolution_does_not_matter(footage):
    frames = footage.pan(footage.scene(1), 0.8, (0.08, 0.03))
    scores = [footage.score(Motion(), footage.scaled(frames, h))["motion_score"] for h in (720, 480, 360, 256)]
    assert max(scores) / min(scores) < 1.05


@pytest.mark.parametrize("fps", [16.0, 24000 / 1001, 30.0, 60.0])
def test_frame_rate_does_not_matter(footage, fps):
    frames = footage.scaled(footage.pan(footage.scene(2), 1.0, (0.1, 0.0), fps), 256)
    assert footage.score(Motion(), frames, fps)["motion_score"] == pytest.approx(0.1, rel=0.15)


def test_repeated_frames_do_not_matter(footage):
    frames = footage.scaled(footage.pan(footage.scene(2), 1.0, (0.1, 0.0), 24), 256)
    telecined = [frames[i * 24 // 60] for i in range(60)]
    assert footage.score(Motion(), telecined, 60.0)["motion_score"] == pytest.approx(0.1, rel=0.15)


def test_still_is_zero_and_noise_is_little(footage):
    picture = footage.scaled([footage.scene(3)], 256)[0]
    assert footage.score(Motion(), [picture] * 24)["motion_score"] == 0
    rng = np.random.default_rng(0)
    noisy = [np.clip(picture + rng.normal(0, 3, picture.shape), 0, 255).astype(np.uint8) for _ in range(24)]
    assert footage.score(Motion(), noisy)["motion_score"] < 0.01


def test_small_object_counts_by_its_area_and_not_in_the_median(footage):
    background, thing = (footage.scaled([footage.scene(s)], 256)[0] for s in (4, 5))
    frames = []
    for i in range(24):
        frame = background.copy()
        frame[80:180, 40 + 3 * i : 140 + 3 * i] = thing[80:180, 40:140]
        frames.append(frame)
    values = footage.score(Motion(), frames)
    height, width = background.shape[:2]
    share, speed = 100 * 100 / (height * width), 3 * 24 / np.hypot(height, width)
    assert values["motion_score"] == pytest.approx(share * speed, rel=0.35)
    assert values["motion_median"] < 0.05 * speed


def test_bars_are_left_out(footage):
    frames = footage.scaled(footage.pan(footage.scene(6), 0.8, (0.1, 0.0)), 360)
    plain = footage.score(Motion(), frames)
    barred = footage.score(Motion(), footage.boxed(frames, 60, 60))
    assert barred["motion_score"] == pytest.approx(plain["motion_score"], rel=0.1)


def test_pair_over_a_cut_belongs_to_no_clip(footage):
    stills = [footage.scaled([footage.scene(s)], 256)[0] for s in (7, 8)]
    frames = [stills[0]] * 23 + [stills[1]] * 25
    clips = footage.score(Motion(), frames, spans=[(0, 22), (23, 47), (0, 47)])
    assert [c["motion_score"] for c in clips[:2]] == [0, 0]
    assert clips[2]["motion_score"] > 0.01


def test_one_frame_has_no_motion_score(footage):
    values = footage.score(Motion(), [footage.scaled([footage.scene()], 256)[0]])
    assert values == {"motion_score": None, "motion_median": None}
