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

Exactness. All analysis weights are integers and the arithmetic is on integers that floats hold exactly (float32 below
2^24, float64 below 2^53), so sums do not depend on their order: the
latents are the same bits on every machine, device and batch size. Decoding uses the exact dual of the analysis, so
encode(decode(z)) = z before rounding and decode(encode(.)) is a projection.

Constants. `MEAN` and `STD` were measured on 138 clips of 16 films, cartoons and recordings, 64 to 256 pixels high:
`python -m vidpipe.vaes.dct_statistics FOLDER`. It also gives the PSNR there: median 25.8 dB, 20.1 to 49.1 dB for the
middle 90%.

Turned down: the 16 coefficients of greatest energy, none turned: 0.5 dB better, and hard to learn.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
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
SCALE = 109

RGB_TO_YCBCR = ((77, 150, 29), (-43, -85, 128), (128, -107, -21))
"""BT.601 times 256; the rows sum to 256, 0 and 0, so grey stays grey exactly."""

TEMPORAL = ((64, 64, 64, 64), (83, 36, -36, -83), (64, -64, -64, 64), (36, -83, 83, -36))
"""The 4-point integer DCT of H.265 (8.6.4.2): orthogonal rows."""

MEAN = (79.8, 65.6, 79.8, 65.6, 54.0, 65.6, 79.8, 65.6, 79.8, 0.0, 0.0, 0.0, 0.0, 0.0, -6.46, 5.57)
STD = (49.3, 40.9, 49.3, 40.9, 33.9, 40.9, 49.3, 40.9, 49.3, 8.06, 3.53, 3.53, 4.18, 3.3, 25.2, 22.6)


