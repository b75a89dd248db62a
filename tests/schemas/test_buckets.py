"""Buckets: parsing, the rule of a latent space, shapes and tokens, sets from area budgets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.buckets import Bucket, BucketSet, parse_buckets
from schemas.errors import BucketMismatch, UserError
from schemas.latent_spaces import LatentSpace


def space(channels: int, stride_t: int, stride: int, name: str = "s") -> LatentSpace:
    return LatentSpace(
        name=name, vae="v", revision="1", channels=channels, stride_t=stride_t, stride_h=stride, stride_w=stride,
        mean=(0.0,) * channels, std=(1.0,) * channels,
    )  # fmt: skip


WAN = space(16, 4, 8, "wan2.1")
LTX = space(128, 8, 32, "ltx")


def test_parse_and_print_are_inverse():
    assert Bucket.parse("81x480x832") == Bucket(81, 480, 832)
    assert str(Bucket.parse(" 81X480X832 ")) == "81x480x832"
    assert Bucket(81, 480, 832).num_pixels == 81 * 480 * 832


@pytest.mark.parametrize("text", ["", "81x480", "81x480x832x3", "81*480*832", "-1x2x3", "ax2x3", "0x16x16", "81x0x832"])
def test_parse_refuses(text):
    with pytest.raises(BucketMismatch):
        Bucket.parse(text)


def test_buckets_sort_by_number_and_not_by_text():
    assert sorted([Bucket(9, 64, 96), Bucket(81, 64, 96), Bucket(17, 64, 96)])[0] == Bucket(9, 64, 96)


@pytest.mark.parametrize(
    ("text", "latent_space", "nearest"),
    [
        ("80x480x832", WAN, "81x480x832"),
        ("81x470x832", WAN, "81x464x832"),
        ("81x480x830", WAN, "81x480x832"),
        ("2x4x4", WAN, "1x16x16"),
        ("81x480x832", LTX, None),
        ("85x480x832", LTX, "81x480x832"),
    ],
)
def test_check_names_the_nearest(text, latent_space, nearest):
    patch = (1, 2, 2) if latent_space is WAN else (1, 1, 1)
    bucket = Bucket.parse(text)
    if nearest is None:
        assert bucket.check(latent_space, patch) == bucket
    else:
        with pytest.raises(BucketMismatch, match=f"nearest is {nearest}$"):
            bucket.check(latent_space, patch)


def test_known_latent_shapes_and_token_counts():
    """Wan 2.1 at 81x480x832 is 32,760 tokens, the figure everybody quotes."""
    assert Bucket(81, 480, 832).latent_shape(WAN) == (16, 21, 60, 104)
    assert Bucket(81, 480, 832).num_tokens(WAN) == 32_760
    assert Bucket(1, 480, 832).num_tokens(WAN) == 1_560
    assert Bucket(17, 64, 96).latent_shape(LTX) == (128, 3, 2, 3)
    assert Bucket(17, 64, 96).num_tokens(LTX, (1, 1, 1)) == 18


def test_a_patch_that_does_not_divide_rounds_up():
    assert Bucket(17, 64, 96).num_tokens(WAN, (2, 3, 5)) == 3 * 3 * 3


@given(st.integers(1, 300), st.integers(1, 2000), st.integers(1, 2000), st.sampled_from([WAN, LTX]))
def test_the_nearest_bucket_is_valid(frames, height, width, latent_space):
    bucket = Bucket(frames, height, width)
    try:
        bucket.check(latent_space)
    except BucketMismatch as error:
        near = Bucket.parse(str(error).rsplit(" ", 1)[1])
        assert near.check(latent_space) == near != bucket
        assert abs(near.num_frames - frames) <= latent_space.stride_t / 2
    else:
        assert (frames - 1) % latent_space.stride_t == 0 and height % (2 * latent_space.stride_h) == 0


def test_set_of_one_aspect_is_square():
    made = BucketSet(areas=(256 * 256,), frames=(1, 17), num_aspects=1).buckets(WAN)
    assert made == [Bucket(1, 256, 256), Bucket(17, 256, 256)]


def test_set_covers_portrait_and_landscape():
    made = BucketSet(areas=(480 * 832,), frames=(81,), num_aspects=7, max_aspect=2.0).buckets(WAN)
    aspects = sorted(b.width / b.height for b in made)
    assert aspects[0] == pytest.approx(0.5, rel=0.06)
    assert aspects[-1] == pytest.approx(2.0, rel=0.06)
    assert len(made) == 7
    assert min(b.height * b.width for b in made) > 0.93 * 480 * 832


@given(
    st.lists(st.integers(16 * 16, 1280 * 720), min_size=1, max_size=3),
    st.integers(1, 9),
    st.floats(1, 4),
    st.sampled_from([WAN, space(4, 4, 8), space(48, 4, 16)]),
)
def test_sets_keep_their_budget_and_the_rule(areas, num_aspects, max_aspect, latent_space):
    config = BucketSet(areas=tuple(areas), frames=(1, 17), num_aspects=num_aspects, max_aspect=max_aspect)
    try:
        made = config.buckets(latent_space)
    except BucketMismatch:
        assert max(areas) < 4 * (latent_space.stride_h * 2) ** 2 * max_aspect
        return
    assert made == sorted(set(made))
    for bucket in made:
        assert bucket.height * bucket.width <= max(areas)
        assert bucket.check(latent_space) == bucket
    assert {b.num_frames for b in made} == {1, 17}


def test_set_refuses_frames_off_the_rule_and_empty_lists():
    with pytest.raises(BucketMismatch, match="nearest is 17x"):
        BucketSet(areas=(65536,), frames=(16,)).buckets(WAN)
    for bad in ({"areas": ()}, {"frames": ()}, {"areas": (0,)}, {"num_aspects": 0}, {"max_aspect": 0.5}):
        with pytest.raises(UserError, match="bucket set"):
            BucketSet(**{"areas": (65536,), "frames": (17,), **bad})
    with pytest.raises(BucketMismatch, match="smallest is 16x16"):
        BucketSet(areas=(100,), frames=(17,)).buckets(WAN)


def test_parse_buckets_sorts_and_drops_twins():
    assert parse_buckets(["17x96x64", "17x64x96", "17x96x64"], WAN) == [Bucket(17, 64, 96), Bucket(17, 96, 64)]
