"""The command line end to end on a small dataset, and bad input: one line on stderr, exit status 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import trainer.sample
from tests.trainer.recipes import TINY
from trainer.cli import main
from trainer.metrics import read_metrics

RECIPE = f"""
steps = 4
{TINY}
[data]
latents = "dct"
text_encoder = "synthetic"

[optimizer]
warmup_steps = 1

[checkpoint]
every = 2

[heldout]
every = 2
max_samples = 5
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A recipe, a dataset of `dct` latents under `data`, and a finished run under `run`."""
    from trainer.data.synthetic import SyntheticConfig, write_dataset
    from vidpipe.vaes.dct import DctVae

    folder = tmp_path_factory.mktemp("cli")
    config = SyntheticConfig(buckets={"5x32x32": 30, "1x32x48": 6}, space=DctVae().space, text_dim=64)
    write_dataset(str(folder / "data"), config)
    (folder / "recipe.toml").write_text(RECIPE)
    train(folder)
    return folder


def train(work: Path, *extra: str, run: str = "run", data: str = "data", recipe: str = "recipe.toml"):
    command = ["train", str(work / recipe), "--data", str(work / data), "--output", str(work / run), *extra]
    return CliRunner().invoke(main, command)


def sample(work: Path, *extra: str, output: str = "sample.mp4", run: str = "run"):
    return CliRunner().invoke(main, ["sample", str(work / run), "--output", str(work / output), "--steps", "3", *extra])


def frames(path: Path):
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return float(stream.average_rate), [f.to_ndarray(format="rgb24") for f in container.decode(stream)]


def refused(result, *parts: str) -> None:
    """Exit status 2 and one line that says so."""
    assert result.exit_code == 2, result.output
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert result.stderr.startswith("trainer: ")
    for part in parts:
        assert part in result.stderr


def test_a_run_leaves_what_it_should(work):
    run = work / "run"
    names = {p.name for p in run.iterdir()}
    assert names >= {
        "recipe.toml",
        "run.json",
        "captions.safetensors",
        "metrics.jsonl",
        "loss.svg",
        "checkpoints",
        "index",
    }
    assert [p.name for p in sorted((run / "checkpoints").iterdir())] == ["step-00000002", "step-00000004"]
    rows = read_metrics(run / "metrics.jsonl")
    assert [r["step"] for r in rows if "loss" in r] == [1, 2, 3, 4]
    assert [r["step"] for r in rows if "heldout/loss" in r] == [0, 2, 4]
    facts = json.loads((run / "run.json").read_text())
    assert facts["buckets"] == {"5x32x32": 27, "1x32x48": 5}
    assert facts["fps"] == 24.0 and facts["space"]["vae"] == "dct"


def test_the_same_command_goes_on_and_then_does_nothing(work):
    train(work, run="again")
    more = train(work, "--set", "steps=6", run="again")
    assert more.exit_code == 0, more.stderr
    rows = read_metrics(work / "again" / "metrics.jsonl")
    assert [r["step"] for r in rows if "loss" in r] == [1, 2, 3, 4, 5, 6]
    done = train(work, "--set", "steps=6", run="again")
    assert done.exit_code == 0 and "at step 6 of 6 already" in done.output
    assert len(read_metrics(work / "again" / "metrics.jsonl")) == len(rows)


def difference(some, others) -> float:
    """Mean absolute difference of pictures, in code values."""
    return float(np.mean([np.abs(a.astype(int) - b.astype(int)).mean() for a, b in zip(some, others)]))


def test_sample_writes_a_sheet_of_heldout_captions(work, monkeypatch):
    sheets, write = [], trainer.sample.write_mp4
    monkeypatch.setattr(trainer.sample, "write_mp4", lambda *what: sheets.append(what[1]) or write(*what))
    result = sample(work, "--heldout", "3")
    assert result.exit_code == 0, result.stderr
    assert "1. " in result.output and "take" in result.output  # the captions' words
    fps, pictures = frames(work / "sample.mp4")
    assert fps == 24.0 and len(pictures) == 5
    height, width, _ = pictures[0].shape
    assert height % 2 == width % 2 == 0 and width >= 400
    again = sample(work, "--heldout", "3", output="again.mp4")
    assert again.exit_code == 0
    sample(work, "--heldout", "3", "--seed", "1", output="other.mp4")
    same, other = (difference(pictures, frames(work / name)[1]) for name in ("again.mp4", "other.mp4"))
    assert sheets[0].equal(sheets[1]) and not sheets[0].equal(sheets[2])
    assert same < 1 < other  # not 0: PyAV's x264 writes other bytes for the same pictures now and then


def test_sample_size_weights_and_checkpoint(work):
    options = [
        "--size",
        "9x32x64",
        "--cfg",
        "1",
        "--fps",
        "10",
        "--weights",
        "model",
        "--checkpoint",
        "2",
        "--heldout",
        "1",
    ]
    result = sample(work, *options, output="wide.mp4")
    assert result.exit_code == 0, result.stderr
    fps, pictures = frames(work / "wide.mp4")
    assert (fps, len(pictures)) == (10.0, 9) and pictures[0].shape[1] == 2 * pictures[0].shape[0]


def test_sample_a_prompt_with_the_datasets_encoder(work):
    """The run says which encoder made its embeddings; it is loaded by that name."""
    import shutil

    from vidpipe.text_encoders.hashed_ngrams import HashedNgrams

    shutil.copytree(work / "run", work / "prompted")
    path = work / "prompted" / "run.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "text": json.loads(HashedNgrams(dim=64).metadata())}))
    result = sample(work, "--prompt", "a red ball rolls", "--prompt", "rain", run="prompted", output="prompt.mp4")
    assert result.exit_code == 0, result.stderr
    assert "2. rain" in result.output and len(frames(work / "prompt.mp4")[1]) == 5


def test_export_and_import(work):
    import torch

    from trainer import run as runs

    result = CliRunner().invoke(main, ["export", str(work / "run"), "--output", str(work / "diffusers")])
    assert result.exit_code == 0, result.stderr
    assert {"config.json", "diffusion_pytorch_model.safetensors"} == {p.name for p in (work / "diffusers").iterdir()}
    options = ["--data", str(work / "data"), "--output", str(work / "imported"), "--set", "model.overrides={}"]
    command = ["import", str(work / "diffusers"), str(work / "recipe.toml"), *options]
    refused(CliRunner().invoke(main, command), "made for latents of VAE 'wan2.1'")
    result = CliRunner().invoke(main, [*command, "--set", "model.vae=dct"])
    assert result.exit_code == 0, result.stderr
    (first, _), (second, step) = runs.load_model(work / "run"), runs.load_model(work / "imported")
    assert step == 0
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))


def plan(work: Path, *extra: str):
    return CliRunner().invoke(main, ["plan", str(work / "recipe.toml"), "--data", str(work / "data"), *extra])


def test_plan_says_how_packs_come_out(work):
    result = plan(work, "--steps", "4", "--plot", str(work / "plan.svg"))
    assert result.exit_code == 0, result.stderr
    assert "2 packs a step of 96 tokens, 2 a rank on 1 ranks" in result.output and "5x32x32" in result.output
    assert (work / "plan.svg").read_text().startswith("<svg")
    found = json.loads(plan(work, "--steps", "4", "--json", "--world-size", "2").output)
    assert (found["world_size"], found["slots"], found["rows"]) == (2, 1, 32) and 0 < found["fill"] <= 1
    refused(plan(work, "--world-size", "3"), "3 ranks")
    refused(plan(work, "--plot", str(work / "nowhere" / "x.svg")), "cannot be written")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"data": "nowhere"}, ["nowhere", "no such folder"]),
        ({"data": "empty"}, ["empty", "no clips.lance in it"]),
        ({"recipe": "none.toml"}, ["none.toml", "no such file"]),
        ({"extra": ["--set", "optimizer.learning=1"]}, ["unknown key 'optimizer.learning'", "known:"]),
        ({"extra": ["--set", "flow"]}, ["expected a.b=value"]),
        ({"extra": ["--set", "data.filter=motoin > 1"]}, ["unknown column 'motoin'"]),
        ({"extra": ["--set", "data.filter=width >"]}, ["expression"]),
        ({"extra": ["--set", "data.filter=width < 0"]}, ["no row", "width < 0"]),
        ({"extra": ["--set", "data.latents=dtc"]}, ["no latents of space 'dtc'", "did you mean 'dct'"]),
        ({"extra": ["--set", "data.text_encoder=t5"]}, ["no text embeddings of 't5'"]),
        ({"extra": ["--set", "data.buckets=['5x32x33']"]}, ["no bucket '5x32x33'"]),
        ({"extra": ["--set", "plan.token_budget=4"]}, ["token_budget 4", "5x32x32"]),
        ({"extra": ["--set", "model.vae=wan2.1"]}, ["made for latents of VAE 'wan2.1'"]),
        ({"extra": ["--set", "model.preset=huge"]}, ["model.preset: unknown 'huge'"]),
        ({"extra": ["--set", "model.attention=flash4"]}, ["'flash4' needs"]),
        ({"extra": ["--resume", "never"], "run": "run"}, ["has checkpoints up to step-00000004"]),
        (
            {"extra": ["--set", "model.overrides.num_layers=2"], "run": "run"},
            ["do not fit this model: num_layers 1 -> 2"],
        ),
        ({"extra": ["--set", "plan.seed=9"], "run": "run"}, ["the data, filter, budget or seed changed"]),
    ],
)
def test_bad_training_input(work, options, parts):
    (work / "empty").mkdir(exist_ok=True)
    extra = options.pop("extra", [])
    run = work / "run"

    def kept():
        return [sorted(p.name for p in (run / "checkpoints").iterdir()), *((run / n).read_text() for n in described)]

    described = ("recipe.toml", "run.json")
    before = kept()
    refused(train(work, *extra, **{"run": "refused", **options}), *parts)
    assert kept() == before  # what describes the run's checkpoints too


def test_unwritable_output(work):
    (work / "file").write_text("")
    refused(train(work, run="file/run"), "file/run: cannot be written")
    refused(sample(work, output="file/x.mp4"), "cannot be written")
    refused(sample(work, output="x.avi"), "expected a name that ends in .mp4")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"run": "data"}, ["no run.json in it"]),
        ({"extra": ["--size", "6x32x32"]}, ["bucket 6x32x32", "nearest is 5x32x32"]),
        ({"extra": ["--size", "big"]}, ["expected FRAMESxHEIGHTxWIDTH"]),
        ({"extra": ["--checkpoint", "3"]}, ["no checkpoint of step 3; there are: 4, 2"]),
        ({"extra": ["--prompt", "x"]}, ["unknown text_encoders 'synthetic'"]),
        ({"extra": ["--heldout", "0"]}, ["at least 1"]),
    ],
)
def test_bad_sampling_input(work, options, parts):
    refused(sample(work, *options.pop("extra", []), **options), *parts)


def test_a_dataset_of_another_schema_version_is_refused(work, tmp_path):
    import lance

    from trainer.data.synthetic import SyntheticConfig, write_dataset

    write_dataset(str(tmp_path / "new"), SyntheticConfig(buckets={"1x32x32": 8}))
    table = lance.dataset(str(tmp_path / "new" / "clips.lance"))
    table.update_schema_metadata({"vidpipe.schema_version": "99"})
    (tmp_path / "recipe.toml").write_text(RECIPE.replace('"dct"', '"synthetic"'))
    refused(train(tmp_path, data="new"), "clips.lance", "schema version 99", "upgrade vidpipe")


def test_one_line_from_a_real_process(work):
    """Nothing of torch or Lance beside the one line; and no traceback."""
    command = [sys.executable, "-m", "trainer.cli", "train", str(work / "recipe.toml"), "--data", str(work / "nowhere")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(
        [*command, "--output", str(work / "refused")], capture_output=True, text=True, env=environment, cwd=work
    )
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1 and done.stderr.startswith("trainer: ")


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in Linux's /proc")
def test_a_run_leaves_no_thread_of_its_process_group(work):
    """One that is late as the process ends would abort it, after training that went well."""
    assert train(work, "--set", "parallel.dtype=bfloat16", run="sixteen").exit_code == 0
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    assert "python" in str(names) and "gloo" not in str(names)


PHASES = """
[[phases]]
from_step = 2
data = { filter = "bucket = '1x32x48'" }
plan = { token_budget = 48 }
flow = { shift = 3.0 }
"""


def test_phases_follow_one_another_and_a_resumed_run_sees_the_same(work, caplog):
    import shutil

    (work / "phases.toml").write_text(RECIPE + PHASES)
    with caplog.at_level("INFO", "trainer"):
        assert train(work, run="phased", recipe="phases.toml").exit_code == 0
    assert "from step 2 on: Index(5 rows" in caplog.text
    rows = {r["step"]: r for r in read_metrics(work / "phased" / "metrics.jsonl") if "loss" in r}
    facts = json.loads((work / "phased" / "run.json").read_text())
    assert facts["buckets"] == {"1x32x48": 5}
    shutil.rmtree(work / "phased" / "checkpoints" / "step-00000004")
    assert train(work, run="phased", recipe="phases.toml").exit_code == 0
    again = [r for r in read_metrics(work / "phased" / "metrics.jsonl") if "loss" in r][-2:]
    assert [r["loss"] for r in again] == pytest.approx([rows[3]["loss"], rows[4]["loss"]], rel=1e-6)
    plain = {r["step"]: r["loss"] for r in read_metrics(work / "run" / "metrics.jsonl") if "loss" in r}
    assert rows[2]["loss"] == pytest.approx(plain[2], rel=1e-6) and rows[3]["loss"] != pytest.approx(plain[3], rel=1e-3)
    planned = CliRunner().invoke(
        main, ["plan", str(work / "phases.toml"), "--data", str(work / "data"), "--steps", "4"]
    )
    assert planned.exit_code == 0 and "phase 2 of 2" in planned.output


def test_wrong_phases(work):
    (work / "late.toml").write_text(RECIPE + PHASES + PHASES)
    refused(train(work, run="bad", recipe="late.toml"), "phases", "from_step must ascend")
    (work / "typo.toml").write_text(RECIPE + PHASES.replace("token_budget", "token_budgt"))
    refused(train(work, run="bad", recipe="typo.toml"), "phases[0]", "token_budgt", "did you mean 'token_budget'")
