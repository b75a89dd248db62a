"""LTX-Video: 128 channels, stride 8x32x32, so buckets are 8k + 1 frames and multiples of 32 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from schemas.errors import UserError
from vidpipe.vaes import checkpoint
from vidpipe.vaes.diffusers_vae import DiffusersVae

if TYPE_CHECKING:
    import torch


class LtxVideoVae(DiffusersVae):
    """`AutoencoderKLLTXVideo`; mean and std per channel are in its weights: stored = (raw - mean) * scale / std."""

    name = "ltx-video"
    model_class = "AutoencoderKLLTXVideo"
    config_keys = ("latent_channels", "patch_size", "patch_size_t", "spatio_temporal_scaling")

    def geometry(self) -> dict[str, int]:
        steps = 2 ** sum(self.config["spatio_temporal_scaling"])
        spatial = self.config.get("spatial_compression_ratio") or self.config["patch_size"] * steps
        return {
            "channels": self.config["latent_channels"],
            "stride_t": self.config.get("temporal_compression_ratio") or self.config["patch_size_t"] * steps,
            "stride_h": spatial,
            "stride_w": spatial,
        }

    def constants(self) -> tuple[Sequence[float], Sequence[float]]:
        scale = self.config.get("scaling_factor", 1.0)
        mean, std = (self._buffer(k) for k in ("latents_mean", "latents_std"))
        return mean, [s / scale for s in std]

    def _buffer(self, name: str) -> list[float]:
        from safetensors import safe_open

        for path in checkpoint.weight_files(self.folder):
            with safe_open(path, "pt") as file:
                if name in file.keys():  # noqa: SIM118 (not a dict)
                    return file.get_tensor(name).double().tolist()
        raise UserError(f"vae {self.name}: {self.folder} has no tensor {name!r}")

    def sample(self, z_BCTHW: torch.Tensor) -> torch.Tensor:
        import torch

        at = None
        if self.config.get("timestep_conditioning"):  # the decoder is told how noisy its input is: not at all
            at = torch.zeros(len(z_BCTHW), dtype=z_BCTHW.dtype, device=z_BCTHW.device)
        return self.model.decode(z_BCTHW, at).sample
