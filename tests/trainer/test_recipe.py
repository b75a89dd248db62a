"""Recipes: TOML onto configurations, and the model's configuration for a dataset."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.config import to_toml
from schemas.errors import LatentSpaceMismatch, UnknownKey, UserError
from schemas.latent_spaces import LatentSpace
from trainer import recipe
from trainer.models import diffusers_format
from trainer.models.wan import Wan
from trainer.recipe import ModelConfig

PIPELINES = Path(__file__).resolve().parents[2] / "pipelines" / "train"
BASE = "steps = 5\n[data]\nlatents = 'dct'\n[plan]\ntoken_budget = 64\npacks_per_step = 1\n"


def space(**values) -> LatentSpace:
    base = {"name": "dct", "vae": "dct", "revision": "1", "channels": 16, "stride_t": 4, "stride_h": 8, "stride_w": 8}
    base |= values
    return LatentSpace(**{"mean": (0.0,) * base["channels"], "std": (1.0,) * base["channels"], **base})


def write(tmp_path, text=BASE) -> Path:
    path = tmp_path / "r.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", sorted(PIPELINES.glob("*.toml")), ids=lambda p: p.stem)
def test_shipped_recipes_build_and_resolve(path):
    made = recipe.load(path, "DATASET")
    assert made.data.datasets[0].path == "DATASET"
    vae, text_dim, width = ("wan2.1", 4096, 1536) if "wan" in path.stem else ("dct", 64, 128)
    config = recipe.resolve_model(made.model, space(name=made.data.latents, vae=vae), text_dim)
    assert (config.width, config.text_dim) == (width, text_dim)


def test_round_trip(tmp_path):
    made = recipe.load(
        write(tmp_path), "D", ["flow.shift=3.0", "model.overrides.num_layers=2", "data.buckets=['1x64x64']"]
    )
    assert (made.flow.shift, made.model.overrides, made.data.buckets) == (3.0, {"num_layers": 2}, ("1x64x64",))
    again = write(tmp_path, to_toml(recipe.to_values(made)))
    assert recipe.load(again) == made


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.learning_rate=1", "unknown key 'optimizer.learning_rate'"),
        ("optimiser.lr=1", "unknown key 'optimiser'; did you mean 'optimizer'?"),
        ("steps=0", "steps: expected at least 1"),
        ("model.name=dit", "unknown model 'dit'"),
        ("parallel.dtype=float16", "parallel.dtype: expected one of 'auto', 'float32', 'bfloat16'"),
        ("optimizer.betas=[0.9]", "betas"),
        ("heldout.repeats=0", "repeats"),
        ("log.every=0", "log"),
        ("checkpoint.keep=-1", "checkpoint"),
        ("parallel.replicate=0", "replicate"),
    ],
)
def test_wrong_values_are_refused(tmp_path, override, message):
    with pytest.raises(UserError, match=message.replace("[", r"\[").replace("?", r"\?")):
        recipe.load(write(tmp_path), "D", [override])


def test_unknown_preset_and_override():
    with pytest.raises(UserError, match=r"model.preset: unknown 'wan2.1-1.3'; did you mean 'wan2.1-1.3b'\?"):
        recipe.resolve_model(ModelConfig(preset="wan2.1-1.3"), space(), 32)
    with pytest.raises(UnknownKey, match=r"'model.overrides.layers'; did you mean 'num_layers'\?"):
        recipe.resolve_model(ModelConfig(overrides={"layers": 3}), space(), 32)


def test_a_new_model_follows_the_dataset():
    made = recipe.resolve_model(ModelConfig(), space(channels=48), 64)
    assert (made.in_channels, made.out_channels, made.text_dim) == (48, 48, 64)
    assert recipe.resolve_model(ModelConfig(), space(), 0).text_dim == Wan.PRESETS["toy"]["text_dim"]
    with pytest.raises(UserError, match="text_dim = 8, but the dataset's text embeddings have width 64"):
        recipe.resolve_model(ModelConfig(overrides={"text_dim": 8}), space(), 64)
    with pytest.raises(UserError, match="in_channels = 4, but latents of space 'dct' have 16 channels"):
        recipe.resolve_model(ModelConfig(overrides={"in_channels": 4}), space(), 64)


def test_tables_of_another_vae_are_refused(tmp_path, tiny_config):
    import dataclasses

    with pytest.raises(LatentSpaceMismatch, match=r"made for latents of VAE 'wan2.1', but .* 'dct' is of 'dct'"):
        recipe.resolve_model(ModelConfig(preset="wan2.1-1.3b", vae="wan2.1"), space(), 4096)
    config = dataclasses.replace(tiny_config, in_channels=16, out_channels=16)
    diffusers_format.write(tmp_path, config, Wan(config).state_dict())
    pretrained = ModelConfig(pretrained=str(tmp_path))
    with pytest.raises(LatentSpaceMismatch, match=r"choose tables of 'wan2.1'"):
        recipe.resolve_model(pretrained, space(), 24)
    made = recipe.resolve_model(pretrained, space(name="wan2.1", vae="wan2.1"), 24)
    assert made == dataclasses.replace(config, text_length=512)
    with pytest.raises(UserError, match=r"no diffusers checkpoint"):
        recipe.resolve_model(ModelConfig(pretrained=str(tmp_path / "none")), space(), 24)
