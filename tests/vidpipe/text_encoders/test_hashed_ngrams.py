"""Hashed n-grams: deterministic, alike for alike words, honest about length."""

from __future__ import annotations

import hashlib

import pytest
import torch

from schemas import registry
from schemas.errors import UserError
from vidpipe.text_encoders.base import by_length
from vidpipe.text_encoders.hashed_ngrams import HashedNgrams


def test_shapes_and_scale() -> None:
    found = HashedNgrams().encode(["a red ball", "", "one, two"])
    assert [tuple(e.shape) for e in found] == [(3, 64), (1, 64), (3, 64)]
    assert all(e.dtype == torch.bfloat16 for e in found)
    assert torch.allclose(found[0].float().pow(2).mean(1), torch.ones(3), atol=0.02)


def test_same_bytes_on_every_machine() -> None:
    (found,) = HashedNgrams().encode(["A red ball rolls, slowly"])
    digest = hashlib.sha256(found.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
    assert digest[:16] == "dbf33aa9b1cedfb1"


def test_words_that_share_a_stem_are_near_and_others_are_not() -> None:
    run, running, table = (e[0].float() for e in HashedNgrams(dim=256).encode(["walking", "walked", "table"]))
    near = torch.cosine_similarity(run, running, dim=0)
    far = torch.cosine_similarity(run, table, dim=0)
    assert near > 0.25 and far < 0.2 and near > far + 0.15


def test_long_texts_are_cut() -> None:
    (found,) = HashedNgrams(max_words=5).encode(["word " * 20])
    assert len(found) == 5


def test_metadata_makes_an_equal_encoder() -> None:
    encoder = HashedNgrams(dim=128)
    again = registry.load_text_encoder("hashed-ngrams").for_metadata(encoder.metadata())
    assert again.name == encoder.name == "hashed-ngrams-128"
    assert torch.equal(again.encode(["x y"])[0], encoder.encode(["x y"])[0])


def test_refusals() -> None:
    with pytest.raises(UserError, match="no weights"):
        HashedNgrams(source="somewhere")
    with pytest.raises(UserError, match="multiple of 64"):
        HashedNgrams(dim=100)


def test_batches_by_length_hold_everything_once_and_keep_the_budget() -> None:
    lengths = [5, 1, 9, 3, 9, 2, 30]
    batches = list(by_length(lengths, 20))
    assert sorted(i for b in batches for i in b) == list(range(7))
    assert all(len(b) == 1 or max(lengths[i] for i in b) * len(b) <= 20 for b in batches)
