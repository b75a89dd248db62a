"""Wan checkpoints in diffusers' folder format: `config.json` beside `diffusion_pytorch_model*.safetensors`.

Read and written without importing diffusers: parameter names and shapes are the same on both sides (`wan.py`).
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from schemas.errors import UserError
from trainer.models.wan import WanConfig

CLASS_NAME = "WanTransformer3DModel"
WEIGHTS = "diffusion_pytorch_model"
TEXT_LENGTH = 512
"""Wan's text embeddings are padded with zero rows to this length before the transformer sees them."""

_WANTED = {"qk_norm": ("rms_norm_across_heads",), "image_dim": (None,), "added_kv_proj_dim": (None,)}
_IGNORED = {"pos_embed_seq_len", "window_size", "add_img_emb", *_WANTED}


def find_folder(path: str | Path) -> Path:
    """Folder of the transformer: `path` itself, or its `transformer` subfolder where `path` is a whole pipeline."""
    root = Path(path)
    for folder in (root, root / "transformer"):
        config = folder / "config.json"
        if config.is_file() and json.loads(config.read_text()).get("_class_name") == CLASS_NAME:
            return folder
    raise UserError(f"{path}: no diffusers checkpoint of a {CLASS_NAME} here (config.json and {WEIGHTS}*.safetensors)")


def read_config(path: str | Path) -> WanConfig:
    """Read config.json; keys of other variants (image to video) are refused by name."""
    folder = find_folder(path)
    values = json.loads((folder / "config.json").read_text())
    values = {key: value for key, value in values.items() if not key.startswith("_")}
    for key, wanted in _WANTED.items():
        if key in values and values[key] not in wanted:
            raise UserError(f"{folder}/config.json: {key} = {values[key]!r} is not supported, only {wanted[0]!r}")
    known = {f.name for f in dataclasses.fields(WanConfig)}
    unknown = sorted(values.keys() - known - _IGNORED)
    if unknown:
        raise UserError(f"{folder}/config.json: unknown keys {', '.join(unknown)}; not a Wan 2.1 text-to-video model?")
    chosen = {key: value for key, value in values.items() if key in known}
    chosen["patch_size"] = tuple(chosen.get("patch_size", (1, 2, 2)))
    chosen["out_channels"] = chosen.get("out_channels") or chosen.get("in_channels", 16)
    return WanConfig(**{"text_length": TEXT_LENGTH, **_diffusers_defaults(), **chosen})


def _diffusers_defaults() -> dict[str, Any]:
    """What diffusers assumes for a key that config.json leaves out, where it differs from ours."""
    return {"num_attention_heads": 40, "ffn_dim": 13824, "num_layers": 40}


def read_weights(path: str | Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Read all tensors, from one file or from the shards that an index names."""
    from safetensors.torch import load_file

    folder = find_folder(path)
    index = folder / f"{WEIGHTS}.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = [f"{WEIGHTS}.safetensors"]
    state: dict[str, torch.Tensor] = {}
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"{folder}: {name} is missing")
        state.update({key: value.to(dtype) for key, value in load_file(folder / name).items()})
    return {key: value for key, value in state.items() if "norm_added_q" not in key}


def load_weights(model: torch.nn.Module, path: str | Path) -> None:
    """Copy a checkpoint into `model`; raise UserError on a missing, unexpected or differently shaped tensor."""
    state, own = read_weights(path), model.state_dict()
    problems = [f"missing {name}" for name in sorted(own.keys() - state.keys())]
    problems += [f"unexpected {name}" for name in sorted(state.keys() - own.keys())]
    problems += [
        f"{name} is {list(state[name].shape)} instead of {list(own[name].shape)}"
        for name in sorted(own.keys() & state.keys())
        if state[name].shape != own[name].shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise UserError(f"{path} does not fit the model: {'; '.join(problems[:3])}{more}")
    model.load_state_dict(state)


def write(folder: str | Path, config: WanConfig, state: dict[str, torch.Tensor], max_shard_size: str = "10GB") -> None:
    """Write a folder that `diffusers.WanTransformer3DModel.from_pretrained` reads."""
    from huggingface_hub import save_torch_state_dict

    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = dataclasses.asdict(config)
    del values["text_length"]
    values |= {"qk_norm": "rms_norm_across_heads", "image_dim": None, "added_kv_proj_dim": None}
    values |= {"pos_embed_seq_len": None, "_class_name": CLASS_NAME, "patch_size": list(config.patch_size)}
    contiguous = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    save_torch_state_dict(
        contiguous, root, filename_pattern=WEIGHTS + "{suffix}.safetensors", max_shard_size=max_shard_size
    )
    (root / "config.json").write_text(json.dumps(dict(sorted(values.items())), indent=2) + "\n")
