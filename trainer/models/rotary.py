"""Three-dimensional rotary position embedding of packed samples, each with its own grid.

Legend: L tokens, N samples, H heads, D head dimension.

A head's D channels are split into time, height and width parts as Wan 2.1 does: height and width 2 * (D // 6) each,
time the rest. Angles are computed in float64 and rounded once, as in diffusers' WanRotaryPosEmbed.
"""

from __future__ import annotations

import torch
from torch import nn

from trainer.models.attention import Segments


class Rotary(nn.Module):
    """Tables of angles for each axis, looked up by grid position.

    Args:
        head_dim: D, even.
        max_positions: positions of the longest axis; a larger grid raises ValueError in `positions`.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, head_dim: int, max_positions: int = 1024, theta: float = 10_000.0) -> None:
        super().__init__()
        self.head_dim, self.max_positions, self.theta = head_dim, max_positions, theta
        side = 2 * (head_dim // 6)
        self.parts = (head_dim - 2 * side, side, side)
        cos, sin = self._tables()
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        angles = []
        for part in self.parts:
            exponents = torch.arange(0, part, 2, dtype=torch.float64, device="cpu") / part
            position = torch.arange(self.max_positions, dtype=torch.float64, device="cpu")
            angles.append(torch.outer(position, self.theta**-exponents))
        table = torch.cat(angles, dim=1)
        return table.cos().float(), table.sin().float()

    def forward(self, grid_N3: torch.Tensor, segments: Segments) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin, float32 [L, D / 2].

        Args:
            grid_N3: integers on the tables' device: tokens along time, height and width of each sample. Tokens of a
                sample are in that order, width fastest; those beyond t * h * w (a padding segment) get any position.
        """
        axes = positions(grid_N3, segments).clamp_(max=self.max_positions - 1).unbind(1)
        widths = [part // 2 for part in self.parts]
        cos = [table[axis] for table, axis in zip(self.cos.split(widths, dim=1), axes)]
        sin = [table[axis] for table, axis in zip(self.sin.split(widths, dim=1), axes)]
        return torch.cat(cos, dim=1), torch.cat(sin, dim=1)


def positions(grid_N3: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Grid position of each token: int64 [L, 3] in (t, h, w)."""
    grid_L3 = grid_N3.long()[segments.ids]
    index = torch.arange(segments.total, device=grid_L3.device) - segments.cu.long()[segments.ids]
    height, width = grid_L3[:, 1], grid_L3[:, 2]
    return torch.stack([index // (height * width), index // width % height, index % width], dim=1)


def rotate(x_LHD: torch.Tensor, cos_LF: torch.Tensor, sin_LF: torch.Tensor) -> torch.Tensor:
    """Turn channel pairs (2i, 2i + 1) of every head by the token's angles; F = D / 2. Computed in float32."""
    even, odd = x_LHD.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos_LF.unsqueeze(1), sin_LF.unsqueeze(1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).type_as(x_LHD)
