"""Every recipe in pipelines/ loads, its expressions name columns that will be there, and its buckets fit its VAE."""

from __future__ import annotations

import tomllib
from pathlib import Path

import duckdb
import pytest

from schemas import expressions, tables
from schemas.buckets import Bucket
from schemas.errors import UnknownKey
from vidpipe.analyze import scorer_columns
from vidpipe.recipe import load, to_toml

FOLDER = Path(__file__).resolve().parents[2] / "pipelines"
DATA = sorted((FOLDER / "data").glob("*.toml"))
TRAIN = sorted((FOLDER / "train").glob("*.toml"))
STRIDES = {"dct": (4, 8), "wan2.1": (4, 8)}


def test_only_recipes_are_here():
    files = [p for p in FOLDER.rglob("*") if p.is_file()]
    assert sorted(files) == sorted([*DATA, *TRAIN])
    assert "quickstart.toml" in [p.name for p in DATA] and "quickstart.toml" in [p.name for p in TRAIN]


@pytest.mark.parametrize("path", DATA, ids=lambda p: p.stem)
def test_data_recipe_round_trips(path):
    recipe = load(str(path))
    assert tomllib.loads(to_toml(recipe))["encode"]["vae"] == recipe.encode.vae
    with pytest.raises(UnknownKey, match="did you mean 'heldout'"):
        load(str(path), ("split.helduot=0.5",))


@pytest.mark.parametrize("path", DATA, ids=lambda p: p.stem)
def test_expressions_name_columns_that_will_be_there(path):
    recipe = load(str(path))
    specs = (
        tables.CLIPS.with_columns(scorer_columns(recipe.analyze)),
        tables.VIDEOS,
        tables.NEAR_DUPLICATES,
        tables.SPLIT,
    )
    known = {column.name for spec in specs for column in spec.columns}
    with duckdb.connect() as con:
        for where in (recipe.encode.where, recipe.caption.where):
            expressions.check(con, where, known)
        assert len(expressions.terms(con, recipe.encode.where)) >= 3


@pytest.mark.parametrize("path", DATA, ids=lambda p: p.stem)
def test_a_clip_that_is_long_enough_fills_the_shortest_bucket(path):
    from vidpipe.media.sampling import num_sampled

    recipe = load(str(path))
    config = recipe.encode
    frames = [Bucket.parse(b).num_frames for b in config.buckets] if config.buckets else list(config.bucket_set.frames)
    stride_t, stride = STRIDES[config.vae]
    assert all((f - 1) % stride_t == 0 for f in frames)
    for bucket in map(Bucket.parse, config.buckets):
        assert bucket.height % (stride * config.patch[1]) == 0 and bucket.width % (stride * config.patch[2]) == 0
    assert num_sampled(recipe.analyze.min_seconds, config.rate) >= min(frames)


@pytest.mark.parametrize("path", TRAIN, ids=lambda p: p.stem)
def test_train_recipe_loads(path):
    from trainer.recipe import load as load_train

    recipe = load_train(path, dataset="somewhere")
    assert recipe.steps >= 1


def test_an_expression_may_be_a_bare_true():
    recipe = load(str(FOLDER / "data" / "quickstart.toml"), ("encode.where=true", "caption.where=false"))
    assert (recipe.encode.where, recipe.caption.where) == ("true", "false")
