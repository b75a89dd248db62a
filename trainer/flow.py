"""Flow matching on packed latents: x_t = (1 - t) x_0 + t noise, and the model learns v = noise - x_0.

Legend: L tokens of a pack, N samples, P values a token, S text tokens, E text width.

Lipman et al. (arXiv:2210.02747) with the timesteps of Esser et al. (arXiv:2403.03206): logit-normal or uniform, then
shifted by resolution, t' = s t / (1 + (s - 1) t). Noise, timestep and text dropout of a sample are functions of
(seed, latent id, visit) alone (`trainer.philox`), so that they do not depend on how samples are packed, on which rank,
on how many ranks, or on the device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import torch

from schemas.errors import UserError
from trainer import philox
from trainer.models.attention import Segments
from trainer.models.wan import Layout

if TYPE_CHECKING:
    from trainer.data.collate import Pack

TIMESTEP_SCALE = 1000.0
"""The model sees t * 1000, as diffusers' schedulers give it."""


@dataclass(frozen=True, kw_only=True)
class FlowConfig:
    """What is drawn for a sample, and how losses are averaged.

    Attributes:
        timesteps: `logit_normal` (t = sigmoid(logit_mean + logit_std z)) or `uniform`.
        shift: s, at a sample of `shift_tokens` tokens; 1 leaves the timesteps as they are. Wan 2.1 samples with 3 at
            480p and 5 at 720p.
        shift_tokens: where s changes with a sample's length: s = shift * sqrt(tokens / shift_tokens); 0: it does not.
        text_dropout: share of visits whose text is replaced by the empty caption, for classifier-free guidance.
        loss_norm: `token`: the mean over all tokens of a step, so that a sample weighs by its length; `sample`: the
            mean over samples of each one's mean. Either way over all ranks and packs of the step.
    """

    timesteps: Literal["logit_normal", "uniform"] = "logit_normal"
    logit_mean: float = 0.0
    logit_std: float = 1.0
    shift: float = 1.0
    shift_tokens: int = 0
    text_dropout: float = 0.1
    loss_norm: Literal["token", "sample"] = "token"

    def __post_init__(self) -> None:
        if self.shift <= 0 or self.logit_std <= 0:
            raise UserError("shift and logit_std must be positive")
        if not 0 <= self.text_dropout <= 1:
            raise UserError(f"text_dropout: expected a share in [0, 1], found {self.text_dropout}")
        if self.shift_tokens < 0:
            raise UserError(f"shift_tokens: expected 0 or more, found {self.shift_tokens}")

    def shift_of(self, num_tokens: int) -> float:
        """s for a sample of that many tokens."""
        return self.shift * math.sqrt(num_tokens / self.shift_tokens) if self.shift_tokens else self.shift

    def time_at(self, u: float, num_tokens: int) -> float:
        """Map a uniform number to t in (0, 1): the inverse of the distribution, then the shift."""
        if self.timesteps == "logit_normal":
            u = 1.0 / (1.0 + math.exp(-self.logit_mean - self.logit_std * NormalDist().inv_cdf(u)))
        return shift_time(u, self.shift_of(num_tokens))


def shift_time(t: float, shift: float) -> float:
    """t' = s t / (1 + (s - 1) t)."""
    return shift * t / (1.0 + (shift - 1.0) * t)


@dataclass(frozen=True, kw_only=True)
class Draws:
    """What is random about each sample of a pack.

    Attributes:
        times: t of each sample.
        dropped: whether its text is dropped.
        noise_keys: Philox key of its noise.
    """

    times: tuple[float, ...]
    dropped: tuple[bool, ...]
    noise_keys: tuple[int, ...]


def draw(
    config: FlowConfig,
    seed: int,
    latent_ids: Sequence[bytes],
    visits: Sequence[int],
    lengths: Sequence[int],
    *,
    num_strata: int = 1,
) -> Draws:
    """Draw for samples named by (latent id, visit).

    Args:
        lengths: their tokens.
        num_strata: visits 0 to num_strata - 1 of a sample take their timesteps from as many equal parts of the
            distribution, one each.
    """
    times, dropped, keys = [], [], []
    for latent_id, visit, length in zip(latent_ids, visits, lengths):
        name = (seed, bytes(latent_id), int(visit))
        u = philox.uniform(philox.key_of("time", *name))
        times.append(config.time_at((int(visit) % num_strata + u) / num_strata, length))
        dropped.append(philox.uniform(philox.key_of("text", *name)) < config.text_dropout)
        keys.append(philox.key_of("noise", *name))
    return Draws(times=tuple(times), dropped=tuple(dropped), noise_keys=tuple(keys))


@dataclass(frozen=True, eq=False)
class Batch:
    """A pack on the device, noised, as the model takes it.

    Attributes:
        noisy_LP, target_LP: float32 x_t and v; the padding segment's are zero.
        timestep_N: float32 in [0, 1000], one a segment.
        text_SE: text embeddings.
        times: t of each real sample, on the host.
        lengths: tokens of each real sample; a padding segment follows them if L is larger than their sum.
        weight: the pack's; 0 means that it stands in for a pack that is missing.
    """

    noisy_LP: torch.Tensor
    target_LP: torch.Tensor
    timestep_N: torch.Tensor
    text_SE: torch.Tensor
    layout: Layout
    times: tuple[float, ...]
    lengths: tuple[int, ...]
    weight: float

    @property
    def num_tokens(self) -> int:
        """Tokens that count: those of real samples."""
        return sum(self.lengths)


