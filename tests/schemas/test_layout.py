"""Places of a dataset, as DESIGN's listing has them."""

from __future__ import annotations

import pytest

from schemas import layout
from schemas.buckets import Bucket
from schemas.errors import nearest


def test_names_and_uris():
    assert layout.table_uri("s3://bucket/set/", "clips") == "s3://bucket/set/clips.lance"
    assert layout.outcomes_name("encode") == "outcomes/encode"
    assert layout.scores_name("blur") == "scores/blur"
    assert layout.text_name("t5") == "text/t5"
    assert layout.stage_table_name("split") == "tables/split"
    assert layout.table_uri("d", layout.latents_name("dct", Bucket(17, 64, 96))) == "d/latents/dct/17x64x96.lance"
    assert layout.recipe_path("d", "0123") == "d/recipes/0123.toml"


@pytest.mark.parametrize(
    ("name", "known", "text"),
    [
        ("colour", ["color", "size"], "; did you mean 'color'?"),
        ("zzz", ["b", "a", "a"], "; known: a, b"),
        ("zzz", [], ""),
    ],
)
def test_nearest(name, known, text):
    assert nearest(name, known) == text
