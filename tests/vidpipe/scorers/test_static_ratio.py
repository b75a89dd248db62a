"""Static ratio: stills, noise, and small things that move."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from vidpipe.scorers.static_ratio import StaticRatio


def ratio(footage, frames, **options):
    return footage.score(StaticRatio(), frames, **options)["static_ratio"]


def test_still_is_one_and_coding_does_not_change_it(footage):
    picture = footage.scaled([footage.scene(0)], 480)[0]
    assert ratio(footage, [picture] * 24) == 1
    qualities = [75 + i % 8 for i in range(24)]
    coded = [cv2.imdecode(cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, q])[1], 1) for q in qualities]
    assert ratio(footage, coded) == 1
    rng = np.random.default_rng(0)
    grain = [np.clip(picture + rng.normal(0, 4, picture.shape), 0, 255).astype(np.uint8) for _ in range(24)]
    assert ratio(footage, grain) == 1


def test_pan_is_zero(footage):
    assert ratio(footage, footage.scaled(footage.pan(footage.scene(1), 1.0, (0.05, 0.0)), 256)) == 0


@pytest.mark.parametrize("height", [256, 480, 720])
def test_a_thing_of_a_sixteenth_of_the_height_that_moves_is_seen(footage, height):
    picture = footage.scaled([footage.scene(2)], height)[0]
    frames, size = [], height // 16
    for i in range(24):
        frame = picture.copy()
        x = height // 2 + i * size // 4
        frame[height // 2 : height // 2 + size, x : x + size] = 255
        frames.append(frame)
    assert ratio(footage, frames) == 0


def test_share_of_pairs(footage):
    picture = footage.scaled([footage.scene(3)], 256)[0]
    moving = footage.scaled(footage.pan(footage.scene(3), 1.0, (0.1, 0.0)), 256)
    moving = [cv2.resize(f, picture.shape[1::-1]) for f in moving]
    assert ratio(footage, [picture] * 24 + moving) == pytest.approx(0.5, abs=0.05)


def test_one_frame_has_no_ratio(footage):
    assert ratio(footage, footage.scaled([footage.scene()], 256)) is None
