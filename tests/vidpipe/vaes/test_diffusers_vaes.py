"""Every VAE of diffusers equals diffusers called by hand, on small random checkpoints saved here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import BucketMismatch, LatentSpaceMismatch, UserError
from schemas.registry import VAES, load_vae
from vidpipe.vaes.base import make_vae

diffusers = pytest.importorskip("diffusers")

WAN = {"base_dim": 8, "dim_mult": [1, 1, 2, 2], "num_res_blocks": 1}
BLOCKS = {"block_out_channels": (8, 8, 8, 8), "layers_per_block": 1, "norm_num_groups": 4}
LTX = {
    "latent_channels": 8, "block_out_channels": (8, 8, 8, 8), "decoder_block_out_channels": (8, 8, 8, 8),
    "layers_per_block": (1, 1, 1, 1, 1), "decoder_layers_per_block": (1, 1, 1, 1, 1),
}  # fmt: skip
IMAGE = {
    "latent_channels": 16, "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
    "use_quant_conv": False, "use_post_quant_conv": False,
} | BLOCKS  # fmt: skip

# name: (class, constructor arguments, (channels, stride_t, stride), a size on the rule)
SMALL: dict[str, tuple[str, dict[str, Any], tuple[int, int, int], tuple[int, int, int]]] = {
    "wan2.1": ("AutoencoderKLWan", WAN, (16, 4, 8), (9, 32, 48)),
    "wan2.2": (
        "AutoencoderKLWan",
        WAN | {
            "z_dim": 48, "in_channels": 12, "out_channels": 12, "patch_size": 2, "is_residual": True,
            "scale_factor_spatial": 16, "latents_mean": [0.1] * 48, "latents_std": [0.5] * 48,
            "temperal_downsample": [False, True, True], "decoder_base_dim": 8,
        },
        (48, 4, 16),
        (9, 32, 48),
    ),
    "hunyuan-video": ("AutoencoderKLHunyuanVideo", BLOCKS, (16, 4, 8), (9, 32, 48)),
    "cogvideox": (
        "AutoencoderKLCogVideoX",
        {k: v for k, v in BLOCKS.items() if k != "norm_num_groups"} | {"norm_num_groups": 4, "latent_channels": 16},
        (16, 4, 8),
        (9, 32, 48),
    ),
    "ltx-video": ("AutoencoderKLLTXVideo", LTX, (8, 8, 32), (9, 64, 64)),
    "flux": ("AutoencoderKL", IMAGE | {"scaling_factor": 0.3611, "shift_factor": 0.1159}, (16, 1, 8), (1, 32, 48)),
    "sd3": ("AutoencoderKL", IMAGE | {"scaling_factor": 1.5305, "shift_factor": 0.0609}, (16, 1, 8), (2, 32, 48)),
}  # fmt: skip


def by_hand(name: str, model: Any, frames: torch.Tensor) -> torch.Tensor:
    """What a user of diffusers writes, by the pipelines of each model."""
    x = (frames.float() / 255) * 2 - 1
    with torch.no_grad():
        if name in ("flux", "sd3"):
            z = torch.stack([model.encode(x[:, :, t]).latent_dist.mode() for t in range(x.shape[2])], 2)
            return (z - model.config.shift_factor) * model.config.scaling_factor
        z = model.encode(x).latent_dist.mode()
    if name.startswith("wan"):
        mean = torch.tensor(model.config.latents_mean).view(1, -1, 1, 1, 1)
        std = torch.tensor(model.config.latents_std).view(1, -1, 1, 1, 1)
        return (z - mean) / std
    if name == "ltx-video":
        mean, std = model.latents_mean.view(1, -1, 1, 1, 1), model.latents_std.view(1, -1, 1, 1, 1)
        return (z - mean) * model.config.scaling_factor / std
    return z * model.config.scaling_factor


@pytest.fixture(scope="module", params=sorted(SMALL))
def saved(request, tmp_path_factory) -> tuple[str, Path, Any]:
    """Name, folder and model of a small random checkpoint."""
    name = request.param
    cls, arguments, *_ = SMALL[name]
    torch.manual_seed(0)
    model = getattr(diffusers, cls)(**arguments).eval().requires_grad_(False)
    if name == "ltx-video":
        model.latents_mean.copy_(torch.linspace(-1, 1, 8))
        model.latents_std.copy_(torch.linspace(0.5, 2, 8))
    folder = tmp_path_factory.mktemp(name)
    model.save_pretrained(folder)
    return name, folder, model


def random_frames(name: str, batch: int = 2, seed: int = 0) -> torch.Tensor:
    shape = (batch, 3, *SMALL[name][3])
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_every_registered_vae_is_tested_here():
    assert set(SMALL) == set(VAES) - {"dct"}


def test_equals_diffusers_by_hand(saved):
    name, folder, model = saved
    vae = make_vae(name, source=str(folder), params={"dtype": "float32", "latent_dtype": "float32"})
    frames = random_frames(name)
    latents, expected = vae.encode(frames), by_hand(name, model, frames)
    assert latents.dtype == torch.float32 and latents.is_contiguous()
    channels, stride_t, stride = SMALL[name][2]
    T, H, W = frames.shape[2:]
    assert latents.shape == (2, channels, (T - 1) // stride_t + 1, H // stride, W // stride)
    torch.testing.assert_close(latents, expected, rtol=1e-5, atol=1e-5)
    assert expected.std() > 0.01


def test_encoding_is_the_mean_of_the_posterior_and_stored_in_bfloat16(saved):
    name, folder, _ = saved
    vae = make_vae(name, source=str(folder), params={"dtype": "float32"})
    exact = make_vae(name, source=str(folder), params={"dtype": "float32", "latent_dtype": "float32"})
    frames = random_frames(name)
    torch.manual_seed(1)
    first = vae.encode(frames)
    torch.manual_seed(2)
    assert torch.equal(first, vae.encode(frames))
    assert torch.equal(first, exact.encode(frames).to(torch.bfloat16))


def test_decode_equals_diffusers_by_hand(saved):
    name, folder, model = saved
    vae = make_vae(name, source=str(folder), params={"dtype": "float32"})
    space = vae.space
    shape = (1, space.channels, 1 if space.stride_t == 1 else 3, 2, 3)
    z = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    raw = z * torch.tensor(space.std).view(1, -1, 1, 1, 1) + torch.tensor(space.mean).view(1, -1, 1, 1, 1)
    with torch.no_grad():
        if name in ("flux", "sd3"):
            expected = model.decode(raw[:, :, 0]).sample[:, :, None]
        else:
            expected = model.decode(raw).sample
    frames = vae.decode(z)
    assert frames.dtype == torch.uint8
    assert frames.shape[2:] == ((shape[2] - 1) * space.stride_t + 1, 2 * space.stride_h, 3 * space.stride_w)
    wanted = ((expected.clamp(-1, 1) + 1) * 127.5).round().to(torch.int16)
    assert (frames.to(torch.int16) - wanted).abs().max() <= 1


def test_space_is_known_without_loading_weights(saved, monkeypatch):
    name, folder, _ = saved
    from vidpipe.vaes import diffusers_vae

    def refuse(*args: Any) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(diffusers_vae, "load_model", refuse)
    space = make_vae(name, source=str(folder)).space
    channels, stride_t, stride = SMALL[name][2]
    assert (space.vae, space.channels, space.stride_t, space.stride_h, space.stride_w) == (
        name, channels, stride_t, stride, stride,
    )  # fmt: skip
    assert space.source == str(folder) and len(space.revision) == 16


def test_channels_last_and_stepwise_encoding_change_only_rounding(saved):
    name, folder, _ = saved
    plain = make_vae(name, source=str(folder), params={"dtype": "float32", "latent_dtype": "float32"})
    last = make_vae(
        name, source=str(folder), params={"dtype": "float32", "latent_dtype": "float32", "channels_last": True}
    )
    frames = random_frames(name)
    torch.testing.assert_close(last.encode(frames), plain.encode(frames), rtol=1e-4, atol=1e-5)
    if name.startswith("wan"):
        stepwise = plain.in_steps(plain.normalised(frames), plain.step)
        assert torch.equal(stepwise, plain.posterior_mean(plain.normalised(frames)))
        whole = plain.in_steps(plain.normalised(frames), plain.step, 8)
        torch.testing.assert_close(whole, stepwise, rtol=1e-5, atol=1e-6)


def test_wan_chunks_divide_the_clip_and_fit_cudnn(tmp_path):
    diffusers.AutoencoderKLWan(**WAN).save_pretrained(tmp_path)
    vae = make_vae("wan2.1", source=str(tmp_path))
    assert [vae.chunk_frames((1, 3, f, 64, 64)) for f in (1, 5, 9, 13, 17, 21, 81)] == [16, 4, 8, 12, 16, 4, 16]
    vae.config["base_dim"] = 96
    assert vae.chunk_frames((1, 3, 81, 480, 832)) == 16
    assert vae.chunk_frames((4, 3, 81, 480, 832)) == 4
    assert vae.chunk_frames((2, 3, 81, 720, 1280)) == 4


@pytest.mark.long
def test_compiled_encoding_changes_only_rounding(saved):
    name, folder, _ = saved
    params = {"dtype": "float32", "latent_dtype": "float32"}
    plain = make_vae(name, source=str(folder), params=params)
    fast = make_vae(name, source=str(folder), params=params | {"compile": True, "channels_last": True})
    frames = random_frames(name)
    torch.testing.assert_close(fast.encode(frames), plain.encode(frames), rtol=1e-3, atol=1e-4)


def test_a_changed_weight_is_another_revision(saved, tmp_path):
    name, folder, model = saved
    cls = type(model)
    changed = cls.from_pretrained(folder)
    with torch.no_grad():
        next(changed.encoder.parameters()).mul_(1.5)
    changed.save_pretrained(tmp_path)
    ours, theirs = (make_vae(name, source=str(f)).space for f in (folder, tmp_path))
    assert ours.revision != theirs.revision
    with pytest.raises(LatentSpaceMismatch, match="revision"):
        load_vae(name).for_space(type(ours)(**{**json.loads(ours.to_json()), "source": str(tmp_path)}))
    assert load_vae(name).for_space(ours).space.revision == ours.revision


def test_frames_off_the_rule_are_refused(saved):
    name, folder, _ = saved
    vae = make_vae(name, source=str(folder))
    frames = random_frames(name)
    with pytest.raises(BucketMismatch, match="nearest"):
        vae.encode(frames[..., :-1, :])
    if name == "cogvideox":
        with pytest.raises(BucketMismatch, match="nearest is 17x32x48"):
            vae.encode(random_frames(name).repeat(1, 1, 2, 1, 1)[:, :, :13])
    elif vae.space.stride_t > 1:
        with pytest.raises(BucketMismatch, match=f"{vae.space.stride_t}k"):
            vae.encode(frames[:, :, :-1])


def test_a_whole_pipeline_has_its_vae_in_a_folder(saved, tmp_path):
    name, folder, _ = saved
    (tmp_path / "vae").symlink_to(folder)
    assert make_vae(name, source=str(tmp_path)).space.revision == make_vae(name, source=str(folder)).space.revision


def test_wrong_sources_say_what_was_expected(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="source must name its weights"):
        make_vae("wan2.1")
    with pytest.raises(UserError, match=r"expected config\.json"):
        make_vae("wan2.1", source=str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "AutoencoderKL"}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="holds weights of AutoencoderKL, expected AutoencoderKLWan"):
        make_vae("wan2.1", source=str(tmp_path))
    with pytest.raises(UserError, match="no 'latent_channels'"):
        make_vae("flux", source=str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="the hub does not give it"):
        make_vae("wan2.1", source="no-such-owner/no-such-model")


def test_unknown_parameters_are_refused_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'dtype'"):
        make_vae("wan2.1", source="x", params={"dtyp": "float32"})
    with pytest.raises(UserError, match="set by its own key"):
        make_vae("wan2.1", source="x", params={"source": "y"})
    with pytest.raises(UserError, match=r"did you mean 'wan2\.1'"):
        make_vae("wan21")
    with pytest.raises(UserError, match="dtype must be one of"):
        make_vae("wan2.1", source="x", params={"dtype": "float8"})
