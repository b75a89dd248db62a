"""Display matrices to rotation and reflection, for all eight orientations, and what sizes they give."""

from __future__ import annotations

import numpy as np
import pytest

from vidpipe.media.geometry import Geometry, clean_sar, fit_short_side, orientation

ONE = 1 << 16


def matrix(a: int, b: int, c: int, d: int) -> list[int]:
    return [a * ONE, b * ONE, 0, c * ONE, d * ONE, 0, 0, 0, 1 << 30]


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("hflip", [False, True])
def test_orientation_moves_corners_as_its_matrix_says(rotation, hflip):
    """The corner at (x, y) must land where x' = a x + c y, y' = b x + d y puts it."""
    quarter = {0: (1, 0), 90: (0, 1), 180: (-1, 0), 270: (0, -1)}[rotation]
    a, b, c, d = quarter[0], quarter[1], -quarter[1], quarter[0]
    if hflip:
        a, c = -a, -c
    assert orientation(matrix(a, b, c, d)) == (rotation, hflip)
    geometry = Geometry(coded_hw=(2, 3), rotation=rotation, hflip=hflip)
    shown = geometry.orient(np.arange(6).reshape(1, 2, 3, 1))[0, :, :, 0]
    assert shown.shape == geometry.display_hw
    places = {(a * x + c * y, b * x + d * y): 3 * y + x for x in range(3) for y in range(2)}
    left, top = min(x for x, _ in places), min(y for _, y in places)
    assert {(x - left, y - top): v for (x, y), v in places.items()} == {
        (x, y): shown[y, x] for y in range(shown.shape[0]) for x in range(shown.shape[1])
    }


def test_degenerate_matrix_is_no_rotation():
    assert orientation([0] * 9) == (0, False)
    assert orientation([-(1 << 31), 0, 0, 0, 0, 0, 0, 0, 0]) == (0, False)


def test_slanted_matrix_goes_to_the_nearest_quarter():
    assert orientation([int(ONE * 0.98), int(ONE * 0.2), 0, int(-ONE * 0.2), int(ONE * 0.98), 0, 0, 0, 1 << 30]) == (
        0,
        False,
    )


def test_torch_and_numpy_turn_alike():
    torch = pytest.importorskip("torch")
    frames = np.random.default_rng(1).integers(0, 256, (2, 4, 6, 3), dtype=np.uint8)
    for rotation in (0, 90, 180, 270):
        for hflip in (False, True):
            geometry = Geometry(coded_hw=(4, 6), rotation=rotation, hflip=hflip)
            got = geometry.orient_torch(torch.from_numpy(frames).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            assert np.array_equal(got.numpy(), geometry.orient(frames))


def test_display_size():
    assert Geometry(coded_hw=(480, 640), sar=(16, 9)).display_hw == (480, 1138)
    assert Geometry(coded_hw=(480, 720), sar=(11, 12), rotation=90).display_hw == (660, 480)
    assert Geometry(coded_hw=(480, 720), rotation=270).before_rotation((100, 200)) == (200, 100)


@pytest.mark.parametrize(
    ("given", "clean"),
    [
        ((0, 1), (1, 1)),
        ((1, 0), (1, 1)),
        ((-1, 1), (1, 1)),
        ((1000, 1), (1, 1)),
        ((128, 90), (64, 45)),
        ((8, 1), (8, 1)),
    ],
)
def test_nonsense_pixel_aspect_is_square(given, clean):
    assert clean_sar(*given) == clean


def test_fit_short_side_is_even_and_never_up():
    assert fit_short_side((1080, 1920), 144) == (144, 256)
    assert fit_short_side((1920, 1080), 144) == (256, 144)
    assert fit_short_side((101, 77), 144) == (101, 77)
    assert fit_short_side((4000, 3), 2) == (2666, 2)
