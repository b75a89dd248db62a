"""Clips of known size and length against buckets: which one, how much is lost, and why none."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.buckets import Bucket
from vidpipe.bucketing import (
    Assigner,
    Fit,
    Limits,
    Misfit,
    best_fit,
    centre_crop,
    fit,
    num_frames_at,
    picture_box,
    resolution_groups,
)

FPS = Fraction(16)


def clip(width: int = 1920, height: int = 1080, seconds: float = 5.0, **more: Any) -> dict[str, Any]:
    row = {
        "clip_id": b"\x01" * 16, "uris": ["/data/cats.mp4"], "width": width, "height": height,
        "start_pts": 9000, "end_pts": 9000 + round(seconds * 90000), "time_base_num": 1, "time_base_den": 90000,
        "start_seconds": 0.1, "end_seconds": 0.1 + seconds, "num_frames": round(seconds * 30), "user_crop": None,
    }  # fmt: skip
    return row | more


def test_a_fit_says_what_is_lost():
    found = fit(clip(), Bucket(49, 480, 832), FPS, Limits())
    assert isinstance(found, Fit)
    assert found.crop_xywh == (24, 0, 1872, 1080)  # 1080 * 832 / 480 = 1872
    assert found.scale == pytest.approx(480 / 1080)
    assert found.cropped_fraction == pytest.approx(1 - 1872 / 1920)
    assert (found.num_frames, found.frames_dropped) == (80, 31)
    assert found.kept == pytest.approx(1872 / 1920 * 49 / 80 * 480 / 1080)


def test_the_crop_lies_in_the_letterbox_inside_the_users_crop():
    row = clip(
        user_crop=[100, 50, 1000, 900], width=1000, height=900, crop_x=0, crop_y=150, crop_width=1000, crop_height=600
    )
    assert picture_box(row) == (100, 200, 1000, 600)
    assert picture_box(row, letterbox=False) == (100, 50, 1000, 900)
    found = fit(row, Bucket(17, 64, 64), FPS, Limits())
    assert isinstance(found, Fit) and found.crop_xywh == (300, 200, 600, 600)


@pytest.mark.parametrize(
    ("row", "bucket", "limits", "reason", "says"),
    [
        (clip(seconds=3), Bucket(49, 480, 832), Limits(), "too_short", "needs 49 frames at 16 fps, not 48"),
        (clip(640, 360), Bucket(17, 480, 832), Limits(), "too_small", "up 1.33 times, over the limit of 1"),
        (clip(1080, 1920), Bucket(17, 480, 832), Limits(max_cropped=0.5), "too_much_cropped", "68% of 1080x1920"),
        (clip(seconds=20), Bucket(17, 480, 832), Limits(max_dropped=0.5), "too_long", "drop 303 of its 320 frames"),
        (clip(), Bucket(1, 480, 832), Limits(), "too_short", "for images"),
    ],
)
def test_why_a_clip_does_not_fit(row, bucket, limits, reason, says):
    found = fit(row, bucket, FPS, limits)
    assert isinstance(found, Misfit) and found.reason == reason
    assert says in found.message and found.message.startswith("clip 01010101 (cats.mp4, 0.1-")


def test_limits_are_inclusive():
    assert isinstance(fit(clip(416, 240), Bucket(17, 480, 832), FPS, Limits(max_upscale=2.0)), Fit)
    assert isinstance(fit(clip(seconds=34 / 16), Bucket(17, 480, 832), FPS, Limits(max_dropped=0.5)), Fit)


def test_the_bucket_that_keeps_most_wins():
    wide, tall, square = Bucket(33, 480, 832), Bucket(33, 832, 480), Bucket(33, 624, 624)
    longer = Bucket(81, 480, 832)
    buckets = [wide, tall, square, longer]

    def best(row: dict[str, Any]) -> Bucket:
        found = best_fit(row, buckets, FPS, Limits())
        assert isinstance(found, Fit)
        return found.bucket

    assert best(clip(1920, 1080)) == wide  # 80 frames at 16 fps: one too few for 81
    assert best(clip(1080, 1920)) == tall
    assert best(clip(1080, 1080)) == square
    assert best(clip(1920, 1080, seconds=5.1)) == longer


def test_a_clip_goes_to_the_bucket_of_its_own_size():
    small, large = Bucket(17, 240, 416), Bucket(17, 480, 832)
    row = clip(832, 480)
    assert best_fit(row, [small, large], FPS, Limits()).bucket == large  # type: ignore[union-attr]
    row = clip(416, 240)
    assert best_fit(row, [small, large], FPS, Limits(max_upscale=4)).bucket == small  # type: ignore[union-attr]


def test_no_bucket_names_the_nearest_miss():
    found = best_fit(clip(320, 180, seconds=2), [Bucket(81, 96, 160), Bucket(17, 480, 832)], FPS, Limits())
    assert isinstance(found, Misfit) and found.reason == "too_small"


def test_images_have_one_frame_at_any_rate():
    image = clip(num_frames=1, seconds=0.04)
    assert num_frames_at(image, FPS) == num_frames_at(image, None) == 1
    found = best_fit(image, [Bucket(1, 480, 832), Bucket(17, 480, 832)], FPS, Limits())
    assert isinstance(found, Fit) and found.bucket == Bucket(1, 480, 832)
    still = best_fit(clip(seconds=0.5), [Bucket(1, 480, 832)], FPS, Limits(stills_from_video=True))
    assert isinstance(still, Fit) and still.frames_dropped == 7


def test_native_rate_counts_decoded_frames():
    assert num_frames_at(clip(seconds=2), None) == 60


def test_each_resolution_gives_one_answer():
    low = [Bucket(17, 256, 448), Bucket(17, 448, 256)]
    high = [Bucket(17, 480, 832), Bucket(17, 832, 480)]
    groups = resolution_groups([*high, *low])
    assert groups == [low, high]
    found = Assigner(groups, FPS, Limits())(clip())
    assert [f.bucket for f in found if isinstance(f, Fit)] == [low[0], high[0]]
    found = Assigner(groups, FPS, Limits())(clip(500, 300))
    assert isinstance(found[0], Fit) and isinstance(found[1], Misfit)


@given(
    st.integers(1, 4000),
    st.integers(1, 4000),
    st.integers(0, 50),
    st.integers(0, 50),
    st.integers(1, 100),
    st.integers(1, 100),
)
def test_a_centre_crop_is_inside_and_has_the_aspect(w, h, x, y, height, width):
    cx, cy, cw, ch = centre_crop((x, y, w, h), height, width)
    assert cw == w or ch == h
    assert x <= cx and y <= cy and cx + cw <= x + w and cy + ch <= y + h
    assert abs((cx - x) - (x + w - cx - cw)) <= 1 and abs((cy - y) - (y + h - cy - ch)) <= 1
    if ch == h:
        assert abs(cw - h * width / height) <= 0.5 or cw == w or cw == 1
    if cw == w:
        assert abs(ch - w * height / width) <= 0.5 or ch == h or ch == 1


@given(st.integers(16, 3000), st.integers(16, 3000), st.fractions(Fraction(1, 100), Fraction(30)), st.booleans())
def test_whatever_fits_obeys_the_limits(width, height, seconds, letterbox):
    limits = Limits(max_upscale=1.5, max_cropped=0.4, max_dropped=0.6, letterbox=letterbox)
    buckets = [Bucket(17, 96, 160), Bucket(49, 480, 832), Bucket(17, 832, 480)]
    row = clip(width, height, float(seconds), crop_x=0, crop_y=0, crop_width=width, crop_height=max(1, height * 3 // 4))
    found = best_fit(row, buckets, FPS, limits)
    if isinstance(found, Misfit):
        assert all(isinstance(fit(row, b, FPS, limits), Misfit) for b in buckets)
        return
    assert found.num_frames == found.bucket.num_frames + found.frames_dropped >= found.bucket.num_frames
    assert found.scale <= 1.5 * 1.05 and found.cropped_fraction <= 0.4 + 1e-9
    assert 0 < found.kept <= 1
