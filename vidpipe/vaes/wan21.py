"""Wan 2.1: 16 channels, stride 4x8x8; and Wan 2.2 (5B), the same classes with 48 channels, stride 4x16x16.

The encoder is causal. diffusers gives it the first frame, then four at a time; each convolution keeps the last two
frames of its input, in lists on the model. Nothing in it looks further, so any multiple of four gives the same latents
(its norm is per pixel, its attention per frame). Here a step is a function from (frames, kept) to (latents, kept) of up
to 16 frames, which `torch.compile` takes whole: three graphs a bucket (first frame, first chunk, later chunks).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from schemas.errors import UserError
from vidpipe.vaes.diffusers_vae import DiffusersVae, compiled

if TYPE_CHECKING:
    import torch

STRIDE_T = 4
MAX_CHUNK = 16
MAX_ELEMENTS = 1 << 30
"""Of one activation: cuDNN counts elements in 31 bits, and two frames are kept beside a chunk's."""


class Wan21Vae(DiffusersVae):
    """`AutoencoderKLWan`; normalised by the checkpoint's mean and std."""

    name = "wan2.1"
    model_class = "AutoencoderKLWan"
    defaults: ClassVar[dict[str, Any]] = {
        "z_dim": 16,
        "patch_size": None,
        "scale_factor_temporal": 4,
        "scale_factor_spatial": 8,
    }

    def _value(self, key: str) -> Any:
        return self.config.get(key, self.defaults[key])

    def geometry(self) -> dict[str, int]:
        spatial = self._value("scale_factor_spatial")
        return {
            "channels": self._value("z_dim"),
            "stride_t": self._value("scale_factor_temporal"),
            "stride_h": spatial,
            "stride_w": spatial,
        }

    def constants(self) -> tuple[Sequence[float], Sequence[float]]:
        if "latents_mean" not in self.config or "latents_std" not in self.config:
            raise UserError(f"vae {self.name}: {self.folder / 'config.json'} has no latents_mean and latents_std")
        return self.config["latents_mean"], self.config["latents_std"]

    def posterior_mean(self, x_BCTHW: torch.Tensor) -> torch.Tensor:
        if not self.compile:
            return super().posterior_mean(x_BCTHW)
        return self.in_steps(x_BCTHW, self._compiled_step, self.chunk_frames(x_BCTHW.shape))

    def chunk_frames(self, shape_BCTHW: Sequence[int]) -> int:
        """Frames a step: the largest multiple of 4 that divides the clip, up to MAX_CHUNK and MAX_ELEMENTS."""
        B, _, T, H, W = shape_BCTHW
        pixels = B * self.config.get("base_dim", 96) * H * W
        sizes = (
            n for n in range(MAX_CHUNK, STRIDE_T, -STRIDE_T) if (T - 1) % n == 0 and (n + 2) * pixels <= MAX_ELEMENTS
        )
        return next(sizes, STRIDE_T)

    @functools.cached_property
    def _compiled_step(self) -> Any:
        return compiled(self.step)

    def in_steps(self, x_BCTHW: torch.Tensor, step: Any, chunk_frames: int = STRIDE_T) -> torch.Tensor:
        """What diffusers' loop over chunks computes, through `step`."""
        import torch
        from diffusers.models.autoencoders.autoencoder_kl_wan import patchify

        if self._value("patch_size"):
            x_BCTHW = patchify(x_BCTHW, patch_size=self._value("patch_size"))
        kept: list[torch.Tensor | None] = [None] * self.model._cached_conv_counts["encoder"]
        out = []
        for start in [0, *range(1, x_BCTHW.shape[2], chunk_frames)]:
            chunk = x_BCTHW[:, :, start : start + (chunk_frames if start else 1)]
            if self.channels_last:
                chunk = chunk.contiguous(memory_format=torch.channels_last_3d)
            latents, kept = step(chunk, kept)
            out.append(latents)
        moments = self.model.quant_conv(torch.cat(out, 2))
        return moments.chunk(2, 1)[0]

    def step(
        self, chunk_BCTHW: torch.Tensor, kept: list[torch.Tensor | None]
    ) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        """Encode one chunk (one frame, then multiples of four) after those whose last frames are in `kept`."""
        kept = list(kept)
        return self.model.encoder(chunk_BCTHW, feat_cache=kept, feat_idx=[0]), kept


class Wan22Vae(Wan21Vae):
    """Wan 2.2's VAE of the 5B model."""

    name = "wan2.2"
    defaults: ClassVar[dict[str, Any]] = {
        "z_dim": 48,
        "patch_size": 2,
        "scale_factor_temporal": 4,
        "scale_factor_spatial": 16,
    }
