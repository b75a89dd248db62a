"""Structure: cuts that colour does not show, dissolves of known extent, and what is neither."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from schemas.errors import UserError
from vidpipe.shots.colour import Adaptive
from vidpipe.shots.frames import ShotFrames
from vidpipe.shots.structure import BLOCK, MARGIN, Structure


@pytest.mark.parametrize("cut", [3, 41, BLOCK + MARGIN, BLOCK + 2 * MARGIN - 1, BLOCK + 2 * MARGIN, 2 * BLOCK + 7])
@pytest.mark.parametrize("batch", [1, 32, 1000])
def test_cut_is_exact_wherever_blocks_of_frames_end(takes, cut, batch):
    frames = takes.shot(1, cut, speed=0.2) + takes.shot(2, 60)
    assert takes.detect(Structure(), frames, batch) == [(cut, cut)]


def test_cut_between_two_bright_scenes_of_one_colour(takes):
    looks = {"brightness": 215.0, "contrast": 0.12}
    frames = takes.shot(4, 30, **looks) + takes.shot(5, 30, **looks)
    frames = [cv2.cvtColor(cv2.cvtColor(f, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB) for f in frames]
    assert takes.detect(Adaptive(), frames) == []
    assert takes.detect(Structure(), frames) == [(30, 30)]


@pytest.mark.parametrize("length", [6, 10, 16, 24, 40])
@pytest.mark.parametrize("position", [50, BLOCK, BLOCK + 20])
def test_dissolve_is_found_with_its_extent(takes, length, position):
    left, right = takes.shot(6, position + length, speed=0.1), takes.shot(7, length + 60, speed=0.1)
    frames = left[:position] + takes.blend(left[position:], right[:length]) + right[length:]
    found = takes.detect(Structure(), frames)
    assert len(found) == 1
    (start, end) = found[0]
    slack = 2 + length // 8  # a tenth of the old or new picture counts as none
    assert position - 2 <= start <= position + slack
    assert position + length - slack <= end <= position + length + 2


def test_fade_through_black(takes):
    black = [np.zeros_like(takes.shot(8, 1)[0])] * 20
    left, right = takes.shot(8, 60, speed=0), takes.shot(9, 60, speed=0)
    frames = left[:48] + takes.blend(left[48:], black[:12]) + black + takes.blend(black[:12], right[:12]) + right[12:]
    found = takes.detect(Structure(), frames)
    covered = {f for a, b in found for f in range(a, b)}
    assert {*range(51, 57), *range(83, 89)} <= covered <= {*range(46, 62), *range(78, 94)}


@pytest.mark.parametrize("speed", [0.0, 1.0, 4.0])
def test_pan_is_neither(takes, speed):
    assert takes.detect(Structure(), takes.shot(10, 50, speed=speed)) == []


def test_change_of_light_is_neither(takes):
    frames = takes.shot(11, 80, speed=0)
    lit = [np.clip(f * (0.4 + i / 60), 0, 255).astype(np.uint8) for i, f in enumerate(frames)]
    assert takes.detect(Structure(), lit) == []
    flash = [*frames[:40], np.clip(frames[40].astype(int) + 60, 0, 255).astype(np.uint8), *frames[41:]]
    assert takes.detect(Structure(), flash) == []


def test_thing_that_passes_is_neither(takes):
    frames = [f.copy() for f in takes.shot(12, 70, speed=0)]
    thing = takes.scene(13)[:80, :90]
    for i, frame in enumerate(frames):
        x = 3 * i - 60
        frame[30:110, max(0, x) : max(0, x + 90)] = thing[:, max(0, -x) : min(90, takes.width - x)]
    assert takes.detect(Structure(), frames) == []


def test_hard_cuts_are_no_dissolves(takes):
    frames = [f for seed in range(20, 40) for f in takes.shot(seed, 14)]
    found = takes.detect(Structure(), frames)
    assert all(a == b for a, b in found)
    assert [a for a, _ in found] == list(range(14, 280, 14))


def test_dissolves_can_be_switched_off(takes):
    left, right = takes.shot(6, 60, speed=0), takes.shot(7, 60, speed=0)
    frames = left[:48] + takes.blend(left[48:], right[:12]) + right[12:]
    assert takes.detect(Structure(Structure.Config(dissolve=2.0)), frames) == []


def test_memory_does_not_grow(takes):
    detector = Structure()
    for _ in range(20):
        detector.push(ShotFrames(np.stack(takes.shot(1, 100, speed=0.1))))
    assert len(detector._thumbnails) < BLOCK + 2 * MARGIN + 100


def test_short_and_empty_videos(takes):
    assert takes.detect(Structure(), []) == []
    assert takes.detect(Structure(), takes.shot(1, 1)) == []
    assert takes.detect(Structure(), takes.shot(1, 5) + takes.shot(2, 5)) == [(5, 5)]


def test_bad_parameters_are_refused():
    with pytest.raises(UserError, match="above 0"):
        Structure.Config(cut=0)
