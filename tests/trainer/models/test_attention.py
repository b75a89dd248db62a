"""Back ends against a softmax written out, and against the reference on a GPU."""

from __future__ import annotations

import pytest
import torch

from schemas.errors import UserError
from trainer.models.attention import Segments, attention, resolve

LENGTHS = [5, 5, 1, 9]
KEY_LENGTHS = [3, 3, 7, 2]


def inputs(lengths, key_lengths, device="cpu", dtype=torch.float32, heads=2, dim=16):
    g = torch.Generator().manual_seed(1)
    sizes = [sum(lengths), sum(key_lengths), sum(key_lengths)]
    return [torch.randn(n, heads, dim, generator=g).to(device, dtype).requires_grad_() for n in sizes]


def softmax_attention(q, k, v, lengths, key_lengths):
    """A mask over the whole pack instead of segments."""
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    columns = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(key_lengths))
    scores = torch.einsum("lhd,mhd->hlm", q, k) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(rows[:, None] != columns[None], float("-inf"))
    return torch.einsum("hlm,mhd->lhd", scores.softmax(-1), v)


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
@pytest.mark.parametrize("key_lengths", [LENGTHS, KEY_LENGTHS], ids=["self", "cross"])
def test_equals_masked_softmax(backend, key_lengths):
    q, k, v = inputs(LENGTHS, key_lengths)
    if backend == "flex":  # which has no gradient on the CPU
        q, k, v = (x.detach() for x in (q, k, v))
    out = attention(q, k, v, Segments(LENGTHS), Segments(key_lengths), backend)
    expected = softmax_attention(q, k, v, LENGTHS, key_lengths)
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)
    if backend == "sdpa":
        grads = torch.autograd.grad(out.square().sum(), [q, k, v])
        wanted = torch.autograd.grad(expected.square().sum(), [q, k, v])
        for got, want in zip(grads, wanted):
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_empty_key_segment_gives_zeros():
    q, k, v = inputs([2, 3], [4, 0])
    out = attention(q, k, v, Segments([2, 3]), Segments([4, 0]), "sdpa")
    assert torch.equal(out[2:], torch.zeros(3, 2, 16))
    assert out[:2].abs().min() > 0


def test_segments():
    segments = Segments([2, 2, 0, 3])
    assert segments.cu.tolist() == [0, 2, 4, 4, 7] and segments.cu.dtype == torch.int32
    assert segments.ids.tolist() == [0, 0, 1, 1, 3, 3, 3]
    assert segments.runs == [(0, 2, 2), (2, 1, 0), (3, 1, 3)]
    assert (segments.total, segments.max_length, len(segments)) == (7, 3, 4)
    values = torch.tensor([[1.0], [2.0], [3.0], [4.0]], requires_grad=True)
    rows = segments.broadcast(values)
    assert rows[:, 0].tolist() == [1, 1, 2, 2, 4, 4, 4]
    rows.sum().backward()
    assert values.grad[:, 0].tolist() == [2, 2, 0, 3]
    assert segments.mean(torch.tensor([1.0, 3, 5, 5, 0, 3, 6])).tolist() == [2, 5, 0, 3]


def test_resolve():
    cpu = torch.device("cpu")
    assert resolve("auto", cpu, torch.float32) == "sdpa"
    with pytest.raises(UserError, match="'flex' has no gradient on a CPU"):
        resolve("flex", cpu, torch.float32)
    with pytest.raises(UserError, match="'varlen' needs CUDA and 16-bit, found cpu"):
        resolve("varlen", cpu, torch.bfloat16)
    with pytest.raises(UserError, match="'flash4' needs flash-attn-4"):
        resolve("flash4", cpu, torch.bfloat16)
    with pytest.raises(UserError, match="expected one of auto, sdpa"):
        resolve("xformers", cpu, torch.bfloat16)


def test_segment_counts_must_agree():
    q, k, v = inputs([4], [4])
    with pytest.raises(ValueError, match="1 query segments but 2 key segments"):
        attention(q, k, v, Segments([4]), Segments([2, 2]), "sdpa")


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["varlen", "flex", "flash4"])
@pytest.mark.parametrize("key_lengths", [[700, 129, 1, 1218], [77, 512, 1, 30]], ids=["self", "cross"])
def test_gpu_backends_equal_the_reference(backend, key_lengths):
    """bfloat16 back ends err no more than twice as much as the reference does in bfloat16."""
    device, lengths = torch.device("cuda"), [700, 129, 1, 1218]
    if backend == "flash4":
        pytest.importorskip("flash_attn.cute.interface")
    resolve(backend, device, torch.bfloat16)
    exact = run_gpu("sdpa", lengths, key_lengths, torch.float32)
    reference = run_gpu("sdpa", lengths, key_lengths, torch.bfloat16)
    got = run_gpu(backend, lengths, key_lengths, torch.bfloat16)
    for e, r, g in zip(exact, reference, got):
        allowed = 2 * (r.float() - e).abs().max() + 1e-3 * e.abs().max()
        assert (g.float() - e).abs().max() <= allowed


def run_gpu(backend, lengths, key_lengths, dtype):
    """Output and gradients from inputs that bfloat16 holds exactly."""
    q, k, v = (x.detach().bfloat16().to(dtype).requires_grad_() for x in inputs(lengths, key_lengths, "cuda", dim=128))
    out = attention(q, k, v, Segments(lengths, "cuda"), Segments(key_lengths, "cuda"), backend)
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), [q, k, v])]
