"""The packed DiT against diffusers' on the same weights."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from schemas.errors import UserError
from trainer.models import diffusers_format
from trainer.models.attention import Segments
from trainer.models.wan import Layout, Wan, WanConfig

diffusers = pytest.importorskip("diffusers")

SHAPES = [(3, 4, 6), (1, 8, 8), (2, 6, 4)]  # latent T, H, W
TEXTS = [7, 1, 12]
TIMESTEPS = [3.0, 501.25, 997.0]


def patchify(latent_CTHW: torch.Tensor, patch: tuple[int, ...]) -> torch.Tensor:
    c, t, h, w = latent_CTHW.shape
    pt, ph, pw = patch
    x = latent_CTHW.reshape(c, t // pt, pt, h // ph, ph, w // pw, pw)
    return x.permute(1, 3, 5, 0, 2, 4, 6).reshape(-1, c * pt * ph * pw)


def grid(shape: tuple[int, ...], patch: tuple[int, ...]) -> list[int]:
    return [n // p for n, p in zip(shape, patch)]


@pytest.fixture(scope="module", params=[(1, 2, 2), (1, 1, 1)], ids=["patch122", "patch111"])
def pair(request, tiny_config, tmp_path_factory):
    """Diffusers' model with random weights everywhere, and ours loaded from its saved folder."""
    torch.manual_seed(0)
    values = dataclasses.asdict(dataclasses.replace(tiny_config, patch_size=request.param))
    del values["text_length"]
    theirs = diffusers.WanTransformer3DModel(**values).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.randn_like(p) * (0.3 if p.ndim == 1 else 0.15))
    folder = tmp_path_factory.mktemp("theirs")
    theirs.save_pretrained(folder)
    ours = Wan(diffusers_format.read_config(folder), "sdpa").eval()
    diffusers_format.load_weights(ours, folder)
    return theirs, ours


def samples(seed: int = 0) -> list[tuple[torch.Tensor, float, torch.Tensor]]:
    g = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(4, *shape, generator=g), time, torch.randn(length, 24, generator=g))
        for shape, time, length in zip(SHAPES, TIMESTEPS, TEXTS)
    ]


def run_packed(model: Wan, chosen, num_padding: int = 0) -> list[torch.Tensor]:
    patch = model.config.patch_size
    tokens = [patchify(latent, patch) for latent, _, _ in chosen]
    lengths, texts = [len(t) for t in tokens], [text for _, _, text in chosen]
    times, grids = [t for _, t, _ in chosen], [grid(latent.shape[1:], patch) for latent, _, _ in chosen]
    if num_padding:
        tokens.append(torch.zeros(num_padding, tokens[0].shape[1]))
        texts.append(torch.zeros(1, 24))
        times, grids = [*times, 0.0], [*grids, [1, 1, 1]]
    layout = Layout(
        Segments([len(t) for t in tokens]), Segments([len(t) for t in texts]), torch.tensor(grids, dtype=torch.int32)
    )
    out = model(torch.cat(tokens), torch.tensor(times), torch.cat(texts), layout)
    return list(out[: sum(lengths)].split(lengths))


@torch.no_grad()
def test_matches_diffusers_sample_by_sample_and_packed(pair):
    theirs, ours = pair
    expected = [
        patchify(theirs(latent[None], torch.tensor([time]), text[None]).sample[0], ours.config.patch_size)
        for latent, time, text in samples()
    ]
    assert expected[0].abs().mean() > 0.1  # random weights: not the zeros of an untrained output layer
    single = [run_packed(ours, [sample])[0] for sample in samples()]
    packed = run_packed(ours, samples())
    padded = run_packed(ours, samples(), num_padding=5)
    for e, s, p, q in zip(expected, single, packed, padded):
        scale = e.abs().max()
        assert (s - e).abs().max() <= 1e-5 * scale
        assert (p - e).abs().max() <= 1e-5 * scale
        assert (q - e).abs().max() <= 1e-5 * scale


def test_gradients_match_diffusers(pair):
    theirs, ours = pair
    theirs.zero_grad(), ours.zero_grad()
    total = sum(theirs(x[None], torch.tensor([t]), y[None]).sample.square().sum() for x, t, y in samples())
    total.backward()
    sum(out.square().sum() for out in run_packed(ours, samples())).backward()
    expected = {name: p.grad for name, p in theirs.named_parameters()}
    for name, p in ours.named_parameters():
        error = (p.grad - expected[name]).abs().max() / expected[name].abs().max()
        assert error < 2e-4, name


@torch.no_grad()
def test_export_is_read_by_diffusers(pair, tmp_path):
    theirs, ours = pair
    diffusers_format.write(tmp_path, ours.config, ours.state_dict(), max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1  # sharded, with an index
    again = diffusers.WanTransformer3DModel.from_pretrained(tmp_path)
    for name, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert diffusers_format.read_config(tmp_path) == ours.config
    back = Wan(ours.config)
    diffusers_format.load_weights(back, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(back.state_dict().values(), ours.state_dict().values()))


def test_import_refuses_what_does_not_fit(pair, tmp_path):
    _, ours = pair
    with pytest.raises(UserError, match="no diffusers checkpoint"):
        diffusers_format.read_config(tmp_path)
    diffusers_format.write(tmp_path, ours.config, ours.state_dict())
    other = Wan(dataclasses.replace(ours.config, ffn_dim=32))
    with pytest.raises(UserError, match=r"blocks\.0\.ffn\.net\.0\.proj\.bias is \[64\] instead of \[32\]"):
        diffusers_format.load_weights(other, tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"image_dim": null', '"image_dim": 1280'))
    with pytest.raises(UserError, match="image_dim = 1280 is not supported"):
        diffusers_format.read_config(tmp_path)


def test_presets_have_the_published_sizes():
    def millions(name: str) -> float:
        with torch.device("meta"):
            model = Wan(WanConfig(**Wan.PRESETS[name]))
        return sum(p.numel() for p in model.parameters()) / 1e6

    assert 1 < millions("toy") < 2
    assert millions("wan2.1-1.3b") == pytest.approx(1418.99, abs=0.01)  # diffusers' count of the same configuration


def test_meta_count_equals_diffusers():
    with torch.device("meta"):
        theirs = diffusers.WanTransformer3DModel(num_attention_heads=12, ffn_dim=8960, num_layers=30)
        ours = Wan(WanConfig(**Wan.PRESETS["wan2.1-1.3b"]))
    assert {n: p.shape for n, p in ours.named_parameters()} == {n: p.shape for n, p in theirs.named_parameters()}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"patch_size": (1, 2)}, "patch_size: expected three"),
        ({"attention_head_dim": 7}, "attention_head_dim: expected an even"),
        ({"num_layers": 0}, "num_layers: expected at least 1"),
    ],
)
def test_config_is_checked(values, message):
    with pytest.raises(UserError, match=message):
        WanConfig(**values)
