from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from schemas.buckets import Bucket
from schemas.config import build, to_mapping
from schemas.errors import BucketMismatch, UnknownKey, UserError
from vidpipe.encode_config import EncodeConfig
from vidpipe.vaes.dct import DctVae


def test_buckets_from_a_list_or_from_areas():
    listed = build(EncodeConfig, {"buckets": ["17x64x96", "17x96x64", "17x64x96"]})
    assert listed.bucket_list(DctVae()) == [Bucket(17, 64, 96), Bucket(17, 96, 64)]
    areas = build(EncodeConfig, {"bucket_set": {"areas": [64 * 96], "frames": [17, 33], "num_aspects": 1}})
    assert areas.bucket_list(DctVae()) == [Bucket(17, 80, 64), Bucket(33, 80, 64)] or all(
        b.height * b.width <= 64 * 96 and b.num_frames in (17, 33) for b in areas.bucket_list(DctVae())
    )


def test_resolutions_one_or_each():
    text = ["17x64x96", "17x96x64", "17x128x192"]
    one, each = (build(EncodeConfig, {"buckets": text, "resolutions": r}) for r in ("one", "each"))
    assert [len(g) for g in one.bucket_groups(DctVae())] == [3]
    assert [len(g) for g in each.bucket_groups(DctVae())] == [2, 1]


def test_a_bucket_off_the_rule_names_the_nearest():
    with pytest.raises(BucketMismatch, match="nearest is 17x64x96"):
        build(EncodeConfig, {"buckets": ["16x64x96"]}).bucket_list(DctVae())
    with pytest.raises(BucketMismatch, match="multiple of 32"):
        build(EncodeConfig, {"buckets": ["17x64x80"], "patch": [1, 4, 4]}).bucket_list(DctVae())


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"fps": "fast"}, "expected a number"),
        ({"fps": "0"}, "above 0"),
        ({"buckets": ["17x64"]}, "expected FRAMESxHEIGHTxWIDTH"),
        ({"buckets": ["17x64x96"], "bucket_set": {"areas": [9999], "frames": [17]}}, "not both"),
        ({"max_cropped": 1.5}, "max_cropped must be in"),
        ({"max_upscale": 0.0}, "max_upscale must be above 0"),
        ({"batch_frames": -1}, "batch_frames"),
        ({"patch": [2, 2]}, "three whole numbers"),
    ],
)
def test_what_is_refused(values: dict[str, Any], says: str):
    with pytest.raises(UserError, match=says):
        build(EncodeConfig, values)


def test_unknown_keys_name_the_nearest():
    with pytest.raises(UnknownKey, match="did you mean 'max_upscale'"):
        build(EncodeConfig, {"max_upscal": 2.0})


def test_a_rate_needs_no_quotes():
    for value, text in ((16, "16/1"), (23.976, "2997/125"), ("30000/1001", "30000/1001")):
        assert build(EncodeConfig, {"fps": value}).fps_text == text
    assert build(EncodeConfig, {"fps": 16}).identity() == build(EncodeConfig, {"fps": "16"}).identity()


def test_rates():
    assert EncodeConfig(fps="30000/1001").rate == Fraction(30000, 1001)
    assert EncodeConfig(fps="native").rate is None
    assert EncodeConfig(fps="16.0").identity() == EncodeConfig(fps="16").identity()


def test_identity_holds_what_shapes_a_latent_and_nothing_else():
    base = EncodeConfig().identity()
    for change in ({"fps": "24"}, {"decode": {"hdr": "reject"}}, {"decode": {"interlaced": "keep"}}):
        assert build(EncodeConfig, change).identity() != base
    same = {
        "where": "false",
        "batch_frames": 7,
        "max_upscale": 3.0,
        "buckets": ["17x64x96"],
        "decode": {"num_threads": 4},
    }
    assert build(EncodeConfig, same).identity() == base


def test_a_recipe_round_trips():
    config = EncodeConfig(buckets=("17x64x96",), fps="24", params={"dtype": "float32"})
    assert build(EncodeConfig, to_mapping(config)) == config
