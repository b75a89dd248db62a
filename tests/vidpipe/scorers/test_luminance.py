"""Luminance: known greys."""

from __future__ import annotations

import numpy as np
import pytest

from vidpipe.scorers.luminance import Luminance


def flat(level, height=256, width=400):
    return np.full((height, width, 3), level, np.uint8)


@pytest.mark.parametrize("level", [3, 64, 128, 252])
def test_mean_is_the_grey_over_255(footage, level):
    values = footage.score(Luminance(), [flat(level)] * 12)
    assert values["luminance_mean"] == pytest.approx(level / 255, abs=1e-6)
    assert values["luminance_clipped_low"] == values["luminance_clipped_high"] == 0


@pytest.mark.parametrize(("level", "column"), [(0, "low"), (2, "low"), (253, "high"), (255, "high")])
def test_share_at_either_end(footage, level, column):
    frame = flat(100)
    frame[64:192, 100:300] = level
    values = footage.score(Luminance(), [frame] * 12)
    assert values[f"luminance_clipped_{column}"] == pytest.approx(0.25)
    assert values["luminance_mean"] == pytest.approx((0.75 * 100 + 0.25 * level) / 255, abs=1e-4)


def test_colours_by_their_luma_weights(footage):
    frame = flat(0)
    frame[..., 1] = 200
    assert footage.score(Luminance(), [frame])["luminance_mean"] == pytest.approx(0.587 * 200 / 255, abs=2e-3)


def test_bars_do_not_darken(footage):
    picture = footage.scaled([footage.scene(0)], 240)[0]
    plain = footage.score(Luminance(), [picture] * 4)
    barred = footage.score(Luminance(), footage.boxed([picture], 40, 40)[:1] * 4)
    assert barred["luminance_mean"] == pytest.approx(plain["luminance_mean"], abs=0.01)
    assert barred["luminance_clipped_low"] == 0


def test_mean_over_time(footage):
    assert footage.score(Luminance(), [flat(50)] * 24 + [flat(150)] * 24)["luminance_mean"] == pytest.approx(100 / 255)
