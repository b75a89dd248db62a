"""CogVideoX: 16 channels, stride 4x8x8, one scale for all channels.

Its decoder gives 4T - 3 frames for an odd number T of latent frames, and 4T for an even one, which then no longer match
the frames that were encoded: hence frames of 8k + 1, as its models have (49, 81), so that T is odd.
"""

from __future__ import annotations

from collections.abc import Sequence

from vidpipe.vaes.diffusers_vae import DiffusersVae


class CogVideoXVae(DiffusersVae):
    """`AutoencoderKLCogVideoX`; stored = raw * scaling_factor.

    `invert_scale_latents` of CogVideoX-1.5 concerns the image condition of its image-to-video pipeline, not these.
    """

    name = "cogvideox"
    model_class = "AutoencoderKLCogVideoX"
    frame_step = 8
    config_keys = ("latent_channels", "scaling_factor", "temporal_compression_ratio", "block_out_channels")

    def geometry(self) -> dict[str, int]:
        spatial = 2 ** (len(self.config["block_out_channels"]) - 1)
        return {
            "channels": self.config["latent_channels"],
            "stride_t": int(self.config["temporal_compression_ratio"]),
            "stride_h": spatial,
            "stride_w": spatial,
        }

    def constants(self) -> tuple[Sequence[float], Sequence[float]]:
        channels = self.config["latent_channels"]
        return [0.0] * channels, [1 / self.config["scaling_factor"]] * channels
