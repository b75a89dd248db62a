"""Latent spaces: round trips, the byte size of an element, and refusals that name what differs."""

from __future__ import annotations

import dataclasses

import pytest

from schemas.errors import LatentSpaceMismatch, SchemaMismatch
from schemas.latent_spaces import METADATA_KEY, LatentSpace

SPACE = LatentSpace(
    name="wan2.1", vae="wan2.1", revision="abc", channels=2, stride_t=4, stride_h=8, stride_w=8,
    mean=[0, -1.5], std=[1, 2], source="hub/id",
)  # fmt: skip


def test_json_round_trip_is_exact():
    assert LatentSpace.from_json(SPACE.to_json()) == SPACE
    assert SPACE.mean == (0.0, -1.5)
    hash(SPACE)


def test_metadata_round_trip_and_refusal():
    assert LatentSpace.from_metadata({METADATA_KEY: SPACE.to_json().encode()}, "t") == SPACE
    for metadata in (None, {}, {b"other": b""}):
        with pytest.raises(SchemaMismatch, match=r"latents/x.*not a latent table"):
            LatentSpace.from_metadata(metadata, "latents/x")


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float16", 2), ("float32", 4)])
def test_element_bytes(dtype, size):
    assert dataclasses.replace(SPACE, dtype=dtype).element_bytes == size


@pytest.mark.parametrize(("num_frames", "latent_frames"), [(1, 1), (5, 2), (17, 5), (81, 21)])
def test_num_latent_frames(num_frames, latent_frames):
    assert SPACE.num_latent_frames(num_frames) == latent_frames


@pytest.mark.parametrize("bad", [{"mean": (0.0,)}, {"std": ()}, {"posterior": "sample"}, {"dtype": "int8"}])
def test_refuses(bad):
    with pytest.raises(LatentSpaceMismatch, match=r"latent space wan2\.1"):
        dataclasses.replace(SPACE, **bad)


def test_require_ignores_name_and_source_and_nothing_else():
    SPACE.require(dataclasses.replace(SPACE, name="other", source="/elsewhere"), "t")
    changes = {
        "vae": "x", "revision": "def", "channels": 3, "stride_t": 8, "stride_h": 16, "stride_w": 16,
        "mean": (0.0, 0.0), "std": (1.0, 1.0), "posterior": "mean_logvar", "dtype": "float32",
    }  # fmt: skip
    assert set(changes) | {"name", "source"} == {f.name for f in dataclasses.fields(LatentSpace)}
    for key, value in changes.items():
        extra = {"mean": (0.0,) * 3, "std": (1.0,) * 3} if key == "channels" else {}
        other = dataclasses.replace(SPACE, **{key: value, **extra})
        with pytest.raises(LatentSpaceMismatch, match=rf"^folder/t holds latents .*{key} "):
            SPACE.require(other, "folder/t")
