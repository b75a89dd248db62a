"""What the VAEs of diffusers have in common: one file each names its class, its latent space and its frame rule.

The result is that of calling diffusers by hand: frames / 255 * 2 - 1, `encode(...).latent_dist.mode()`, then the
space's normalisation in float32. `channels_last` and `compile` only choose other kernels for the same arithmetic.
"""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from schemas.errors import UserError
from schemas.latent_spaces import LatentSpace
from vidpipe.vaes import checkpoint
from vidpipe.vaes.base import Vae, torch_dtype

if TYPE_CHECKING:
    import torch

DTYPES = ("bfloat16", "float16", "float32")
MAX_GRAPHS = 256
"""Compiled graphs a process: three or so a bucket."""


class DiffusersVae(Vae):
    """A VAE of diffusers, its weights loaded at the first use.

    Args:
        source: folder or hub id (`owner/name`, `owner/name@revision`), of the VAE or of a pipeline that has one.
        dtype: of weights and computation; float32 is slow on a GPU and the reference.
        latent_dtype: of the stored latents.
        channels_last: keep tensors in channels-last order, which convolutions on a GPU prefer; None: on a GPU.
        compile: `torch.compile` the encoder, once a bucket and batch size; None: on a GPU.
        space_name: folder under `latents/`, to keep apart weights of one kind; the registry name by default.
    """

    model_class: ClassVar[str]
    config_keys: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        source: str = "",
        device: str = "cpu",
        dtype: str = "bfloat16",
        latent_dtype: str = "bfloat16",
        channels_last: bool | None = None,
        compile: bool | None = None,
        space_name: str = "",
    ) -> None:
        for key, value in (("dtype", dtype), ("latent_dtype", latent_dtype)):
            if value not in DTYPES:
                raise UserError(f"vae {self.name}: {key} must be one of {', '.join(DTYPES)}, found {value!r}")
        on_gpu = device.startswith("cuda")
        self.source, self.device, self.dtype, self.latent_dtype = source, device, dtype, latent_dtype
        self.channels_last = on_gpu if channels_last is None else channels_last
        self.compile = on_gpu if compile is None else compile
        self.space_name = space_name or self.name
        self.folder = checkpoint.find(source, self.name)
        self.config = checkpoint.read_config(self.folder)
        if self.config.get("_class_name", self.model_class) != self.model_class:
            raise UserError(
                f"vae {self.name}: {self.folder} holds weights of {self.config['_class_name']}, "
                f"expected {self.model_class}"
            )
        missing = [k for k in self.config_keys if k not in self.config]
        if missing:
            raise UserError(f"vae {self.name}: {self.folder / 'config.json'} has no {missing[0]!r}")

    @classmethod
    def decoding_options(cls, device: str) -> dict[str, Any]:
        return {"dtype": "bfloat16" if device.startswith("cuda") else "float32", "compile": False}

    @abc.abstractmethod
    def geometry(self) -> dict[str, int]:
        """`channels`, `stride_t`, `stride_h`, `stride_w` by the checkpoint's configuration."""

    @abc.abstractmethod
    def constants(self) -> tuple[Sequence[float], Sequence[float]]:
        """Mean and std per channel: stored = (raw - mean) / std."""

    @functools.cached_property
    def space(self) -> LatentSpace:  # type: ignore[override]
        """From configuration and weight files, nothing loaded."""
        mean, std = self.constants()
        return LatentSpace(
            name=self.space_name,
            vae=self.name,
            source=self.source,
            revision=checkpoint.revision(self.folder),
            mean=tuple(mean),
            std=tuple(std),
            dtype=self.latent_dtype,
            **self.geometry(),  # type: ignore[arg-type]
        )

    @functools.cached_property
    def model(self) -> Any:
        """The diffusers model on its device, in evaluation mode."""
        return load_model(self.model_class, self.folder, self.dtype, self.device, self.channels_last)

    def encode_raw(self, frames_BCTHW: torch.Tensor) -> torch.Tensor:
        import torch

        with torch.no_grad(), convolutions(self.dtype):
            return self.posterior_mean(self.normalised(frames_BCTHW)).float()

    def encode_raw_shown(self, frames_BCTHW: torch.Tensor, shown: Sequence[int]) -> torch.Tensor:
        import torch

        x = self.normalised(frames_BCTHW)
        blank = torch.zeros_like(x)
        blank[:, :, list(shown)] = x[:, :, list(shown)]
        with torch.no_grad():
            return self.posterior_mean(blank).float()

    def normalised(self, frames_BCTHW: torch.Tensor) -> torch.Tensor:
        """Frames in [-1, 1], in the compute dtype and memory format."""
        import torch

        x = frames_BCTHW.to(torch.float32).div_(255).mul_(2).sub_(1).to(torch_dtype(self.dtype))
        return x.contiguous(memory_format=torch.channels_last_3d if self.channels_last else torch.contiguous_format)

    def posterior_mean(self, x_BCTHW: torch.Tensor) -> torch.Tensor:
        """Mean of the posterior of frames in [-1, 1]."""
        if self.compile:
            self._compile_encoder()
        return self.model.encode(x_BCTHW).latent_dist.mode()

    def _compile_encoder(self) -> None:
        if not hasattr(self.model.encoder, "_uncompiled"):
            self.model.encoder._uncompiled = self.model.encoder.forward
            self.model.encoder.forward = compiled(self.model.encoder.forward)

    def decode_raw(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        import torch

        with torch.no_grad():
            return self.sample(latents_BCTHW.to(torch_dtype(self.dtype))).float().add_(1).mul_(127.5)

    def sample(self, z_BCTHW: torch.Tensor) -> torch.Tensor:
        """Frames in [-1, 1] of raw latents."""
        return self.model.decode(z_BCTHW).sample


@contextlib.contextmanager
def convolutions(dtype: str) -> Iterator[None]:
    """cuDNN tries its algorithms once a shape, since shapes are the buckets'; float32 is float32, not TF32."""
    import torch

    cudnn = torch.backends.cudnn
    old = cudnn.benchmark, cudnn.allow_tf32
    cudnn.benchmark, cudnn.allow_tf32 = True, old[1] and dtype != "float32"
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.allow_tf32 = old


def load_model(model_class: str, folder: Path, dtype: str, device: str, channels_last: bool) -> Any:
    """A diffusers model from a folder of safetensors."""
    import diffusers
    import torch

    cls = getattr(diffusers, model_class)
    try:
        model = cls.from_pretrained(folder, torch_dtype=torch_dtype(dtype), use_safetensors=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"cannot load {model_class} from {folder}: {str(error).splitlines()[0]}") from error
    model = model.eval().requires_grad_(False).to(device)
    if channels_last:
        for parameter in model.parameters():
            if parameter.ndim == 5:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last_3d)
            elif parameter.ndim == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return model


def compiled(function: Any) -> Any:
    """`torch.compile` for fixed shapes: one graph a shape, as many as there are buckets."""
    import torch
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MAX_GRAPHS)
    torch._dynamo.config.accumulated_recompile_limit = max(
        torch._dynamo.config.accumulated_recompile_limit, 4 * MAX_GRAPHS
    )
    return torch.compile(function, dynamic=False)
