"""Where a VAE's weights are, and what they are called."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

from schemas.errors import UserError
from schemas.ids import canonical_json

PATTERNS = ("config.json", "*.safetensors", "*.safetensors.index.json")


def find(source: str, vae: str) -> Path:
    """Folder with `config.json` and weights.

    Args:
        source: a folder, or a hub id `owner/name` or `owner/name@revision`; a pipeline's `vae` folder is found.
        vae: registry name, for messages.
    Raises:
        UserError: nothing there, or no safetensors weights in it.
    """
    if not source:
        raise UserError(f"vae {vae}: source must name its weights: a folder or a hub id")
    root = Path(source) if Path(source).is_dir() else _download(source, vae)
    for folder in (root, root / "vae"):
        if (folder / "config.json").is_file() and (folder / "config.json").stat().st_size and weight_files(folder):
            return folder
    raise UserError(f"vae {vae}: expected config.json and *.safetensors in {root} or its folder `vae`; found neither")


@functools.lru_cache(maxsize=8)
def _download(source: str, vae: str) -> Path:
    from huggingface_hub import snapshot_download

    name, _, revision = source.partition("@")
    patterns = [f"{folder}{p}" for folder in ("", "vae/") for p in PATTERNS]
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=patterns))
    except (OSError, ValueError) as error:  # every error of the hub client is one of the two
        text = str(error).strip().splitlines()[0]
        raise UserError(f"vae {vae}: {source!r} is no folder, and the hub does not give it: {text}") from None


def weight_files(folder: Path) -> list[Path]:
    """Safetensors files that diffusers loads, sorted: the unnamed variant where there are several."""
    found = sorted(folder.glob("*.safetensors"))
    plain = [p for p in found if p.name.count(".") == 1]
    return plain or found


def read_config(folder: Path) -> dict[str, Any]:
    """The model's configuration; UserError if it is not JSON."""
    try:
        return json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise UserError(f"{folder / 'config.json'}: not JSON: {error}") from None


@functools.lru_cache(maxsize=8)
def revision(folder: Path) -> str:
    """Name what the model computes: 16 hex digits over its weight files' bytes and its configuration.

    Keys of the configuration that begin with an underscore (who saved it, from where) do not count.
    """
    digest = hashlib.blake2b(digest_size=8)
    config = {k: v for k, v in read_config(folder).items() if not k.startswith("_")}
    digest.update(canonical_json(config))
    for path in weight_files(folder):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
