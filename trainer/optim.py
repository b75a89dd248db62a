"""AdamW, the learning rate's course, and the exponential moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from schemas.errors import UserError
from trainer.parallel.shard import full, local, settle


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with linear warm-up, then a cosine down to `min_lr_ratio`.

    Attributes:
        weight_decay: on matrices; biases, norms and modulation tables have none.
        clip_grad_norm: gradients are scaled down to this global norm; 0: never.
        ema_decay: of the averaged weights; the first steps use less, (1 + step) / (10 + step), so that the average
            forgets the initialisation. 0: no average.
    """

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.01
    warmup_steps: int = 100
    min_lr_ratio: float = 0.1
    clip_grad_norm: float = 1.0
    ema_decay: float = 0.999

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.eps <= 0:
            raise UserError("lr and eps must be positive")
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise UserError(f"betas: expected two numbers in [0, 1), found {list(self.betas)}")
        if not 0 <= self.ema_decay < 1:
            raise UserError(f"ema_decay: expected a number in [0, 1), found {self.ema_decay}")
        if self.warmup_steps < 0 or not 0 <= self.min_lr_ratio <= 1:
            raise UserError("warmup_steps must not be negative, min_lr_ratio must be in [0, 1]")

    def lr_at(self, step: int, num_steps: int) -> float:
        """Learning rate of step 0, 1, ...; it has no state."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / max(1, num_steps - self.warmup_steps))
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return self.lr * (self.min_lr_ratio + (1 - self.min_lr_ratio) * cosine)


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the model's (sharded) parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in parameters if _is_matrix(p)]
    others = [p for p in parameters if not _is_matrix(p)]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def _is_matrix(parameter: torch.Tensor) -> bool:
    return parameter.ndim > 1 and parameter.shape[0] > 1


def clip_gradients(model: nn.Module, max_norm: float) -> torch.Tensor:
    """Scale gradients down to `max_norm` (0: leave them); return their norm over all ranks before that."""
    parameters = [p for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm or math.inf)
    return full(norm)


class Average:
    """Exponential moving average of the parameters, float32, sharded as they are.

    Attributes:
        weights: parameter name -> averaged tensor.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()} if decay else {}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move towards the parameters after step 0, 1, ..."""
        if not self.weights:
            return
        decay = min(self.decay, (1 + step) / (10 + step))
        pairs = [(local(self.weights[name]), local(p)) for name, p in model.named_parameters()]
        torch._foreach_lerp_([a for a, _ in pairs], [p for _, p in pairs], 1 - decay)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model computes with the average inside the block, and with its own weights afterwards."""
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        settle(model)
        for name, parameter in model.named_parameters():
            if name in self.weights:
                ours, theirs = local(self.weights[name]), local(parameter)
                kept = ours.clone()
                ours.copy_(theirs)
                theirs.copy_(kept)
