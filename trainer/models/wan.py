"""Wan 2.1's text-to-video DiT in plain PyTorch, over packed sequences.

Legend: L tokens of a pack, N samples, P values a token (C * pt * ph * pw), X model width, S text tokens, E text width.

Parameters carry diffusers' names and shapes (`diffusers.WanTransformer3DModel`, Wan 2.1 report, arXiv:2503.20314), so
that a checkpoint is the same dictionary on both sides. What differs is the forward pass: samples of any shape share a
sequence without padding between them, each with its own timestep, text and rotary grid. A token's values are in the
order (C, pt, ph, pw), going in and coming out; diffusers' output projection has (pt, ph, pw, C) and is reordered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from schemas.errors import UserError
from trainer.models.attention import Segments, attention
from trainer.models.rotary import Rotary, rotate


@dataclass(frozen=True, kw_only=True)
class WanConfig:
    """Names and meanings as in diffusers' config.json.

    Attributes:
        patch_size: tokens are patches of (t, h, w) latent elements.
        text_dim: width of the text encoder's embeddings; the dataset's encoder must have it.
        text_length: pad each text with zero rows to this many tokens, as Wan's own weights expect (512); 0: no padding.
        rope_max_seq_len: positions along the longest axis.
    """

    patch_size: tuple[int, ...] = (1, 2, 2)
    num_attention_heads: int = 12
    attention_head_dim: int = 128
    in_channels: int = 16
    out_channels: int = 16
    text_dim: int = 4096
    freq_dim: int = 256
    ffn_dim: int = 8960
    num_layers: int = 30
    cross_attn_norm: bool = True
    eps: float = 1e-6
    rope_max_seq_len: int = 1024
    text_length: int = 0

    def __post_init__(self) -> None:
        if len(self.patch_size) != 3 or min(self.patch_size) < 1:
            raise UserError(f"patch_size: expected three positive integers, found {list(self.patch_size)}")
        for name in ("num_attention_heads", "in_channels", "out_channels", "text_dim", "ffn_dim", "num_layers"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}: expected at least 1, found {getattr(self, name)}")
        if self.attention_head_dim < 6 or self.attention_head_dim % 2:
            raise UserError(f"attention_head_dim: expected an even number >= 6, found {self.attention_head_dim}")
        if self.freq_dim < 2 or self.freq_dim % 2:
            raise UserError(f"freq_dim: expected an even number, found {self.freq_dim}")
        if self.text_length < 0:
            raise UserError(f"text_length: expected 0 or more, found {self.text_length}")

    @property
    def width(self) -> int:
        """X."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def token_dim(self) -> int:
        """P of the input."""
        return self.in_channels * math.prod(self.patch_size)

    def flops(self, length: int, text_length: int) -> float:
        """FLOPs of a sample's forward and backward pass, multiply and add counted apart; norms are left out."""
        x, layers = self.width, self.num_layers
        a_token = layers * (6 * x * x + 2 * x * self.ffn_dim) + 2 * x * self.token_dim
        a_text = layers * 2 * x * x + x * self.text_dim + x * x
        attention = 12.0 * layers * x * length * (length + text_length)
        return 6.0 * (length * a_token + text_length * a_text) + attention

    def flop_coefficients(self, text_length: int) -> tuple[float, float]:
        """a and b of FLOPs = a len^2 + b len for samples with that much text (whose own share is left out)."""
        one, two = self.flops(1, text_length), self.flops(2, text_length)
        fixed = self.flops(0, text_length)
        quadratic = (two - 2 * one + fixed) / 2
        return quadratic, one - fixed - quadratic


@dataclass(frozen=True, eq=False)
class Layout:
    """How a pack is laid out.

    Attributes:
        segments: of the tokens, one a sample; a padding segment may follow.
        text_segments: of the text, equally many; the padding segment's has at least one row.
        grid_N3: integers, tokens along (t, h, w) of each segment.
    """

    segments: Segments
    text_segments: Segments
    grid_N3: torch.Tensor


