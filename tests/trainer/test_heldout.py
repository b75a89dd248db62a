"""Held-out loss and its two yardsticks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainer import heldout
from trainer.flow import FlowConfig
from trainer.heldout import Heldout, HeldoutConfig
from trainer.parallel.world import World

NULL = torch.zeros(1, 24)


class Zero(nn.Module):
    """Predicts no velocity."""

    def forward(self, tokens_LP, timestep_N, text_SE, layout):
        return torch.zeros_like(tokens_LP)


class Linear(nn.Module):
    """The best linear prediction, given the channel's moments."""

    def __init__(self, mean, variance):
        super().__init__()
        self.mean, self.variance = mean, variance

    def forward(self, tokens_LP, timestep_N, text_SE, layout):
        t = (timestep_N / 1000)[layout.segments.ids][:, None]
        return heldout.linear_velocity(tokens_LP, t, self.mean.repeat_interleave(4), self.variance.repeat_interleave(4))


def make(packs, lists, length=0, **values):
    made = [packs.make(numbers, length=length) for numbers in lists]
    config = HeldoutConfig(**values)
    return Heldout(made, config, FlowConfig(), World(), channels=4, null_text_ME=NULL)


def test_linear_velocity_is_the_least_squares_fit():
    """Slope and intercept of the closed form against numpy's fit on many draws."""
    g = torch.Generator().manual_seed(0)
    mean, variance, n = 0.7, 2.5, 400_000
    for t in (0.1, 0.5, 0.9):
        x0 = mean + variance**0.5 * torch.randn(n, generator=g, dtype=torch.float64)
        noise = torch.randn(n, generator=g, dtype=torch.float64)
        xt, v = (1 - t) * x0 + t * noise, noise - x0
        centred = xt - xt.mean()
        slope = (centred * (v - v.mean())).sum() / (centred**2).sum()
        moments = torch.tensor(t), torch.tensor(mean), torch.tensor(variance)
        points = heldout.linear_velocity(torch.tensor([0.0, 1.0]), *moments)
        assert float(points[1] - points[0]) == pytest.approx(float(slope), abs=0.01)
        assert float(points[0]) == pytest.approx(float(v.mean() - slope * xt.mean()), abs=0.01)
        # the residual of the closed form: s2 / ((1 - t)^2 s2 + t^2)
        predicted = heldout.linear_velocity(xt, *moments)
        expected = variance / ((1 - t) ** 2 * variance + t**2)
        assert float(((predicted - v) ** 2).mean()) == pytest.approx(expected, rel=0.01)


def test_moments_are_those_of_the_channels(packs):
    mean, variance = heldout.channel_moments([packs.make([0, 1], length=32), packs.make([2])], 4)
    values = torch.cat([packs.latent(n).flatten(1) for n in (0, 1, 2)], dim=1)
    torch.testing.assert_close(mean, values.mean(1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(variance, values.var(1, correction=0), atol=1e-5, rtol=1e-5)


def test_the_linear_model_has_the_linear_loss(packs):
    held = make(packs, [[0, 1, 2], [3, 5]])
    found = held.evaluate(Linear(held.mean_C, held.variance_C))
    assert found.loss == pytest.approx(found.linear, rel=1e-6) and found.ratio == pytest.approx(1)
    assert found.shuffled == pytest.approx(found.loss, rel=0.1)  # it knows no positions
    worse = held.evaluate(Zero())
    assert worse.loss > 1.05 * worse.linear and worse.linear == found.linear


def test_evaluation_is_fixed_and_independent_of_packing(packs):
    model = Zero()
    first = make(packs, [[0, 1, 2], [3, 5]]).evaluate(model)
    again = make(packs, [[5], [2, 3], [1, 0]], length=40).evaluate(model)
    assert again.loss == pytest.approx(first.loss, rel=1e-6)
    assert again.linear == pytest.approx(first.linear, rel=1e-6)
    assert again.bins == pytest.approx(first.bins, rel=1e-5, nan_ok=True)
    other = make(packs, [[0, 1, 2], [3, 5]], seed=2).evaluate(model)
    assert other.loss != first.loss


def test_shuffling_keeps_values_and_moves_positions(packs):
    pack = packs.make([1, 2], length=30)
    mixed = heldout.shuffle_positions(pack, 4, seed=0)
    assert torch.equal(mixed.tokens_LD[24:], pack.tokens_LD[24:])  # padding stays
    for start, stop in ((0, 12), (12, 24)):
        old = pack.tokens_LD[start:stop].view(-1, 4, 4).transpose(1, 2).reshape(-1, 4)
        new = mixed.tokens_LD[start:stop].view(-1, 4, 4).transpose(1, 2).reshape(-1, 4)
        assert not torch.equal(old, new)
        assert torch.equal(old[old[:, 0].argsort()], new[new[:, 0].argsort()])  # rows of channels, reordered


def test_figures_in_words(packs):
    found = heldout.HeldoutLoss(loss=0.6, linear=0.8, shuffled=0.66, bins=(), linear_bins=())
    assert "ratio 0.750" in str(found) and "(+10.0%)" in str(found)
