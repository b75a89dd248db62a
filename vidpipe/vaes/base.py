"""What the pipeline and the trainer ask of a VAE.

Legend of shapes: B clips, C channels, T frames, H height, W width.

Encoding is deterministic: the posterior's mean, never a sample. Stored latents are normalised per channel,
stored = (raw - mean) / std, with the constants of the latent space, and rounded once, to the space's dtype.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from schemas import registry
from schemas.buckets import Bucket
from schemas.errors import BucketMismatch, LatentSpaceMismatch, UserError
from schemas.latent_spaces import LatentSpace
from vidpipe.construct import construct

if TYPE_CHECKING:
    import torch


class Vae(abc.ABC):
    """Frames to normalised latents and back.

    Attributes:
        name: registry name.
        device: torch device, such as `cpu` or `cuda:0`.
        dtype: what it computes in; `identity` names it.
        frame_step: frames come in frame_step * k + 1, where that is more than the space's temporal stride; else 0.
    """

    name: str
    device: str
    dtype: str
    frame_step: int = 0

    @property
    @abc.abstractmethod
    def space(self) -> LatentSpace:
        """Latent space; known without loading any weights."""

    @abc.abstractmethod
    def encode_raw(self, frames_BCTHW: torch.Tensor) -> torch.Tensor:
        """Latents [B, C, T, H, W] before normalisation, in at least the compute dtype's precision."""

    def encode_raw_shown(self, frames_BCTHW: torch.Tensor, shown: Sequence[int]) -> torch.Tensor:
        """As `encode_raw`, with all frames blank but those of `shown`; UserError for a VAE that cannot."""
        raise UserError(f"vae {self.name} encodes no blank frames, so it cannot give image conditions")

    @abc.abstractmethod
    def decode_raw(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """Frames [B, 3, T, H, W] as floats in code values (0 to 255, unclamped) from latents before normalisation."""

    @classmethod
    def for_space(cls, space: LatentSpace, device: str = "cpu") -> Vae:
        """The VAE that decodes a table's latents; LatentSpaceMismatch if the weights found are not those."""
        vae = cls(source=space.source, device=device, **cls.decoding_options(device))  # type: ignore[call-arg]
        differing = [
            k
            for k in ("revision", "channels", "stride_t", "stride_h", "stride_w", "mean", "std")
            if getattr(vae.space, k) != getattr(space, k)
        ]
        if differing:
            raise LatentSpaceMismatch(
                f"latent space {space.name}: {space.vae} from {space.source or 'this release'} is not the VAE that "
                f"made these latents: {differing[0]} is {getattr(vae.space, differing[0])!r}, expected "
                f"{getattr(space, differing[0])!r}"
            )
        return vae

    @classmethod
    def decoding_options(cls, device: str) -> dict[str, Any]:
        """Constructor arguments that decoding wants on a device."""
        return {}

    def identity(self) -> dict[str, Any]:
        """What shapes the latents, for the encode stage's fingerprint: JSON values."""
        space = self.space
        return {
            "vae": self.name,
            "revision": space.revision,
            "posterior": space.posterior,
            "dtype": self.dtype,
            "stored": space.dtype,
            "mean": list(space.mean),
            "std": list(space.std),
        }

    def check_bucket(self, bucket: Bucket, patch_thw: Sequence[int] = (1, 1, 1)) -> Bucket:
        """Return the bucket; BucketMismatch unless the space, the patch and the VAE's frame rule allow it."""
        bucket.check(self.space, patch_thw)
        if self.frame_step and (bucket.num_frames - 1) % self.frame_step:
            good = max(1, round((bucket.num_frames - 1) / self.frame_step) * self.frame_step + 1)
            raise BucketMismatch(
                f"bucket {bucket}: {self.name} wants frames {self.frame_step}k + 1; "
                f"nearest is {Bucket(good, bucket.height, bucket.width)}"
            )
        return bucket

    def encode(self, frames_BCTHW: torch.Tensor) -> torch.Tensor:
        """Encode clips.

        Args:
            frames_BCTHW: uint8 RGB in [0, 255]; T = stride_t * k + 1, H and W multiples of the strides.
        Returns:
            [B, C, T', H', W'] on the VAE's device, normalised, in the space's dtype, contiguous.
        Raises:
            BucketMismatch: a size off the space's rule.
        """
        check_frames(frames_BCTHW, self)
        return self._stored(self.encode_raw(frames_BCTHW.to(self.device, non_blocking=True)))

    def encode_shown(self, frames_BCTHW: torch.Tensor, shown: Sequence[int]) -> torch.Tensor:
        """Encode clips of which only some frames are shown: all others are blank, 0 in [-1, 1].

        Args:
            shown: indices of frames, negative ones from the end.
        Returns:
            as `encode`.
        """
        check_frames(frames_BCTHW, self)
        raw = self.encode_raw_shown(frames_BCTHW.to(self.device, non_blocking=True), shown)
        return self._stored(raw)

    def _stored(self, raw: torch.Tensor) -> torch.Tensor:
        mean, std = self._constants(raw)
        return ((raw - mean) / std).to(torch_dtype(self.space.dtype)).contiguous()

    def decode(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """Decode latents.

        Args:
            latents_BCTHW: [B, C, T', H', W'], normalised.
        Returns:
            uint8 RGB [B, 3, T, H, W] on the VAE's device, T = stride_t * (T' - 1) + 1.
        Raises:
            LatentSpaceMismatch: another number of channels.
        """
        import torch

        space = self.space
        if latents_BCTHW.ndim != 5 or latents_BCTHW.shape[1] != space.channels:
            raise LatentSpaceMismatch(
                f"{self.name}: expected latents [B, {space.channels}, T, H, W], found {list(latents_BCTHW.shape)}"
            )
        wide = torch.float64 if self.dtype == "float64" else torch.float32
        normalised = latents_BCTHW.to(self.device, wide)
        mean, std = self._constants(normalised)
        frames = self.decode_raw(normalised * std + mean)
        return frames.round_().clamp_(0, 255).to(torch.uint8)

    def _constants(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        def shaped(values: tuple[float, ...]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float64).to(like.dtype).to(like.device).view(1, -1, 1, 1, 1)

        return shaped(self.space.mean), shaped(self.space.std)


def torch_dtype(name: str) -> torch.dtype:
    """`bfloat16` and the like as torch's."""
    import torch

    return getattr(torch, name)


def check_frames(frames_BCTHW: torch.Tensor, vae: Vae) -> None:
    """Raise BucketMismatch unless the frames are uint8 RGB of a size that the VAE can encode."""
    import torch

    if frames_BCTHW.dtype != torch.uint8 or frames_BCTHW.ndim != 5 or frames_BCTHW.shape[1] != 3:
        raise BucketMismatch(
            f"{vae.name}: expected uint8 frames [B, 3, T, H, W], found {frames_BCTHW.dtype} {list(frames_BCTHW.shape)}"
        )
    vae.check_bucket(Bucket(*frames_BCTHW.shape[2:]))


def psnr_db(a: torch.Tensor, b: torch.Tensor) -> float:
    """Peak signal-to-noise ratio in dB of two uint8 tensors of one shape; `inf` if they are equal."""
    import torch

    if a.shape != b.shape:
        raise ValueError(f"psnr_db: shapes {list(a.shape)} and {list(b.shape)} differ")
    mse = (a.to(torch.float64) - b.to(a.device, torch.float64)).square_().mean().item()
    return float("inf") if mse == 0 else float(10 * torch.log10(torch.tensor(255.0**2 / mse, dtype=torch.float64)))


def make_vae(name: str, *, source: str = "", device: str = "cpu", params: Mapping[str, Any] | None = None) -> Vae:
    """VAE by registry name, its parameters from a recipe; UserError on an unknown name or key."""
    return construct(registry.load_vae(name), params or {}, "encode.params", source=source, device=device)
