"""Philox against Random123's known answers, and the normals made of it."""

from __future__ import annotations

import pytest
import torch

from trainer import philox

# kat_vectors of Random123 (philox4x32 10): counter, key, expected
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(int(word, 16)) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter, key, expected):
    assert [int(w) for w in philox.philox(words(counter), words(key))] == [int(w) for w in words(expected)]


def test_normals_are_normal_and_independent():
    keys = philox.as_tensor([philox.key_of(1, b"a"), philox.key_of(1, b"b")])
    n = 4000
    ids, position = torch.arange(2).repeat_interleave(n), torch.arange(n).repeat(2)
    x = philox.normal(keys, ids, position, 64).double()
    count = x.numel()
    assert abs(x.mean()) < 4 / count**0.5
    assert abs(x.var() - 1) < 4 * (2 / count) ** 0.5
    assert abs((x**4).mean() - 3) < 4 * (96 / count) ** 0.5
    assert abs((x[:n] * x[n:]).mean()) < 4 / (count / 2) ** 0.5
    assert abs((x[:, 0::2] * x[:, 1::2]).mean()) < 4 / (count / 2) ** 0.5
    assert abs((x[1:] * x[:-1]).mean()) < 4 / count**0.5


def test_a_row_depends_on_its_key_and_position_alone():
    keys = torch.tensor([5, -7, 1 << 40])
    ids, position = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 1, 0, 0, 1])
    together = philox.normal(keys, ids, position, 10)
    alone = philox.normal(keys[2:], torch.tensor([0]), torch.tensor([1]), 10)
    assert torch.equal(together[4:], alone)
    assert together.shape == (5, 10) and len(together.unique()) == 50


def test_as_tensor_keeps_the_bits():
    assert philox.as_tensor([0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]).tolist() == [0, (1 << 63) - 1, -(1 << 63), -1]


def test_key_of_tells_parts_apart():
    keys = {philox.key_of(*p) for p in [(1, b"ab"), (1, b"a", b"b"), (11, b"b"), (1, b"a"), ("1", b"a")]}
    assert len(keys) == 4  # a number and its digits name one stream; nothing else runs together
    assert philox.key_of(0, b"x" * 16, 3) == 16163177084206768362
    assert 0 < philox.uniform(0) < 1e-15 and 1 - 1e-15 < philox.uniform((1 << 64) - 1) < 1


@pytest.mark.gpu
def test_gpu_draws_the_same():
    keys, ids, position = torch.tensor([3, -9]), torch.tensor([0, 0, 1]), torch.tensor([0, 4096, 7])
    on_cpu = philox.normal(keys, ids, position, 64)
    on_gpu = philox.normal(keys.cuda(), ids.cuda(), position.cuda(), 64).cpu()
    torch.testing.assert_close(on_gpu, on_cpu, atol=2e-6, rtol=2e-6)
