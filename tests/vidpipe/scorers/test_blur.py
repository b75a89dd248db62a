"""Blur: monotonic in blur, blind to resolution, contrast and bars."""

from __future__ import annotations

from itertools import pairwise

import cv2
import numpy as np
import pytest

from vidpipe.scorers.blur import Blur, sharpness


def value(footage, picture):
    return footage.score(Blur(), [picture])["blur_score"]


def test_score_is_what_blurring_by_the_definition_gives():
    picture = cv2.GaussianBlur(np.random.default_rng(0).integers(0, 256, (90, 120), dtype=np.uint8), (0, 0), 1.5)
    for vertical in (True, False):
        image = (picture if vertical else picture.T).astype(float)
        blurred = np.stack([image[i : len(image) - 10 + i] for i in range(11)]).mean(axis=0)
        before, after = np.abs(np.diff(image, axis=0))[5:-5], np.abs(np.diff(blurred, axis=0))
        expected = np.maximum(0, np.maximum(0, before - 1) - after).sum() / before.sum()
        assert sharpness(picture, vertical=vertical) == pytest.approx(expected, abs=1e-12)


def test_more_blur_is_a_lower_score_in_zero_to_one(footage):
    picture = footage.scene(0)
    scores = [value(footage, picture)] + [
        value(footage, cv2.GaussianBlur(picture, (0, 0), 720 * s)) for s in (0.004, 0.008, 0.016, 0.032)
    ]
    assert all(a > b for a, b in pairwise(scores))
    assert 0 <= scores[-1] < 0.02 < 0.5 < scores[0] <= 1


@pytest.mark.parametrize("sigma", [0.0, 0.004, 0.016])
def test_resolution_does_not_matter(footage, sigma):
    picture = footage.scene(1, 1440, 2560)
    if sigma:
        picture = cv2.GaussianBlur(picture, (0, 0), 1440 * sigma)
    scores = [value(footage, footage.scaled([picture], h)[0]) for h in (1440, 1080, 720, 480, 360)]
    assert max(scores) - min(scores) < 0.05


def test_blur_along_one_axis_is_seen(footage):
    picture = footage.scene(2)
    assert value(footage, cv2.blur(picture, (60, 1))) < 0.6 * value(footage, picture)
    assert value(footage, cv2.blur(picture, (1, 60))) < 0.6 * value(footage, picture)


def test_contrast_matters_little(footage):
    picture = footage.scene(3)
    dim = (picture * 0.6 + 40).astype(np.uint8)
    assert 0.8 < value(footage, dim) / value(footage, picture) < 1


def test_bars_do_not_sharpen_a_blurred_picture(footage):
    picture = cv2.GaussianBlur(footage.scaled([footage.scene(4)], 360)[0], (0, 0), 8)
    assert value(footage, footage.boxed([picture], 60, 60)[0]) == pytest.approx(value(footage, picture), abs=0.05)


def test_flat_and_tiny_pictures_have_no_score(footage):
    assert value(footage, np.full((256, 400, 3), 90, np.uint8)) is None
    assert value(footage, np.zeros((2, 2, 3), np.uint8)) is None
