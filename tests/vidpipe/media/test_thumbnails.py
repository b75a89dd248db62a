"""Small pictures from planes: colours against swscale's, sizes, and what goes through the converter instead."""

from __future__ import annotations

import av
import numpy as np
import pytest

from vidpipe.media.convert import Converter
from vidpipe.media.thumbnails import Thumbnailer, shrunk


def flat(y: int, cb: int, cr: int, name: str = "yuv420p", height: int = 180, width: int = 320) -> av.VideoFrame:
    frame = av.VideoFrame(width, height, name)
    for plane, value in zip(frame.planes, (y, cb, cr)):
        plane.update(bytes([value]) * plane.buffer_size)
    return frame


@pytest.mark.parametrize("colorspace", [1, 2, 4, 5, 6, 7, 9])
@pytest.mark.parametrize("color_range", [0, 1, 2])
@pytest.mark.parametrize("colour", [(16, 128, 128), (235, 128, 128), (90, 70, 200), (150, 190, 60)])
def test_colours_are_swscale_s(colorspace, color_range, colour):
    frame = flat(*colour)
    frame.colorspace, frame.color_range = colorspace, color_range
    ours, theirs = np.empty((64, 114, 3), np.uint8), np.empty((64, 114, 3), np.uint8)
    Thumbnailer().to_rgb(frame, ours)
    Converter((64, 114)).to_rgb(frame, theirs)
    assert np.abs(ours.astype(int) - theirs).max() <= 3 and len(np.unique(ours.reshape(-1, 3), axis=0)) == 1


@pytest.mark.parametrize("name", ["yuvj420p", "yuv422p", "yuv444p", "yuvj444p", "gray"])
def test_formats_agree_with_the_converter(name):
    ours, theirs = np.empty((48, 64, 3), np.uint8), np.empty((48, 64, 3), np.uint8)
    frame = flat(120, 90, 160, name)
    Thumbnailer().to_rgb(frame, ours)
    Converter((48, 64)).to_rgb(frame, theirs)
    assert np.abs(ours.astype(int) - theirs).max() <= 3


@pytest.mark.parametrize("name", ["yuv420p10le", "rgb24", "yuva420p"])
def test_other_formats_go_through_the_converter(name):
    rng = np.random.default_rng(0)
    frame = av.VideoFrame.from_ndarray(rng.integers(0, 255, (96, 128, 3), np.uint8), "rgb24").reformat(format=name)
    ours, theirs = np.empty((24, 32, 3), np.uint8), np.empty((24, 32, 3), np.uint8)
    Thumbnailer().to_rgb(frame, ours)
    Converter((24, 32)).to_rgb(frame, theirs)
    np.testing.assert_array_equal(ours, theirs)
    assert Thumbnailer().to_grey(frame, (24, 32)).shape == (24, 32)


def test_grey_spans_the_full_range():
    thumbnailer = Thumbnailer()
    found = [thumbnailer.to_grey(flat(y, 100, 180), (45, 80)) for y in (16, 126, 235, 255)]
    assert [np.unique(grey).tolist() for grey in found] == [[0], [128], [255], [255]]
    assert np.unique(thumbnailer.to_grey(flat(126, 100, 180, "yuvj420p"), (45, 80))).tolist() == [126]


@pytest.mark.parametrize("hw", [(1080, 1920), (480, 854), (241, 321), (50, 66), (2160, 90), (3, 1)])
@pytest.mark.parametrize("size_hw", [(64, 114), (17, 33)])
def test_a_slope_stays_a_slope_at_any_size(hw, size_hw):
    y, x = np.mgrid[0 : hw[0], 0 : hw[1]]
    slope = (200 * (y / hw[0] + x / hw[1]) / 2 + 20).astype(np.uint8)
    small = shrunk(slope, size_hw)
    assert small.shape == size_hw
    if min(hw) > 100:
        v, u = np.mgrid[0 : size_hw[0], 0 : size_hw[1]]
        expected = 200 * ((v + 0.5) / size_hw[0] + (u + 0.5) / size_hw[1]) / 2 + 20
        assert np.abs(small - expected).max() < 3
