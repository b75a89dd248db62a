"""Checkpoints that are whole or absent: written aside, hashed, published by rename, verified before they are loaded.

    RUN/checkpoints/step-00000500/
      .metadata, __0_0.distcp, ...   torch.distributed.checkpoint: model, optimizer, averaged weights, by parameter name
      state.json                     step, data position, table versions, recipe
      MANIFEST.json                  size and BLAKE2b of every other file

Tensors carry names, not ranks, so that a run goes on with another number of processes. A run that was killed while it
saved leaves a hidden folder, which the next start removes. Loading takes the newest checkpoint whose files all have
the hashes of its manifest; the ranks share that work.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from schemas.errors import UserError
from trainer.optim import Average
from trainer.parallel.shard import settle
from trainer.parallel.world import World

log = logging.getLogger("trainer")

FOLDER = "checkpoints"
PREFIX = "step-"
HIDDEN = ".saving-"
MANIFEST = "MANIFEST.json"
STATE = "state.json"
_BLOCK_BYTES = 1 << 22
_OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to save, and what to keep.

    Attributes:
        every: steps between checkpoints; 0: only the last step's.
        keep: the newest so many stay; 0: all.
    """

    every: int = 1000
    keep: int = 3

    def __post_init__(self) -> None:
        if self.every < 0 or self.keep < 0:
            raise UserError("checkpoint: every and keep must not be negative")


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer | None, average: Average) -> dict[str, Any]:
    """What a checkpoint holds beside `state.json`; tensors are those of the run, so that loading fills them."""
    settle(model)
    state: dict[str, Any] = {"model": get_model_state_dict(model), "average": average.weights}
    if optimizer is not None:
        state["optimizer"] = get_optimizer_state_dict(model, optimizer, options=_OPTIONS)
    return state


def save(
    run: Path,
    step: int,
    state: Mapping[str, Any],
    world: World,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Average,
    keep: int = 0,
) -> Path:
    """Write a checkpoint; all ranks call it. Returns its folder, which exists only once it is complete.

    Args:
        state: JSON values for `state.json`.
    """
    root = run / FOLDER
    final = root / f"{PREFIX}{step:08d}"
    work = Path(world.broadcast(str(root / f"{HIDDEN}{step:08d}-{uuid.uuid4().hex[:8]}")))
    if world.is_main:
        work.mkdir(parents=True)
    world.barrier()
    with _quiet():
        dcp.save(tensors_of(model, optimizer, average), checkpoint_id=work, no_dist=world.size == 1)
    if world.is_main:
        _write(work / STATE, json.dumps({"step": step, **state}, indent=1))
    world.barrier()
    names = sorted(p.name for p in work.iterdir())
    hashes = {n: _hash(work / n) for n in names[world.rank :: world.size]}
    merged = {name: entry for part in world.collect(hashes) for name, entry in part.items()}
    if world.is_main:
        _write(work / MANIFEST, json.dumps({"step": step, "files": merged}, indent=1))
        _publish(work, final)
        _prune(root, keep)
    world.barrier()
    return final


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning that a single process needs no process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _write(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _publish(work: Path, final: Path) -> None:
    _sync_folder(work)
    if final.exists():  # saved again after a resume from an older one
        shutil.rmtree(final)
    work.rename(final)
    _sync_folder(final.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _prune(root: Path, keep: int) -> None:
    for folder in checkpoints(root.parent)[keep:] if keep else []:
        doomed = root / f"{HIDDEN}old-{folder.name}"
        folder.rename(doomed)  # so that it is never half there either
        shutil.rmtree(doomed)


def _hash(path: Path) -> dict[str, Any]:
    digest = hashlib.blake2b(digest_size=32)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return {"size_bytes": path.stat().st_size, "blake2b": digest.hexdigest()}


def checkpoints(run: Path) -> list[Path]:
    """Published checkpoints, newest first."""
    root = run / FOLDER
    return sorted(root.glob(f"{PREFIX}*"), reverse=True) if root.is_dir() else []


def remove_leftovers(run: Path) -> None:
    """Remove what a killed run left half written; only the run that owns the folder calls it."""
    root = run / FOLDER
    for folder in root.glob(f"{HIDDEN}*") if root.is_dir() else []:
        shutil.rmtree(folder, ignore_errors=True)


def problems(folder: Path, part: int = 0, of: int = 1) -> list[str]:
    """What is wrong with a checkpoint's files, checking every `of`-th from `part`; empty when it verifies."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError) as error:
        return [f"{MANIFEST}: {error}"]
    found = []
    for name in sorted(files)[part::of]:
        path = folder / name
        if not path.is_file():
            found.append(f"{name} is missing")
        elif path.stat().st_size != files[name]["size_bytes"]:
            found.append(f"{name} has {path.stat().st_size} bytes instead of {files[name]['size_bytes']}")
        elif _hash(path) != files[name]:
            found.append(f"{name} does not have the hash of its manifest")
    return found


def newest_verified(run: Path, world: World) -> Path | None:
    """The newest checkpoint that verifies, or None; all ranks call it and agree. The others are named in the log."""
    for name in world.broadcast([str(p) for p in checkpoints(run)]):
        found = [p for part in world.collect(problems(Path(name), world.rank, world.size)) for p in part]
        if not found:
            return Path(name)
        if world.is_main:
            log.warning("checkpoint %s is damaged (%s); falling back to an older one", name, "; ".join(found[:3]))
    return None


def find(run: Path, step: int | None, world: World) -> Path:
    """A verified checkpoint: of that step, or the newest.

    Raises:
        UserError: there is none.
    """
    if step is None:
        folder = newest_verified(run, world)
        if folder is None:
            raise UserError(f"run {run}: no checkpoint that verifies in {run / FOLDER}")
        return folder
    folder = run / FOLDER / f"{PREFIX}{step:08d}"
    if not folder.is_dir():
        known = ", ".join(str(int(p.name.removeprefix(PREFIX))) for p in checkpoints(run)) or "none"
        raise UserError(f"run {run}: no checkpoint of step {step}; there are: {known}")
    if found := problems(folder):
        raise UserError(f"checkpoint {folder} is damaged: {'; '.join(found[:3])}")
    return folder


def read_state(folder: Path) -> dict[str, Any]:
    """`state.json` of a checkpoint."""
    return json.loads((folder / STATE).read_text(encoding="utf-8"))


def load(
    folder: Path,
    world: World,
    *,
    model: nn.Module,
    average: Average,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Fill model, averaged weights and (if given) optimizer, whatever the number of ranks that saved it.

    Raises:
        UserError: the checkpoint is of a model of other shapes.
    """
    state = tensors_of(model, optimizer, average)
    try:
        with _quiet():
            dcp.load(state, checkpoint_id=folder, no_dist=world.size == 1)
    except (RuntimeError, ValueError, dcp.CheckpointException) as error:
        reason = str(error).strip().splitlines()[-1]
        raise UserError(f"checkpoint {folder} does not fit this model: {reason}; was [model] changed?") from error
    set_model_state_dict(model, state["model"])
    average.weights = state["average"]
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, state["optimizer"], options=_OPTIONS)


def load_weights(folder: Path, model: nn.Module, weights: str) -> bool:
    """Fill a whole model in this process with the `average` or the `model` weights; False if there is no average."""
    own = model.state_dict()
    held = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    averaged = weights == "average" and any(name.startswith("average.") for name in held)
    part = "average" if averaged else "model"
    with _quiet():
        dcp.load({part: own}, checkpoint_id=folder, no_dist=True)
    model.load_state_dict(own)
    return averaged