def prepare(
    pack: Pack,
    draws: Draws,
    *,
    null_text_ME: torch.Tensor,
    text_length: int = 0,
    device: torch.device | str = "cpu",
    keep_padding: bool = False,
) -> Batch:
    """Noise a pack and lay it out for the model.

    Args:
        pack: on the host or on `device`.
        null_text_ME: embedding of the empty caption, which takes the place of dropped text.
        text_length: pad each text with zero rows to this many; 0: no padding. Every text has at least one row, since
            attention over none is not defined.
        keep_padding: leave the pack at its full budget, one shape for all packs (compiled models); else the padding
            is cut off.
    """
    num_samples = len(pack.latent_ids) if pack.weight else 0
    bounds = pack.cu_seqlens[: num_samples + 1].tolist()
    lengths = tuple(b - a for a, b in itertools.pairwise(bounds))
    used = sum(lengths)
    num_padding = len(pack.tokens_LD) - used if keep_padding else int(used == 0)
    x0_LP = pack.tokens_LD[:used].to(device, torch.float32, non_blocking=True)
    noisy_LP, target_LP = _noise(x0_LP, draws, lengths)
    texts = _texts(pack, draws, num_samples, null_text_ME, text_length)
    grid_N3, times = pack.grid_thw[:num_samples].int(), list(draws.times[:num_samples])
    segment_lengths = list(lengths)
    if num_padding:
        blank = x0_LP.new_zeros(num_padding, pack.tokens_LD.shape[1])
        noisy_LP, target_LP = torch.cat([noisy_LP, blank]), torch.cat([target_LP, blank])
        texts.append(pack.text_LD.new_zeros(1, null_text_ME.shape[1], dtype=null_text_ME.dtype))
        grid_N3 = torch.cat([grid_N3, grid_N3.new_ones(1, 3)])
        segment_lengths, times = [*segment_lengths, num_padding], [*times, 0.0]
    layout = Layout(
        Segments(segment_lengths, device),
        Segments([len(t) for t in texts], device),
        grid_N3.to(device, non_blocking=True),
    )
    return Batch(
        noisy_LP=noisy_LP,
        target_LP=target_LP,
        timestep_N=torch.tensor(times, device=device) * TIMESTEP_SCALE,
        text_SE=torch.cat(texts).to(device, non_blocking=True),
        layout=layout,
        times=draws.times[:num_samples],
        lengths=lengths,
        weight=float(pack.weight) if num_samples else 0.0,
    )


def _noise(x0_LP: torch.Tensor, draws: Draws, lengths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    segments = Segments(lengths, x0_LP.device)
    if not lengths:
        return x0_LP, x0_LP
    position = torch.arange(len(x0_LP), device=x0_LP.device) - segments.cu.long()[segments.ids]
    keys = philox.as_tensor(draws.noise_keys[: len(lengths)], x0_LP.device)
    noise_LP = philox.normal(keys, segments.ids, position, x0_LP.shape[1])
    t_L1 = torch.tensor(draws.times[: len(lengths)], device=x0_LP.device)[segments.ids].unsqueeze(1)
    return (1 - t_L1) * x0_LP + t_L1 * noise_LP, noise_LP - x0_LP


def _texts(
    pack: Pack, draws: Draws, num_samples: int, null_text_ME: torch.Tensor, text_length: int
) -> list[torch.Tensor]:
    bounds = pack.text_cu_seqlens[: num_samples + 1].tolist()
    texts, null_text_ME = [], null_text_ME.to(pack.text_LD.device)
    for i, (start, end) in enumerate(itertools.pairwise(bounds)):
        without = draws.dropped[i] or not pack.text_LD.shape[1]  # no width: training without text
        text = null_text_ME if without else pack.text_LD[start:end]
        texts.append(pad_text(text, text_length).to(null_text_ME.dtype))
    return texts


def pad_text(text_SE: torch.Tensor, text_length: int) -> torch.Tensor:
    """Cut or fill with zero rows to `text_length`; with 0, leave the length, but at least one row."""
    wanted = text_length or max(len(text_SE), 1)
    if len(text_SE) >= wanted:
        return text_SE[:wanted]
    return torch.cat([text_SE, text_SE.new_zeros(wanted - len(text_SE), text_SE.shape[1])])


def squared_error(output_LP: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Mean squared error a real token, float32 [num_tokens]."""
    n = batch.num_tokens
    return (output_LP[:n].float() - batch.target_LP[:n]).square().mean(dim=1)


def loss_sum(error_L: torch.Tensor, batch: Batch, norm: str) -> torch.Tensor:
    """What a pack adds to the numerator of a step's loss; the denominator is the sum over packs of `loss_count`."""
    if norm == "token":
        return batch.weight * error_L.sum()
    return batch.weight * sample_means(error_L, batch).sum()


def loss_count(batch: Batch, norm: str) -> float:
    """What a pack adds to the denominator: its tokens or its samples; nothing for a missing pack."""
    return batch.weight * (batch.num_tokens if norm == "token" else len(batch.lengths))


def sample_means(error_L: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Mean error of each real sample [N]."""
    return torch.stack([part.mean() for part in error_L.split(batch.lengths)]) if batch.lengths else error_L[:0]
