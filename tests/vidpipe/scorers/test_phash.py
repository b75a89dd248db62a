"""Perceptual hash: near under scaling, coding and brightness, far for other pictures, at the right frames."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from vidpipe.scorers.phash import COLUMN_NAMES, PerceptualHash, hash_bits


def hashes(footage, frames, **options):
    found = footage.score(PerceptualHash(), frames, **options)
    return [found[name] for name in COLUMN_NAMES]


def distance(a, b):
    return (a ^ b).bit_count()


def test_scale_coding_and_brightness_change_few_bits(footage):
    picture = footage.scene(0)
    original = hashes(footage, [picture])[0]
    coded = cv2.imdecode(cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 20])[1], 1)
    changed = [coded, (picture * 0.6 + 30).astype(np.uint8), footage.boxed([picture], 93, 93)[0]]
    changed += [footage.scaled([picture], h)[0] for h in (480, 360, 240)]
    assert max(distance(original, hashes(footage, [c])[0]) for c in changed) <= 4


def test_other_pictures_differ_in_many_bits(footage):
    found = [hashes(footage, footage.scaled([footage.scene(s)], 256))[0] for s in range(12)]
    assert min(distance(a, b) for i, a in enumerate(found) for b in found[:i]) >= 14


def test_bits_are_signs_of_coefficients():
    u, v = 3, 5
    y, x = np.mgrid[:32, :32]
    wave = np.cos((2 * x + 1) * u * np.pi / 64) * np.cos((2 * y + 1) * v * np.pi / 64)
    tilt = 1e-2 * (np.cos((2 * x + 1) * 2 * np.pi / 64))
    assert hash_bits((128 + 50 * wave).astype(np.float32)) & (1 << (8 * v + u))
    assert not hash_bits((128 - 50 * wave + tilt).astype(np.float32)) & (1 << (8 * v + u))
    assert hash_bits((128 - 50 * wave + tilt).astype(np.float32)) & (1 << 2)
    assert not hash_bits((128 + 50 * wave).astype(np.float32)) & 1


def test_frames_at_one_three_and_five_sixths(footage):
    stills = [footage.scaled([footage.scene(s)], 256)[0] for s in range(6)]
    frames = [s for s in stills for _ in range(24)]
    found = footage.score(PerceptualHash(), frames, spans=[(12, len(frames) - 1)])[0]  # aims: 34, 78 and 122 of 144
    assert [found[n] for n in COLUMN_NAMES] == [hashes(footage, [stills[i]])[0] for i in (1, 3, 5)]


def test_flat_frames_are_passed_over(footage):
    picture = footage.scaled([footage.scene(1)], 256)[0]
    black = np.zeros_like(picture)
    assert hashes(footage, [black] * 24) == [None] * 3
    assert hashes(footage, [black] * 30 + [picture] * 4) == [hashes(footage, [picture])[0]] * 3


@pytest.mark.parametrize("size", [(256, 144), (144, 256), (66, 50)])
def test_any_size(footage, size):
    picture = cv2.resize(footage.scene(2), size, interpolation=cv2.INTER_AREA)
    assert all(h is not None for h in hashes(footage, [picture]))
