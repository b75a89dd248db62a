"""Conditions that the VAE itself encodes: some frames shown, all others blank (mid-grey, 0 in [-1, 1])."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from schemas.errors import UserError
from vidpipe.conditioners.base import Conditioner

if TYPE_CHECKING:
    import torch

    from schemas.buckets import Bucket
    from vidpipe.vaes.base import Vae


class FirstFrame(Conditioner):
    """First frame, then blanks: image-to-video of Wan 2.1 and 2.2 (`WanImageToVideoPipeline.prepare_latents`)."""

    name = "first-frame"
    column = "first_frame_latent"
    meaning = "VAE encoding of the first frame followed by blanks, shaped and normalised as the latent"
    normalised = True
    shown: Sequence[int] = (0,)

    def __init__(self, *, source: str = "", device: str = "cpu") -> None:
        pass

    def shape(self, vae: Vae, bucket: Bucket) -> tuple[int, ...]:
        return bucket.latent_shape(vae.space)

    def encode(self, frames_BCTHW: torch.Tensor, vae: Vae) -> torch.Tensor:
        return vae.encode_shown(frames_BCTHW, self.shown)


class FirstLastFrame(FirstFrame):
    """First and last frame with blanks between."""

    name = "first-last-frame"
    column = "first_last_frame_latent"
    meaning = "VAE encoding of first and last frame with blanks between, shaped and normalised as the latent"
    shown = (0, -1)


class ReferenceFrames(Conditioner):
    """Frames encoded as images, each on its own.

    Args:
        positions: of the frames, as fractions of the clip in [0, 1].
    """

    name = "reference-frames"
    column = "reference_latents"
    meaning = "VAE encoding of single frames, each as an image, one after another on the time axis; normalised"
    normalised = True

    def __init__(self, *, source: str = "", device: str = "cpu", positions: Sequence[float] = (0.0,)) -> None:
        if not positions or not all(0 <= p <= 1 for p in positions):
            raise UserError(f"reference-frames: positions must be fractions in [0, 1], found {list(positions)}")
        self.positions = tuple(float(p) for p in positions)

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "positions": list(self.positions)}

    def shape(self, vae: Vae, bucket: Bucket) -> tuple[int, ...]:
        C, _, H, W = bucket.latent_shape(vae.space)
        return C, len(self.positions), H, W

    def encode(self, frames_BCTHW: torch.Tensor, vae: Vae) -> torch.Tensor:
        import torch

        last = frames_BCTHW.shape[2] - 1
        chosen = [round(p * last) for p in self.positions]
        return torch.cat([vae.encode(frames_BCTHW[:, :, t : t + 1]) for t in chosen], 2)
