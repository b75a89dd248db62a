"""Held-out loss at fixed noise and timesteps, beside what a linear predictor reaches and with positions shuffled.

Legend: L tokens, P values a token, C channels, K positions a patch (P = C * K, channels first).

Two yardsticks, so that a loss says whether anything was learned:

- The best per-channel linear predictor of the velocity, v_hat = a x_t + b, in closed form from the held-out latents'
  own mean m and variance s2 of a channel: a = (t - (1 - t) s2) / ((1 - t)^2 s2 + t^2), b = -m - a (1 - t) m. It knows
  the marginal distribution and nothing of space, time or text.
- The same latents with their positions shuffled within each sample: a model that uses structure gets worse.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from schemas.errors import UserError
from trainer import flow, philox
from trainer.flow import FlowConfig
from trainer.parallel.shard import settle
from trainer.parallel.world import World

if TYPE_CHECKING:
    from trainer.data.collate import Pack

NUM_BINS = 10


@dataclass(frozen=True, kw_only=True)
class HeldoutConfig:
    """Held-out evaluation.

    Attributes:
        every: steps between evaluations; 0: none but the last.
        max_samples: held-out latents that are used, the first by id.
        repeats: draws of noise and timestep a latent; its timesteps are spread over the distribution, one in each of
            `repeats` equal parts, so that few latents cover it too.
        seed: of those draws; fixed for the run and apart from the training's.
    """

    every: int = 500
    max_samples: int = 256
    repeats: int = 4
    seed: int = 1

    def __post_init__(self) -> None:
        if self.every < 0 or self.max_samples < 1 or self.repeats < 1:
            raise UserError("heldout: every must not be negative, max_samples and repeats must be at least 1")


@dataclass(frozen=True, kw_only=True)
class HeldoutLoss:
    """Mean squared errors of the velocity over held-out tokens.

    Attributes:
        loss: the model's.
        linear: the per-channel linear predictor's, on the same noise and timesteps.
        shuffled: the model's on latents whose positions are shuffled.
        bins: the model's by timestep, over [0, 1] in NUM_BINS; NaN where there was no sample.
        linear_bins: the linear predictor's.
    """

    loss: float
    linear: float
    shuffled: float
    bins: tuple[float, ...]
    linear_bins: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Loss over the linear predictor's; below 1 something was learned."""
        return self.loss / self.linear if self.linear else math.nan

    def __str__(self) -> str:
        rise = (self.shuffled / self.loss - 1) * 100 if self.loss else math.nan
        return (
            f"held-out loss {self.loss:.4f}, best per-channel linear predictor {self.linear:.4f} "
            f"(ratio {self.ratio:.3f}), positions shuffled {self.shuffled:.4f} ({rise:+.1f}%)"
        )