def spatial_filters() -> np.ndarray:
    """Three integer filters over 8 pixels, [3, 8]: the lowest three DCT frequencies turned into a 3-pixel picture.

    Their sum is constant over the pixels, and the outer two mirror each other: so the block's mean is the sum of the
    three and its slope the difference of the outer two. Magnitudes sum to at most 256 a filter, so that a block of code
    values weighted in both directions stays below 2^24.
    """
    k, x, j = np.arange(3)[:, None], np.arange(8)[None], np.arange(3)[None]
    weight = np.where(k == 0, np.sqrt(0.5), 1.0)
    dct8 = np.cos(np.pi * (2 * x + 1) * k / 16) * weight / 2
    dct3 = np.cos(np.pi * (2 * j + 1) * k / 6) * weight * np.sqrt(2 / 3)
    first = np.rint(SCALE * dct3[:, 0] @ dct8).astype(np.int64)
    total = round(SCALE * np.sqrt(3 / 8))
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
        out = torch.empty(
            B, CHANNELS, 1 + (T - 1) // 4, H // 8, W // 8, dtype=torch.float64, device=frames_BCTHW.device
        )
        step = 4 * max(1, CHUNK_BYTES // (48 * H * W))  # frames at a time
        for clip, latents in zip(frames_BCTHW, out):
            latents[:, :1] = _channels(_pictures(clip[:, :1]).expand(-1, 4, -1, -1, -1))
            for t in range(1, T, step):
                latents[:, 1 + t // 4 : 1 + (t + step) // 4] = _channels(_pictures(clip[:, t : t + step]))
        return out

    def encode_raw_shown(self, frames_BCTHW: torch.Tensor, shown: Sequence[int]) -> torch.Tensor:
        import torch

        raw = []
        for grey in (127, 128):  # the codec is linear, and a blank is 127.5
            blank = torch.full_like(frames_BCTHW, grey)
            blank[:, :, list(shown)] = frames_BCTHW[:, :, list(shown)]
            raw.append(self.encode_raw(blank))
        return (raw[0] + raw[1]) / 2

    def decode_raw(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        import torch

        B, _, T, H, W = latents_BCTHW.shape
        out = torch.empty(B, 3, 4 * T - 3, 8 * H, 8 * W, dtype=torch.float32, device=latents_BCTHW.device)
        for latents, frames in zip(latents_BCTHW, out):
            frames[:, :1] = _group(latents[:, 0]).mean(1, keepdim=True)
            for t in range(1, T):
                frames[:, 4 * t - 3 : 4 * t + 1] = _group(latents[:, t])
        return out


def _group(latent_CHW: torch.Tensor) -> torch.Tensor:
    """Four frames of one group, float64 [3, 4, 8 H, 8 W] in code values."""
    import torch

    dual = torch.from_numpy(synthesis()).to(latent_CHW.device)
    C, H, W = latent_CHW.shape
    blocks = (dual.T @ latent_CHW.reshape(C, -1).to(torch.float64)).view(3, 4, 8, 8, H, W)
    return blocks.permute(0, 1, 4, 2, 5, 3).reshape(3, 4, 8 * H, 8 * W)


def _pictures(frames_CTHW: torch.Tensor) -> torch.Tensor:
    """3x3 picture of each 8x8 block, row major: integers below 2^24, [C, T, 9, H / 8, W / 8].

    In float32 on a CPU. A GPU may round float32 factors to 11 bits (TF32), so there it is float64.
    """
    import torch

    C, T, H, W = frames_CTHW.shape
    dtype = torch.float32 if frames_CTHW.device.type == "cpu" else torch.float64
    f = torch.from_numpy(spatial_filters()).to(frames_CTHW.device, dtype)
    kernels = torch.einsum("iy,jx->ijyx", f, f).view(9, 1, 8, 8)
    images = frames_CTHW.reshape(C * T, 1, H, W).to(dtype)
    return torch.nn.functional.conv2d(images, kernels, stride=8).view(C, T, 9, H // 8, W // 8)


def _channels(pictures_CTPHW: torch.Tensor) -> torch.Tensor:
    """Raw latents of groups of four frames from their blocks' pictures: float64 [16, T / 4, H, W], in code values."""
    import torch

    C, T, P, H, W = pictures_CTPHW.shape
    weights = torch.from_numpy(picture_weights()).to(pictures_CTPHW.device, torch.float64).view(CHANNELS, -1)
    groups = (
        pictures_CTPHW.to(torch.float64).view(C, T // 4, 4, P, H * W).permute(1, 0, 2, 3, 4).reshape(T // 4, -1, H * W)
    )
    integers = torch.matmul(weights, groups).view(T // 4, CHANNELS, H, W).transpose(0, 1)  # below 2^44: exact
    return integers * torch.from_numpy(scales()).to(integers.device).view(-1, 1, 1, 1)


@functools.cache
def picture_weights() -> np.ndarray:
    """Integer weights of all channels over the pictures of a group, [16, 3 colours, 4 frames, 9]."""
    colour, time = np.array(RGB_TO_YCBCR), np.array(TEMPORAL)
    mean, slope = np.ones(3, np.int64), np.array([1, 0, -1])
    still = [(0, 0, y, x) for y in np.eye(3, dtype=np.int64) for x in np.eye(3, dtype=np.int64)]
    moving = [(0, 1, mean, mean), (0, 1, mean, slope), (0, 1, slope, mean), (0, 2, mean, mean), (0, 3, mean, mean)]
    chroma = [(1, 0, mean, mean), (2, 0, mean, mean)]
    rows = [np.einsum("c,t,y,x->ctyx", colour[c], time[t], y, x) for c, t, y, x in (*still, *moving, *chroma)]
    return np.stack(rows).reshape(CHANNELS, 3, 4, 9)


@functools.cache
def analysis() -> np.ndarray:
    """Integer weights of all channels over pixels, [16, 3 colours, 4, 8, 8]: the codec as one matrix."""
    f = spatial_filters()
    pictures = np.einsum("iy,jx->ijyx", f, f).reshape(9, 8, 8)
    return np.einsum("nctp,pyx->nctyx", picture_weights(), pictures)


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
    luma = np.linalg.pinv(analysis()[:14, 0].reshape(14, -1) / RGB_TO_YCBCR[0][0]).T
    chroma = [np.linalg.pinv(analysis()[n, 0].reshape(1, -1) / RGB_TO_YCBCR[n - 13][0]).T[0] for n in (14, 15)]
    rgb = np.linalg.inv(np.array(RGB_TO_YCBCR, dtype=np.float64))
    planes = [*((rgb[:, 0], d) for d in luma), (rgb[:, 1], chroma[0]), (rgb[:, 2], chroma[1])]
    return np.stack([np.outer(colour, d).ravel() for colour, d in planes]) / scales()[:, None]
