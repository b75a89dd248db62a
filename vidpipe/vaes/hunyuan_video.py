"""HunyuanVideo: 16 channels, stride 4x8x8, one scale for all channels.

diffusers encodes more than 16 frames in overlapping runs of 16 that it blends, and so do we: a latent depends on that.
"""

from __future__ import annotations

from collections.abc import Sequence

from vidpipe.vaes.diffusers_vae import DiffusersVae


class HunyuanVideoVae(DiffusersVae):
    """`AutoencoderKLHunyuanVideo`; stored = raw * scaling_factor."""

    name = "hunyuan-video"
    model_class = "AutoencoderKLHunyuanVideo"
    config_keys = ("latent_channels", "scaling_factor", "temporal_compression_ratio", "spatial_compression_ratio")

    def geometry(self) -> dict[str, int]:
        spatial = self.config["spatial_compression_ratio"]
        return {
            "channels": self.config["latent_channels"],
            "stride_t": self.config["temporal_compression_ratio"],
            "stride_h": spatial,
            "stride_w": spatial,
        }

    def constants(self) -> tuple[Sequence[float], Sequence[float]]:
        channels = self.config["latent_channels"]
        return [0.0] * channels, [1 / self.config["scaling_factor"]] * channels