class Wan(nn.Module):
    """The transformer. `attention_backend` is chosen by the caller once; see `trainer.models.attention.resolve`."""

    Config: ClassVar[type] = WanConfig
    VAE: ClassVar[str] = "wan2.1"  # whose latents the published weights know
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "toy": {"num_attention_heads": 4, "attention_head_dim": 32, "ffn_dim": 512, "num_layers": 5, "text_dim": 256},
        "small": {"num_attention_heads": 8, "attention_head_dim": 64, "ffn_dim": 2048, "num_layers": 12},
        "wan2.1-1.3b": {"text_length": 512},
        "wan2.1-14b": {"num_attention_heads": 40, "ffn_dim": 13824, "num_layers": 40, "text_length": 512},
    }

    def __init__(self, config: WanConfig, attention_backend: str = "auto") -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.rope = Rotary(config.attention_head_dim, config.rope_max_seq_len)
        self.patch_embedding = PatchEmbedding(config.in_channels, width, config.patch_size)
        self.condition_embedder = ConditionEmbedder(config)
        self.blocks = nn.ModuleList([Block(config, attention_backend) for _ in range(config.num_layers)])
        self.proj_out = nn.Linear(width, config.out_channels * math.prod(config.patch_size))
        self.scale_shift_table = nn.Parameter(torch.randn(1, 2, width) / width**0.5)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise as Wan's own code does: Xavier, small embedders, zero output."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.xavier_uniform_(self.patch_embedding.weight.flatten(1))
        nn.init.zeros_(self.patch_embedding.bias)
        for embedder in (self.condition_embedder.text_embedder, self.condition_embedder.time_embedder):
            nn.init.normal_(embedder.linear_1.weight, std=0.02)
            nn.init.normal_(embedder.linear_2.weight, std=0.02)
        nn.init.zeros_(self.proj_out.weight)

    def forward(
        self, tokens_LP: torch.Tensor, timestep_N: torch.Tensor, text_SE: torch.Tensor, layout: Layout
    ) -> torch.Tensor:
        """Predict the velocity of every token.

        Args:
            tokens_LP: noised tokens.
            timestep_N: float32 in [0, 1000], one a segment (the padding segment's is any).
            text_SE: text embeddings, packed as `layout.text_segments` says.
        Returns:
            [L, C_out * pt * ph * pw] in the compute dtype.
        """
        segments = layout.segments
        rotary = self.rope(layout.grid_N3, segments)
        hidden_LX = self.patch_embedding(tokens_LP)
        time_NX, modulation_N6X, text_SX = self.condition_embedder(timestep_N, text_SE, hidden_LX.dtype)
        for block in self.blocks:
            hidden_LX = block(hidden_LX, text_SX, modulation_N6X, rotary, layout)
        shift_NX, scale_NX = (self.scale_shift_table + time_NX.unsqueeze(1)).unbind(1)
        shift_LX, scale_LX = segments.broadcast(shift_NX), segments.broadcast(scale_NX)
        out_LX = _modulate(_norm(hidden_LX, self.config.eps), shift_LX, scale_LX).type_as(hidden_LX)
        return self._channels_first(self.proj_out(out_LX))

    def _channels_first(self, tokens_LP: torch.Tensor) -> torch.Tensor:
        return tokens_LP.unflatten(-1, (-1, self.config.out_channels)).transpose(-1, -2).flatten(-2)

    def block_modules(self) -> list[nn.Module]:
        """Modules that are sharded, checkpointed and compiled one by one."""
        return list(self.blocks)

    def float32_modules(self) -> list[nn.Module]:
        """Modules that compute in float32 in mixed precision, as diffusers keeps the time embedder."""
        return [self.condition_embedder.time_embedder, self.condition_embedder.time_proj]


class PatchEmbedding(nn.Module):
    """A Conv3d whose kernel is its stride, over tokens that are patches already: one matrix product."""

    def __init__(self, channels: int, width: int, patch_size: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, channels, *patch_size))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, tokens_LP: torch.Tensor) -> torch.Tensor:
        return F.linear(tokens_LP.to(self.weight.dtype), self.weight.flatten(1), self.bias)


class Embedder(nn.Module):
    """Two linear layers with an activation between; `linear_1` and `linear_2` are diffusers' names."""

    def __init__(self, dim: int, width: int, activation: nn.Module) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(dim, width)
        self.linear_2 = nn.Linear(width, width)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear_2(self.activation(self.linear_1(x.to(self.linear_1.weight.dtype))))


