"""Reducing frames by integers, and sharing grey."""

from __future__ import annotations

import numpy as np
import pytest

from vidpipe.shots.frames import ShotFrames, reduce, shrink


def test_blocks_are_averaged_exactly():
    image = np.arange(6 * 9, dtype=np.uint8).reshape(6, 9)
    expected = image.reshape(2, 3, 3, 3).transpose(0, 2, 1, 3).reshape(2, 3, 9).mean(axis=2)
    np.testing.assert_array_equal(reduce(image, 3), expected)


def test_incomplete_blocks_are_left_out():
    image = np.zeros((7, 11), np.uint8)
    image[:, 10:] = image[6:] = 255
    assert reduce(image, 2).shape == (3, 5) and not reduce(image, 2).any()


@pytest.mark.parametrize(
    ("size", "expected"),
    [((256, 456), (128, 228)), ((456, 256), (228, 128)), ((128, 128), (128, 128)), ((50, 66), (50, 66))],
)
def test_short_side(size, expected):
    assert shrink(np.zeros((2, *size, 3), np.uint8), 128).shape == (2, *expected, 3)


def test_small_frames_are_not_copied():
    frames = np.zeros((2, 90, 160, 3), np.uint8)
    assert shrink(frames, 128) is frames


def test_grey_is_kept():
    frames = ShotFrames(np.full((2, 4, 4, 3), (255, 0, 0), np.uint8))
    assert frames.gray_THW is frames.gray_THW
    assert set(frames.gray_THW.ravel().tolist()) == {76}
