"""`dct`: a weights-free causal 3-D DCT with the latent geometry of Wan 2.1 (16 channels, stride 4x8x8).

Algorithm. The first frame stands alone (as four copies of itself, so that its temporal coefficients are zero), then
come groups of four frames. A block of 4x8x8 pixels keeps 16 of its 768 coefficients in YCbCr (BT.601):

    channels 0-8    luma, time average, the 3x3 lowest spatial frequencies, turned back by a 3x3 inverse DCT into a
                    3x3 picture of the block. The turn is orthogonal, so it keeps what the nine coefficients keep, but a
                    channel is then like its neighbours, in space and among the nine, as a learned VAE's are. Without it
                    all but the first are noise to a small model: the loss of the best linear predictor over 2x2
                    positions, relative to the best per channel, is 0.89 without the turn, 0.58 with it (0.51 for
                    real Wan latents).
    channels 9-13   luma change over the four frames: first temporal frequency of the block's mean, its horizontal and
                    vertical slope; second and third of the mean
    channels 14-15  Cb and Cr, block mean

Exactness. All analysis weights are integers (seven bits in space and time, eight in colour) and the arithmetic is on
integers that floats hold exactly (float32 below 2^24, float64 below 2^53), so sums do not depend on their order: the
latents are the same bits on every machine, device and batch size. Decoding uses the exact dual of the analysis, so
encode(decode(z)) = z before rounding and decode(encode(.)) is a projection.

Constants. `MEAN` and `STD` were measured on footage: `python -m vidpipe.vaes.dct_statistics FOLDER`.

Turned down: the 16 coefficients of greatest energy, none turned: 0.5 dB better, and hard to learn.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from schemas.errors import UserError
from schemas.latent_spaces import LatentSpace
from vidpipe.vaes.base import Vae

if TYPE_CHECKING:
    import torch

REVISION = "1"
CHANNELS, STRIDE_T, STRIDE = 16, 4, 8
CHUNK_BYTES = 64 << 20

RGB_TO_YCBCR = ((77, 150, 29), (-43, -85, 128), (128, -107, -21))
"""BT.601 times 256; the rows sum to 256, 0 and 0, so grey stays grey exactly."""

TEMPORAL = ((64, 64, 64, 64), (83, 36, -36, -83), (64, -64, -64, 64), (36, -83, 83, -36))
"""The 4-point integer DCT of H.265 (8.6.4.2): orthogonal rows."""

MEAN = (81.7, 66.3, 81.5, 66.8, 54.1, 66.6, 82.7, 67.1, 82.7, 0.0, 0.0, 0.0, 0.0, 0.0, -7.4, 5.5)
STD = (51.4, 41.8, 51.7, 41.9, 34.1, 42.2, 51.9, 42.2, 52.2, 6.71, 2.64, 2.67, 2.18, 2.3, 16.2, 13.5)


def spatial_filters() -> np.ndarray:
    """Three integer filters over 8 pixels, [3, 8]: the lowest three DCT frequencies turned into a 3-pixel picture.

    Their sum is constant over the pixels, and the outer two mirror each other: so the block's mean is the sum of the
    three and its slope the difference of the outer two.
    """
    k, x, j = np.arange(3)[:, None], np.arange(8)[None], np.arange(3)[None]
    weight = np.where(k == 0, np.sqrt(0.5), 1.0)
    dct8 = np.cos(np.pi * (2 * x + 1) * k / 16) * weight / 2
    dct3 = np.cos(np.pi * (2 * j + 1) * k / 6) * weight * np.sqrt(2 / 3)
    first = np.rint(128 * dct3[:, 0] @ dct8).astype(np.int64)
    total = round(128 * np.sqrt(3 / 8))
    return np.stack([first, total - first - first[::-1], first[::-1]])


class DctVae(Vae):
    """See the module's docstring. `dtype` is fixed: the arithmetic is exact."""

    name = "dct"
    dtype = "float64"

    def __init__(self, *, source: str = "", device: str = "cpu") -> None:
        if source:
            raise UserError(f"vae dct has no weights, but source {source!r} was given; leave it out")
        self.device = device

    @property
    def space(self) -> LatentSpace:
        return LatentSpace(
            name="dct", vae="dct", revision=REVISION, channels=CHANNELS,
            stride_t=STRIDE_T, stride_h=STRIDE, stride_w=STRIDE, mean=MEAN, std=STD,
        )  # fmt: skip

    def encode_raw(self, frames_BCTHW: torch.Tensor) -> torch.Tensor:
        import torch

        B, _, T, H, W = frames_BCTHW.shape
        pictures = torch.empty(B, 3, T, H // 8, W // 8, 9, dtype=torch.float64, device=frames_BCTHW.device)
        step = max(1, CHUNK_BYTES // (12 * H * W))
        for b in range(B):
            for t in range(0, T, step):
                pictures[b, :, t : t + step] = _pictures(frames_BCTHW[b, :, t : t + step])
        grouped = torch.cat([pictures[:, :, :1].expand(-1, -1, 4, -1, -1, -1), pictures[:, :, 1:]], 2)
        return _channels(grouped.unflatten(2, (-1, 4)))

    def decode_raw(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        import torch

        dual = torch.from_numpy(synthesis()).to(latents_BCTHW.device)
        B, C, T, H, W = latents_BCTHW.shape
        blocks = latents_BCTHW.movedim(1, -1).reshape(-1, C) @ dual
        groups = blocks.view(B, T, H, W, 3, 4, 8, 8).permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(B, 3, T, 4, H * 8, W * 8)
        first = groups[:, :, :1].mean(3)
        return torch.cat([first, groups[:, :, 1:].flatten(2, 3)], 2)


def _pictures(frames_CTHW: torch.Tensor) -> torch.Tensor:
    """3x3 picture of each 8x8 block: integers in float64 [3, T, H / 8, W / 8, 9], row major."""
    import torch

    filters = torch.from_numpy(spatial_filters()).to(frames_CTHW.device)
    C, T, H, W = frames_CTHW.shape
    rows = frames_CTHW.to(torch.float32, memory_format=torch.contiguous_format).view(-1, 8) @ filters.T.to(
        torch.float32
    )  # below 2^18: exact
    rows = rows.view(C * T, H // 8, 8, W // 8 * 3).to(torch.float64)
    both = torch.matmul(filters.to(torch.float64), rows)  # below 2^28
    return both.view(C, T, H // 8, 3, W // 8, 3).transpose(3, 4).flatten(4)


def _channels(p: torch.Tensor) -> torch.Tensor:
    """Latents from block pictures [B, 3, G, 4, H, W, 9]: [B, 16, G, H, W], in code values."""
    import torch

    colour = torch.tensor(RGB_TO_YCBCR, dtype=torch.float64, device=p.device)
    time = torch.tensor(TEMPORAL, dtype=torch.float64, device=p.device)

    def weighted(values: torch.Tensor, weights: torch.Tensor, dim: int) -> torch.Tensor:
        return sum(values.select(dim, i) * w for i, w in enumerate(weights.tolist()))  # type: ignore[return-value]

    luma = weighted(p, colour[0], 1)  # [B, G, 4, H, W, 9]
    mean = luma.sum(-1)
    q = luma.unflatten(-1, (3, 3))
    slope_x, slope_y = (q[..., 0] - q[..., 2]).sum(-1), (q[..., 0, :] - q[..., 2, :]).sum(-1)
    still = weighted(luma, time[0], 2)
    moving = [weighted(v, time[k], 2) for v, k in ((mean, 1), (slope_x, 1), (slope_y, 1), (mean, 2), (mean, 3))]
    still_rgb = weighted(p.sum(-1), time[0], 3)  # [B, 3, G, H, W]
    chroma = [weighted(still_rgb, colour[k], 1) for k in (1, 2)]
    stacked = torch.stack([*still.unbind(-1), *moving, *chroma], 1)
    return stacked * torch.from_numpy(scales()).to(p.device).view(1, -1, 1, 1, 1)


def _blocks() -> np.ndarray:
    """Integer weights of the 14 luma channels over one plane's block, [14, 4, 8, 8]; the mean's are the sum of 0-8."""
    f, time = spatial_filters(), np.array(TEMPORAL)
    flat, slope = f.sum(0), f[0] - f[2]
    moving = ((1, flat, flat), (1, flat, slope), (1, slope, flat), (2, flat, flat), (3, flat, flat))
    still = [(0, y, x) for y in f for x in f]
    return np.stack([np.einsum("t,y,x->tyx", time[k], y, x) for k, y, x in (*still, *moving)])


@functools.cache
def analysis() -> np.ndarray:
    """Integer weights of all channels, [16, 3 colours, 4, 8, 8]: the codec as one matrix."""
    blocks, colour = _blocks(), np.array(RGB_TO_YCBCR)
    mean = blocks[:9].sum(0)
    planes = [*((colour[0], b) for b in blocks), (colour[1], mean), (colour[2], mean)]
    return np.stack([np.einsum("c,tyx->ctyx", c, b) for c, b in planes])


@functools.cache
def scales() -> np.ndarray:
    """Float64 [16]: one over the sum of a channel's absolute weights, so that a raw latent is in [-255, 255]."""
    return 1 / np.abs(analysis()).reshape(CHANNELS, -1).sum(1)


@functools.cache
def synthesis() -> np.ndarray:
    """Dual of the scaled analysis, float64 [16, 768]: luma comes back grey, Cb and Cr along their own directions.

    The dual is taken over the blocks of a plane and the colours are inverted exactly: a pseudo-inverse over RGB would
    tint what only luma kept.
    """
    blocks = _blocks().reshape(14, -1).astype(np.float64)
    rgb = np.linalg.inv(np.array(RGB_TO_YCBCR, dtype=np.float64))
    luma = np.linalg.pinv(blocks).T
    mean = np.linalg.pinv(blocks[:9].sum(0, keepdims=True)).T[0]
    planes = [*((rgb[:, 0], d) for d in luma), (rgb[:, 1], mean), (rgb[:, 2], mean)]
    return np.stack([np.outer(colour, d).ravel() for colour, d in planes]) / scales()[:, None]