class Heldout:
    """The held-out packs of a run, with their moments.

    Args:
        packs: all held-out packs, the same list on every rank; each rank evaluates every size-th one.
        channels: C of the latents.
    """

    def __init__(
        self,
        packs: Sequence[Pack],
        config: HeldoutConfig,
        flow_config: FlowConfig,
        world: World,
        *,
        channels: int,
        null_text_ME: torch.Tensor,
        text_length: int = 0,
        keep_padding: bool = False,
    ) -> None:
        self.config, self.world, self.channels = config, world, channels
        self.flow = dataclasses.replace(flow_config, text_dropout=0.0)
        self.prepare_args: dict[str, Any] = {
            "null_text_ME": null_text_ME,
            "text_length": text_length,
            "device": world.device,
            "keep_padding": keep_padding,
        }
        self.mean_C, self.variance_C = channel_moments(packs, channels)
        self.num_samples = sum(len(pack.latent_ids) for pack in packs)
        count = -(-len(packs) // world.size)  # all ranks run as many forward passes, since each is a collective
        own = [i * world.size + world.rank for i in range(count)]
        self.packs = [packs[i] if i < len(packs) else dataclasses.replace(packs[-1], weight=0.0) for i in own]

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> HeldoutLoss:
        """Run all held-out packs; all ranks call it and get the same figures."""
        was_training = model.training
        model.eval()
        sums = torch.zeros(3 + 3 * NUM_BINS, dtype=torch.float64, device=self.world.device)
        count = 0
        for pack in self.packs:
            for repeat in range(self.config.repeats):
                count += self._add(model, pack, repeat, sums)
        settle(model)
        model.train(was_training)
        total = self.world.sum(torch.tensor(float(count), dtype=torch.float64, device=self.world.device))
        sums = self.world.sum(sums)
        loss, linear, shuffled = (sums[:3] / total.clamp(min=1)).tolist()
        bins, linear_bins, counts = sums[3:].view(3, NUM_BINS)
        return HeldoutLoss(
            loss=loss,
            linear=linear,
            shuffled=shuffled,
            bins=tuple((bins / counts).tolist()),
            linear_bins=tuple((linear_bins / counts).tolist()),
        )

    def _add(self, model: nn.Module, pack: Pack, repeat: int, sums: torch.Tensor) -> int:
        """Add one pack's errors to `sums`; return its tokens."""
        lengths = pack_lengths(pack)
        repeats = [repeat] * len(lengths)
        draws = flow.draw(
            self.flow, self.config.seed, pack.latent_ids, repeats, lengths, num_strata=self.config.repeats
        )
        batch = flow.prepare(pack, draws, **self.prepare_args)
        other = flow.prepare(shuffle_positions(pack, self.channels, self.config.seed), draws, **self.prepare_args)
        error_L = flow.squared_error(run(model, batch), batch).double()
        shuffled_L = flow.squared_error(run(model, other), other).double()
        if not batch.num_tokens:
            return 0
        linear_L = self._linear_error(batch).double()
        sums[:3] += torch.stack([error_L.sum(), linear_L.sum(), shuffled_L.sum()])
        times = torch.tensor(batch.times, device=error_L.device)
        bins = (times * NUM_BINS).long().clamp(max=NUM_BINS - 1)
        lengths_N = torch.tensor(batch.lengths, dtype=torch.float64, device=error_L.device)
        rows = sums[3:].view(3, NUM_BINS)
        rows[0].index_add_(0, bins, flow.sample_means(error_L, batch) * lengths_N)
        rows[1].index_add_(0, bins, flow.sample_means(linear_L, batch) * lengths_N)
        rows[2].index_add_(0, bins, lengths_N)
        return batch.num_tokens

    def _linear_error(self, batch: flow.Batch) -> torch.Tensor:
        n, device = batch.num_tokens, batch.noisy_LP.device
        repeats = batch.noisy_LP.shape[1] // self.channels
        mean_P = self.mean_C.to(device).repeat_interleave(repeats)
        variance_P = self.variance_C.to(device).repeat_interleave(repeats)
        t_L1 = (batch.timestep_N / flow.TIMESTEP_SCALE)[batch.layout.segments.ids[:n]].unsqueeze(1)
        return flow.squared_error(linear_velocity(batch.noisy_LP[:n], t_L1, mean_P, variance_P), batch)


def run(model: nn.Module, batch: flow.Batch) -> torch.Tensor:
    """Predicted velocity of a batch [L, P]."""
    return model(batch.noisy_LP, batch.timestep_N, batch.text_SE, batch.layout)


def linear_velocity(noisy: torch.Tensor, t: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Best linear prediction of noise - x_0 from x_t alone, for x_0 of that mean and variance; shapes broadcast."""
    slope = (t - (1 - t) * variance) / ((1 - t) ** 2 * variance + t**2)
    return -mean + slope * (noisy - (1 - t) * mean)


def channel_moments(packs: Sequence[Pack], channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of each latent channel over all real tokens: float32 [C]."""
    total = torch.zeros(3, channels, dtype=torch.float64)
    for pack in packs:
        values_CX = real_tokens(pack).double().unflatten(1, (channels, -1)).transpose(0, 1).flatten(1)
        total += torch.stack([torch.ones_like(values_CX), values_CX, values_CX**2]).sum(dim=2)
    count, first, second = total
    mean = first / count.clamp(min=1)
    return mean.float(), (second / count.clamp(min=1) - mean**2).clamp(min=1e-12).float()


def pack_lengths(pack: Pack) -> list[int]:
    """Tokens of each real sample; none for a missing pack."""
    bounds = pack.cu_seqlens[: len(pack.latent_ids) + 1].tolist()
    return [b - a for a, b in itertools.pairwise(bounds)] if pack.weight else []


def real_tokens(pack: Pack) -> torch.Tensor:
    """Tokens without the pack's padding [L, P]."""
    return pack.tokens_LD[: sum(pack_lengths(pack))]


def shuffle_positions(pack: Pack, channels: int, seed: int) -> Pack:
    """The same pack with the latent positions of each sample permuted; a position keeps its channels together."""
    tokens = pack.tokens_LD.clone()
    start = 0
    for latent_id, length in zip(pack.latent_ids, pack_lengths(pack)):
        generator = torch.Generator().manual_seed(philox.key_of("shuffle", seed, bytes(latent_id)) >> 1)
        values_LKC = tokens[start : start + length].unflatten(1, (channels, -1)).transpose(1, 2)
        order = torch.randperm(values_LKC.shape[0] * values_LKC.shape[1], generator=generator)
        mixed_LKC = values_LKC.reshape(-1, channels)[order].view(values_LKC.shape)
        tokens[start : start + length] = mixed_LKC.transpose(1, 2).flatten(1)
        start += length
    return dataclasses.replace(pack, tokens_LD=tokens)
