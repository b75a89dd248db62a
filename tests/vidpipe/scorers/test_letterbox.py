"""Letterbox: known boxes at known sizes, and what must not be taken for bars."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from vidpipe.scorers.letterbox import Letterbox, least_margin

NONE = {"crop_x": None, "crop_y": None, "crop_width": None, "crop_height": None}


def check_inside(found, x, y, width, height, slack):
    """The crop is inside the picture, and cuts off at most `slack` pixels on a side with a bar, none on others."""
    left, top = found["crop_x"] - x, found["crop_y"] - y
    right = x + width - found["crop_x"] - found["crop_width"]
    bottom = y + height - found["crop_y"] - found["crop_height"]
    for cut, bar in ((left, x), (top, y), (right, None), (bottom, None)):
        assert 0 <= cut <= (0 if bar == 0 else slack)


@pytest.mark.parametrize(("height", "width"), [(1080, 1920), (720, 1280), (480, 854), (256, 455)])
@pytest.mark.parametrize("bars", [(0.12, 0.12, 0, 0), (0, 0, 0.125, 0.125), (0.1, 0.1, 0.1, 0.1), (0.2, 0.05, 0, 0.03)])
def test_box_is_found_to_a_pixel_or_two(footage, height, width, bars):
    top, bottom, left, right = (round(b * n) for b, n in zip(bars, (height, height, width, width)))
    inner = (width - left - right, height - top - bottom)
    frames = [cv2.resize(footage.scene(s), inner, interpolation=cv2.INTER_AREA) for s in range(2)]
    frames = [f for f in footage.boxed(frames, top, bottom, left, right) for _ in range(12)]
    found = footage.score(Letterbox(), frames)
    check_inside(found, left, top, *inner, slack=max(1, 1080 // 256 * height / 1080) + 1)


def test_no_bars(footage):
    assert footage.score(Letterbox(), footage.scaled([footage.scene(0)], 360) * 12) == NONE


def test_dark_frames_among_bright_ones_do_not_widen_the_bars(footage):
    bright = footage.scaled([footage.scene(1)], 270)[0]
    dark = bright // 12
    dark[:60] = 0
    frames = footage.boxed([dark] * 36 + [bright] * 24 + [dark] * 36, 45, 45)
    found = footage.score(Letterbox(), frames)
    check_inside(found, 0, 45, bright.shape[1], 270, slack=2)


def test_a_clip_too_dark_to_tell_takes_what_the_video_says(footage):
    bright = footage.scaled([footage.scene(2)], 270)[0]
    black = np.zeros_like(bright)
    frames = footage.boxed([black] * 24 + [bright] * 24, 45, 45)
    dark_clip, bright_clip = footage.score(Letterbox(), frames, spans=[(0, 23), (24, 47)])
    assert dark_clip == bright_clip != NONE


def test_titles_over_the_bars_stay_out(footage):
    picture = footage.scaled([footage.scene(3)], 720)[0]
    frame = footage.boxed([picture], 140, 140)[0]
    cv2.putText(frame, "I never said she stole", (260, 970), cv2.FONT_HERSHEY_SIMPLEX, 2, (255, 255, 255), 6)
    plain = footage.boxed([picture], 140, 140)[0]
    for frames in ([frame] * 48, [plain] * 24 + [frame] * 24):
        check_inside(footage.score(Letterbox(), frames), 0, 140, picture.shape[1], 720, slack=5)


def test_night_sky_over_a_skyline_is_no_bar(footage):
    picture = footage.scaled([footage.scene(4)], 480)[0].copy()
    rng = np.random.default_rng(0)
    for x in range(0, picture.shape[1], 20):
        picture[: rng.integers(60, 240), x : x + 20] = 0
    assert footage.score(Letterbox(), [picture] * 24) == NONE


def test_vignette_is_no_bar(footage):
    picture = footage.scaled([footage.scene(5)], 480)[0]
    height, width = picture.shape[:2]
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    picture = (picture * np.clip(1.3 - (x**2 + y**2), 0, 1)[..., None]).astype(np.uint8)
    assert footage.score(Letterbox(), [picture] * 24) == NONE


def test_black_video_has_no_bars(footage):
    assert footage.score(Letterbox(), [np.zeros((256, 455, 3), np.uint8)] * 24) == NONE


def test_coded_black_with_noise_is_still_a_bar(footage):
    picture = footage.scaled([footage.scene(6)], 270)[0]
    rng = np.random.default_rng(0)
    frames = [
        np.clip(f.astype(int) + rng.integers(-3, 4, f.shape) + 16 * (f == 0), 0, 255).astype(np.uint8)
        for f in footage.boxed([picture] * 24, 45, 45)
    ]
    check_inside(footage.score(Letterbox(), frames), 0, 45, picture.shape[1], 270, slack=2)


def test_each_clip_takes_its_own_box(footage):
    wide = footage.boxed(footage.scaled([footage.scene(7)], 270), 45, 45)[0]
    full = cv2.resize(footage.scene(8), wide.shape[1::-1], interpolation=cv2.INTER_AREA)
    boxes = footage.score(Letterbox(), [wide] * 24 + [full] * 24, spans=[(0, 23), (24, 47)])
    assert boxes[0]["crop_height"] in (268, 269, 270) and boxes[1] == NONE


def test_least_margin_with_a_tenth_of_the_votes():
    nan = float("nan")
    assert least_margin(np.array([nan, 12.0, 12.4, 11.8, *[30.0] * 20])) == pytest.approx(12.0)
    assert least_margin(np.array([nan, 12.0, *[30.0] * 20])) == 30.0
    assert np.isnan(least_margin(np.array([nan, nan])))