class ConditionEmbedder(nn.Module):
    """Time and text into the model's width."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.freq_dim = config.freq_dim
        self.time_embedder = Embedder(config.freq_dim, config.width, nn.SiLU())
        self.time_proj = nn.Linear(config.width, 6 * config.width)
        self.text_embedder = Embedder(config.text_dim, config.width, nn.GELU(approximate="tanh"))

    def forward(
        self, timestep_N: torch.Tensor, text_SE: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return time [N, X], modulation [N, 6, X] and text [S, X], all of `dtype`."""
        time_NX = self.time_embedder(sinusoid(timestep_N, self.freq_dim))
        modulation = self.time_proj(F.silu(time_NX)).unflatten(1, (6, -1))
        return time_NX.to(dtype), modulation.to(dtype), self.text_embedder(text_SE).to(dtype)


def sinusoid(timestep_N: torch.Tensor, dim: int) -> torch.Tensor:
    """Cosines, then sines, of the timestep at `dim` / 2 frequencies from 1 to 1/10,000; float32 [N, dim]."""
    half = dim // 2
    exponents = torch.arange(half, dtype=torch.float32, device=timestep_N.device) / half
    angles = timestep_N[:, None].float() * torch.exp(-math.log(10_000) * exponents)[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Attention(nn.Module):
    """Self or cross attention with RMS norm of queries and keys over all heads' channels together."""

    def __init__(self, config: WanConfig, backend: str) -> None:
        super().__init__()
        width = config.width
        self.heads, self.backend = config.num_attention_heads, backend
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(width, width)
        self.to_v = nn.Linear(width, width)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])
        self.norm_q = nn.RMSNorm(width, eps=config.eps)
        self.norm_k = nn.RMSNorm(width, eps=config.eps)

    def forward(
        self,
        query_LX: torch.Tensor,
        context_MX: torch.Tensor,
        segments: Segments,
        context_segments: Segments,
        rotary: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        q = self.norm_q(self.to_q(query_LX)).unflatten(-1, (self.heads, -1))
        k = self.norm_k(self.to_k(context_MX)).unflatten(-1, (self.heads, -1))
        v = self.to_v(context_MX).unflatten(-1, (self.heads, -1))
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        return self.to_out[0](attention(q, k, v, segments, context_segments, self.backend).flatten(1))


class FeedForward(nn.Module):
    """Two linear layers with tanh-approximated GELU; `net.0.proj` and `net.2` are diffusers' names."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        first = nn.Module()
        first.proj = nn.Linear(width, inner)
        self.net = nn.ModuleList([first, nn.Identity(), nn.Linear(inner, width)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net[2](F.gelu(self.net[0].proj(x), approximate="tanh"))  # type: ignore[operator]


class Block(nn.Module):
    """Self attention, cross attention, feed-forward; the first and last are modulated by time."""

    def __init__(self, config: WanConfig, backend: str) -> None:
        super().__init__()
        width = config.width
        self.eps = config.eps
        self.attn1 = Attention(config, backend)
        self.attn2 = Attention(config, backend)
        self.norm2 = nn.LayerNorm(width, config.eps) if config.cross_attn_norm else None
        self.ffn = FeedForward(width, config.ffn_dim)
        self.scale_shift_table = nn.Parameter(torch.randn(1, 6, width) / width**0.5)

    def forward(
        self,
        hidden_LX: torch.Tensor,
        text_SX: torch.Tensor,
        modulation_N6X: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        layout: Layout,
    ) -> torch.Tensor:
        segments, dtype = layout.segments, hidden_LX.dtype
        parts = segments.broadcast(self.scale_shift_table.float() + modulation_N6X.float()).unbind(1)
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = parts
        normed = _modulate(_norm(hidden_LX, self.eps), shift, scale).to(dtype)
        out = self.attn1(normed, normed, segments, segments, rotary)
        hidden_LX = (hidden_LX.float() + out * gate).to(dtype)
        hidden_LX = hidden_LX + self.attn2(self._cross_norm(hidden_LX), text_SX, segments, layout.text_segments)
        normed = _modulate(_norm(hidden_LX, self.eps), ffn_shift, ffn_scale).to(dtype)
        return (hidden_LX.float() + self.ffn(normed).float() * ffn_gate).to(dtype)

    def _cross_norm(self, hidden_LX: torch.Tensor) -> torch.Tensor:
        if self.norm2 is None:
            return hidden_LX
        weight, bias = self.norm2.weight.float(), self.norm2.bias.float()
        return F.layer_norm(hidden_LX.float(), weight.shape, weight, bias, self.eps).to(hidden_LX.dtype)


def _norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Layer norm without weights, in float32."""
    return F.layer_norm(x.float(), x.shape[-1:], eps=eps)


def _modulate(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * (1 + scale) + shift
