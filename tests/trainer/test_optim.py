"""Learning rate, groups, clipping and averaged weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from schemas.errors import UserError
from trainer.optim import Average, OptimizerConfig, clip_gradients, make_optimizer


def test_learning_rate():
    config = OptimizerConfig(lr=1.0, warmup_steps=10, min_lr_ratio=0.1)
    rates = [config.lr_at(step, 110) for step in (0, 4, 9, 10, 60, 110, 200)]
    assert rates == pytest.approx([0.1, 0.5, 1.0, 1.0, 0.55, 0.1, 0.1])
    assert OptimizerConfig(lr=2.0, warmup_steps=0).lr_at(0, 5) == 2.0


def test_only_matrices_decay():
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    model.register_parameter("table", nn.Parameter(torch.zeros(1, 6, 2)))
    groups = make_optimizer(model, OptimizerConfig(weight_decay=0.5)).param_groups
    assert [g["weight_decay"] for g in groups] == [0.5, 0.0]
    assert [p.shape for p in groups[0]["params"]] == [(2, 3)]
    assert len(groups[1]["params"]) == 4


def test_clipping():
    model = nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.tensor([[3.0, 4.0]])
    assert clip_gradients(model, 0.0).item() == 5.0
    assert model.weight.grad.tolist() == [[3.0, 4.0]]
    assert clip_gradients(model, 1.0).item() == 5.0
    assert model.weight.grad.norm().item() == pytest.approx(1.0)


def test_average():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = Average(model, 0.5)
    nn.init.ones_(model.weight)
    average.update(model, 0)  # the first steps use (1 + step) / (10 + step)
    assert average.weights["weight"].item() == pytest.approx(0.9)
    average.update(model, 1000)
    assert average.weights["weight"].item() == pytest.approx(0.95)
    with average.applied(model):
        assert model.weight.item() == pytest.approx(0.95)
    assert model.weight.item() == 1.0 and average.weights["weight"].item() == pytest.approx(0.95)
    with pytest.raises(RuntimeError), average.applied(model):
        raise RuntimeError
    assert model.weight.item() == 1.0
    assert Average(model, 0.0).weights == {}


@pytest.mark.parametrize("values", [{"lr": 0.0}, {"betas": (0.9, 1.0)}, {"ema_decay": 1.0}, {"min_lr_ratio": 2.0}])
def test_config_is_checked(values):
    with pytest.raises(UserError):
        OptimizerConfig(**values)
