"""PySceneDetect's other detectors, driven with our frames."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.errors import UserError
from vidpipe.shots.pyscenedetect import Hash, Histogram, Threshold


@pytest.mark.parametrize("detector", [Hash, Histogram])
def test_a_cut_at_frame_41_is_cut_at_frame_41(takes, detector):
    frames = takes.shot(1, 41, speed=0) + takes.shot(2, 30, speed=0, brightness=160.0)
    assert takes.detect(detector(), frames, batch=16) == [(41, 41)]


@pytest.mark.parametrize(("bias", "cut"), [(-1.0, 30), (0.0, 35), (1.0, 40)])
def test_threshold_cuts_within_the_black(takes, bias, cut):
    black = [np.zeros((takes.height, takes.width, 3), np.uint8)] * 10
    frames = takes.shot(1, 30) + black + takes.shot(2, 30)
    assert takes.detect(Threshold(Threshold.Config(bias=bias)), frames) == [(cut, cut)]


def test_no_frames(takes):
    assert takes.detect(Hash(), []) == []


def test_bad_parameters_are_refused():
    with pytest.raises(UserError, match="bias"):
        Threshold.Config(bias=2.0)
