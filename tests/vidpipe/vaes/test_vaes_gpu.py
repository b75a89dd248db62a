"""On a GPU: full configurations (random weights) against diffusers by hand, kernels against float32, dct's bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from vidpipe.vaes.base import make_vae
from vidpipe.vaes.dct import DctVae

pytestmark = pytest.mark.gpu

IMAGE = {
    "latent_channels": 16, "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2,
    "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
    "use_quant_conv": False, "use_post_quant_conv": False,
}  # fmt: skip
WAN22 = {
    "base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "in_channels": 12, "out_channels": 12, "patch_size": 2,
    "is_residual": True, "scale_factor_spatial": 16, "temperal_downsample": [False, True, True],
    "latents_mean": [0.0] * 48, "latents_std": [1.0] * 48,
}  # fmt: skip
FULL: dict[str, tuple[str, dict[str, Any]]] = {
    "wan2.1": ("AutoencoderKLWan", {}),
    "wan2.2": ("AutoencoderKLWan", WAN22),
    "hunyuan-video": ("AutoencoderKLHunyuanVideo", {}),
    "cogvideox": ("AutoencoderKLCogVideoX", {}),
    "ltx-video": ("AutoencoderKLLTXVideo", {}),
    "flux": ("AutoencoderKL", IMAGE | {"scaling_factor": 0.3611, "shift_factor": 0.1159}),
    "sd3": ("AutoencoderKL", IMAGE | {"scaling_factor": 1.5305, "shift_factor": 0.0609}),
}


def frames(num: int = 17, height: int = 128, width: int = 192) -> torch.Tensor:
    t, y, x = torch.meshgrid(*(torch.arange(n, dtype=torch.float32) for n in (num, height, width)), indexing="ij")
    planes = [128 + 60 * torch.sin(x / (9 + c) + t / 3) + 50 * torch.cos(y / (7 + c) - t / 4) for c in range(3)]
    return torch.stack(planes).clamp(0, 255).to(torch.uint8)[None].cuda()


def checkpoint(name: str, folder: Path) -> str:
    import diffusers

    cls, arguments = FULL[name]
    torch.manual_seed(0)
    getattr(diffusers, cls)(**arguments).save_pretrained(folder)
    return str(folder)


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.float() - exact.float()).norm() / exact.float().norm())


@pytest.mark.parametrize("name", sorted(FULL))
def test_full_configuration_equals_diffusers_by_hand(name, tmp_path):
    source = checkpoint(name, tmp_path)
    params = {"channels_last": False, "compile": False, "latent_dtype": "float32"}
    vae: Any = make_vae(name, source=source, device="cuda", params=params)
    clip = frames(1 if name in ("flux", "sd3") else 17)
    x = ((clip.float() / 255) * 2 - 1).to(torch.bfloat16)
    with torch.no_grad():
        z = vae.model.encode(x[:, :, 0]).latent_dist.mode()[:, :, None] if clip.shape[2] == 1 else None
        z = vae.model.encode(x).latent_dist.mode() if z is None else z
    mean, std = (torch.tensor(v, device="cuda").view(1, -1, 1, 1, 1) for v in (vae.space.mean, vae.space.std))
    assert relative(vae.encode(clip), (z.float() - mean) / std) < 5e-3  # cuDNN may pick another algorithm
    assert vae.encode(clip).is_cuda


@pytest.mark.parametrize("name", ["wan2.1", "wan2.2"])
def test_compiled_channels_last_is_no_further_from_float32_than_diffusers(name, tmp_path):
    source = checkpoint(name, tmp_path)

    def encode(**params: Any) -> torch.Tensor:
        return make_vae(name, source=source, device="cuda", params={"latent_dtype": "float32", **params}).encode(
            frames(33)
        )

    exact = encode(dtype="float32", channels_last=False, compile=False)
    diffusers_error = relative(encode(channels_last=False, compile=False), exact)
    ours = relative(encode(channels_last=True, compile=True), exact)
    assert 0 < ours < 1.2 * diffusers_error


def test_dct_gives_the_same_bits_as_on_a_cpu():
    clip = torch.randint(0, 256, (2, 3, 17, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    on_cpu, on_gpu = DctVae().encode(clip), DctVae(device="cuda").encode(clip)
    assert torch.equal(on_cpu.view(torch.int16), on_gpu.cpu().view(torch.int16))
    assert (DctVae().decode(on_cpu).int() - DctVae(device="cuda").decode(on_cpu).cpu().int()).abs().max() <= 1
