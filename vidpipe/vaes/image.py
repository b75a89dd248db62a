"""Image VAEs of FLUX and SD3: 16 channels, stride 8x8, one shift and scale. A clip is encoded frame by frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vidpipe.vaes.diffusers_vae import DiffusersVae

if TYPE_CHECKING:
    import torch


class ImageVae(DiffusersVae):
    """`AutoencoderKL`; stored = (raw - shift_factor) * scaling_factor."""

    model_class = "AutoencoderKL"
    config_keys = ("latent_channels", "scaling_factor", "block_out_channels")

    def geometry(self) -> dict[str, int]:
        spatial = 2 ** (len(self.config["block_out_channels"]) - 1)
        return {"channels": self.config["latent_channels"], "stride_t": 1, "stride_h": spatial, "stride_w": spatial}

    def constants(self) -> tuple[Sequence[float], Sequence[float]]:
        channels = self.config["latent_channels"]
        shift = self.config.get("shift_factor") or 0.0
        return [shift] * channels, [1 / self.config["scaling_factor"]] * channels

    def posterior_mean(self, x_BCTHW: torch.Tensor) -> torch.Tensor:
        return framewise(super().posterior_mean, x_BCTHW, self.channels_last)

    def sample(self, z_BCTHW: torch.Tensor) -> torch.Tensor:
        return framewise(super().sample, z_BCTHW, self.channels_last)


class FluxVae(ImageVae):
    """FLUX.1's VAE."""

    name = "flux"


class Sd3Vae(ImageVae):
    """Stable Diffusion 3's VAE."""

    name = "sd3"


def framewise(function, x_BCTHW: torch.Tensor, channels_last: bool) -> torch.Tensor:
    """Call a function of images [B, C, H, W] on all frames of clips."""
    import torch

    B, _, T = x_BCTHW.shape[:3]
    images = x_BCTHW.transpose(1, 2).flatten(0, 1)
    images = images.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    return function(images).unflatten(0, (B, T)).transpose(1, 2)
