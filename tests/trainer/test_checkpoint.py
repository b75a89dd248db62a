"""Checkpoints: whole or absent, verified, resumed exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from schemas.errors import UserError
from trainer import checkpoint
from trainer.checkpoint import CheckpointConfig
from trainer.loop import LoopConfig, Trainer
from trainer.metrics import LogConfig, read_metrics
from trainer.models.wan import Wan
from trainer.optim import Average, OptimizerConfig, make_optimizer
from trainer.parallel.world import World

WORLD = World()


def layout(step):
    return [[step % 4, 1, 5], [2, 3 + step]]


@pytest.fixture
def start(packs, tiny_config, tmp_path):
    """Make a trainer of a run, at step 0."""

    def make(run=tmp_path / "run", steps=6, seed=0, **values):
        torch.manual_seed(seed)
        config = LoopConfig(
            steps=steps,
            optimizer=OptimizerConfig(lr=3e-3, warmup_steps=2),
            checkpoint=CheckpointConfig(**{"every": 2, "keep": 0, **values}),
            log=LogConfig(every=1, tensorboard=False),
        )
        model = Wan(tiny_config, "sdpa")
        return Trainer(model, config, WORLD, packs.Source(layout), null_text_ME=torch.zeros(1, 24), run=run)

    return make


def losses(run):
    return [row["loss"] for row in read_metrics(run / "metrics.jsonl") if "loss" in row]


def test_resumed_run_equals_an_uninterrupted_one(start, tmp_path):
    whole = start(tmp_path / "whole")
    whole.train()
    half = start(tmp_path / "half")

    class Killed(Exception):
        pass

    def kill(step):
        if step == 5:  # one step after the checkpoint of step 4
            raise Killed

    with pytest.raises(Killed):
        half.train(kill)
    again = start(tmp_path / "half", seed=99)  # other initial weights: all of them come from the checkpoint
    again.resume(checkpoint.newest_verified(tmp_path / "half", WORLD))
    assert again.step == 4
    again.train()
    assert losses(tmp_path / "half") == losses(tmp_path / "whole")
    assert len(losses(tmp_path / "whole")) == 6
    for (name, a), b in zip(whole.model.named_parameters(), again.model.parameters()):
        assert torch.equal(a, b), name
    for name, a in whole.average.weights.items():
        assert torch.equal(a, again.average.weights[name]), name
    first, second = (t.optimizer.state_dict()["state"] for t in (whole, again))
    assert all(torch.equal(first[k]["exp_avg_sq"], second[k]["exp_avg_sq"]) for k in first)


def test_what_is_on_disk(start, tmp_path):
    trainer = start()
    trainer.state = {"recipe": {"steps": 6}, "versions": {"0/clips": 3}}
    trainer.train()
    run = tmp_path / "run"
    names = [p.name for p in checkpoint.checkpoints(run)]
    assert names == ["step-00000006", "step-00000004", "step-00000002"]
    folder = checkpoint.checkpoints(run)[1]
    assert checkpoint.problems(folder) == []
    state = checkpoint.read_state(folder)
    assert (state["step"], state["source"], state["versions"]) == (4, {"step": 4}, {"0/clips": 3})
    listed = set(json.loads((folder / "MANIFEST.json").read_text())["files"])
    assert listed == {p.name for p in folder.iterdir()} - {"MANIFEST.json"}
    assert {".metadata", "state.json"} < listed


def test_keep(start, tmp_path):
    start(keep=2).train()
    assert [p.name[-1] for p in checkpoint.checkpoints(tmp_path / "run")] == ["6", "4"]
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest"])
def test_load_falls_back_to_the_newest_that_verifies(start, tmp_path, caplog, damage):
    start().train()
    run = tmp_path / "run"
    newest, older = checkpoint.checkpoints(run)[:2]
    data = newest / "__0_0.distcp"
    if damage == "flip":
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    elif damage == "truncate":
        os.truncate(data, data.stat().st_size - 1)
    elif damage == "remove":
        data.unlink()
    else:
        (newest / "MANIFEST.json").write_text("{")
    assert checkpoint.newest_verified(run, WORLD) == older
    assert "step-00000006 is damaged" in caplog.text
    with pytest.raises(UserError, match=r"step-00000006 is damaged"):
        checkpoint.find(run, 6, WORLD)
    with pytest.raises(UserError, match="no checkpoint of step 5; there are: 6, 4, 2"):
        checkpoint.find(run, 5, WORLD)


def test_none_left(start, tmp_path):
    run = tmp_path / "run"
    assert checkpoint.newest_verified(run, WORLD) is None
    start(steps=1, every=0).train()
    (checkpoint.checkpoints(run)[0] / "state.json").write_text("")
    assert checkpoint.newest_verified(run, WORLD) is None
    with pytest.raises(UserError, match="no checkpoint that verifies"):
        checkpoint.find(run, None, WORLD)


def test_another_model_is_refused(start, tmp_path, tiny_config):
    import dataclasses

    start(steps=2).train()
    folder = checkpoint.newest_verified(tmp_path / "run", WORLD)
    for change in ({"ffn_dim": 32}, {"num_layers": 3}):
        model = Wan(dataclasses.replace(tiny_config, **change), "sdpa")
        optimizer = make_optimizer(model, OptimizerConfig())
        with pytest.raises(UserError, match="does not fit this model"):
            checkpoint.load(folder, WORLD, model=model, average=Average(model, 0.9), optimizer=optimizer)


def test_weights_alone(start, tmp_path, tiny_config):
    trainer = start(steps=2)
    trainer.train()
    folder = checkpoint.newest_verified(tmp_path / "run", WORLD)
    model = Wan(tiny_config, "sdpa")
    assert checkpoint.load_weights(folder, model, "average")
    assert all(torch.equal(p, trainer.average.weights[n]) for n, p in model.named_parameters())
    assert not checkpoint.load_weights(folder, model, "model")
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), trainer.model.parameters()))


KILLED_WHILE_SAVING = """
import os, sys, runpy
from pathlib import Path
import torch
from trainer import checkpoint
point, run = sys.argv[1], Path(sys.argv[2])
def die(*args, **kwargs):
    os.kill(os.getpid(), 9)
if point == "data":
    write = checkpoint._write
    checkpoint._write = die
elif point == "manifest":
    checkpoint._publish = die
elif point == "rename":
    Path.rename = die
model = torch.nn.Linear(2, 2)
from trainer.optim import Average, OptimizerConfig, make_optimizer
from trainer.parallel.world import World
parts = {"model": model, "optimizer": make_optimizer(model, OptimizerConfig()), "average": Average(model, 0.9)}
checkpoint.save(run, 7, {}, World(), **parts)
"""


@pytest.mark.parametrize("point", ["data", "manifest", "rename"])
def test_killed_while_saving_leaves_nothing_half_there(tmp_path, point):
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_SAVING, point, str(tmp_path)], capture_output=True)
    assert done.returncode == -9
    assert checkpoint.checkpoints(tmp_path) == []
    assert list((tmp_path / "checkpoints").iterdir()) != []
    checkpoint.remove_leftovers(tmp_path)
    assert list((tmp_path / "checkpoints").iterdir()) == []
