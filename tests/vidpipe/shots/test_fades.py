"""Blank runs: black, flat, short, flickering."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.errors import UserError
from vidpipe.shots.fades import Fades


def flat(takes, level, count):
    return [np.full((takes.height, takes.width, 3), level, np.uint8)] * count


@pytest.mark.parametrize("level", [0, 3, 120, 255])
def test_run_of_blank_frames_is_cut_off_at_both_ends(takes, level):
    frames = takes.shot(1, 20) + flat(takes, level, 10) + takes.shot(2, 20)
    assert takes.detect(Fades(), frames) == [(20, 20), (30, 30)]


def test_run_at_either_end_of_the_video(takes):
    frames = flat(takes, 0, 5) + takes.shot(1, 20) + flat(takes, 0, 5)
    assert takes.detect(Fades(), frames, batch=4) == [(5, 5), (25, 25)]


def test_one_blank_frame_is_left_alone(takes):
    assert takes.detect(Fades(), takes.shot(1, 20) + flat(takes, 0, 1) + takes.shot(1, 20)) == []
    frames = takes.shot(1, 20) + flat(takes, 0, 1) + takes.shot(1, 20)
    assert takes.detect(Fades(Fades.Config(min_frames=1)), frames) == [(20, 20), (21, 21)]


def test_flicker_about_the_threshold_is_one_run(takes):
    frames = takes.shot(1, 20) + [f for _ in range(5) for f in (*flat(takes, 3, 1), *flat(takes, 5, 1))]
    assert takes.detect(Fades(), frames + takes.shot(2, 20)) == [(20, 20), (30, 30)]


def test_small_title_on_black_is_black(takes):
    title = flat(takes, 0, 1)[0].copy()
    title[60:63, 90:120] = 255
    assert takes.detect(Fades(), takes.shot(1, 20) + [title] * 20) == [(20, 20)]


def test_dark_scene_is_not_blank(takes):
    dark = [f // 8 for f in takes.shot(3, 40)]
    assert takes.detect(Fades(), dark) == []


def test_bad_parameters_are_refused():
    with pytest.raises(UserError, match="min_frames"):
        Fades.Config(min_frames=0)
