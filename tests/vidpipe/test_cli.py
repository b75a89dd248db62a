"""Bad input gets one clear line and exit status 2, never a traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import av
import click
import pytest
from click.testing import CliRunner, Result

from schemas.outcomes import Outcome
from vidpipe import cli
from vidpipe.cli import main
from vidpipe.engine import Tally
from vidpipe.store.dataset import Dataset

RECIPE = 'stages = ["ingest", "analyze", "encode"]\n[encode]\nwhere = "motion_score > 0.01"\nbuckets = ["5x32x32"]\n'


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "footage").mkdir()
    (tmp_path / "footage" / "a.txt").write_text("not a video")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


def run(place: Path, *more: str, source: str = "footage", recipe: str = "recipe.toml", output: str = "d") -> Result:
    arguments = ["run", str(place / recipe), "--source", str(place / source), "--output", str(place / output)]
    return CliRunner().invoke(main, [*arguments, "--scheduler", "sync", "--no-report", *more])


def assert_refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("vidpipe: "), result.stderr
    for word in words:
        assert word in lines[0]


def test_no_such_folder(place: Path) -> None:
    assert_refused(run(place, source="nowhere"), "nowhere", "no such file or folder")
    assert not (place / "d").exists()


def test_no_such_clip_table(place: Path) -> None:
    assert_refused(run(place, source="nowhere.csv"), "clip table", "nowhere.csv", "No such file")
    assert not (place / "d").exists()


def test_empty_folder(place: Path) -> None:
    (place / "empty").mkdir()
    assert_refused(run(place, source="empty"), "empty", "no files")


def test_a_run_that_does_nothing_leaves_the_report_alone(place: Path) -> None:
    arguments = ["run", str(place / "recipe.toml"), "--source", str(place / "footage"), "--output", str(place / "d")]
    arguments += ["--scheduler", "sync"]
    report = place / "d" / "report.html"
    assert CliRunner().invoke(main, arguments).exit_code == 0
    first = report.stat().st_mtime_ns
    second = CliRunner().invoke(main, arguments)
    assert "nothing to do" in second.output and report.stat().st_mtime_ns == first
    report.unlink()
    assert CliRunner().invoke(main, arguments).exit_code == 0 and report.exists()


def test_no_such_recipe_and_not_toml(place: Path) -> None:
    assert_refused(run(place, recipe="other.toml"), "no such file")
    (place / "bad.toml").write_text("a = [")
    assert_refused(run(place, recipe="bad.toml"), "not TOML")


def test_unknown_key(place: Path) -> None:
    assert_refused(run(place, "--set", "encode.bucket='5x32x32'"), "encode.bucket", "did you mean 'buckets'")
    assert_refused(run(place, "--set", "engine.wrokers=2"), "did you mean 'workers'")
    assert_refused(run(place, "--set", "analyze.scorers=['blurr']"), "did you mean 'blur'")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stages=[]", ["stages: expected at least one"]),
        ("engine.workers=-3", ["engine.workers must be at least 0, found -3"]),
        ("engine.max_error_fraction=7", ["engine.max_error_fraction must be in [0, 1]"]),
        ("engine.unit_mb=nan", ["engine.unit_mb: expected a number, found nan"]),
        ("engine.decoder=torchcode", ["unknown decoders", "did you mean 'torchcodec'"]),
        ("ingest.files_per_unit=0", ["files_per_unit must be at least 1"]),
        ("caption.clips_per_unit=0", ["clips_per_unit must be at least 1"]),
        ("score=[{name='blur'}, {name='blur'}]", ["score: 'blur' is there twice"]),
        ("caption.captioners=[{name='sidecar'}, {name='sidecar'}]", ["two are filed under 'sidecar'"]),
        ("caption.captioners=[]", ["captioners: expected at least one"]),
        ("embed.texts_per_unit=0", ["texts_per_unit must be at least 1"]),
    ],
)
def test_values_that_cannot_work_are_told_before_anything_is_made(place: Path, override: str, words: list[str]) -> None:
    assert_refused(run(place, "--set", override), *words)
    assert not (place / "d").exists()


def test_no_output_at_all(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    arguments = ["run", "recipe.toml", "--source", "footage", "--scheduler", "sync", "--output", ""]
    assert_refused(CliRunner().invoke(main, arguments), "output '': expected a folder")


def test_queries_that_fail_while_they_run(place: Path) -> None:
    assert run(place).exit_code == 0
    for sql in ("SELECT CAST(uris[1] AS INT) FROM videos", "SELECT error('x y')", "SELECT nope"):
        result = CliRunner().invoke(main, ["query", str(place / "d"), sql])
        assert result.exit_code == 2 and result.stderr.startswith("vidpipe: query: "), result.output


def test_a_query_shows_the_start_of_long_bytes(place: Path) -> None:
    assert run(place).exit_code == 0
    sql = "SELECT encode('x')::BLOB, encode(repeat('y', 100))::BLOB"
    table, lines = (
        CliRunner().invoke(main, ["query", *how, str(place / "d"), sql]).output for how in ((), ("--json",))
    )
    assert table.splitlines()[1] == f"78\t{'79' * 32}... (100 bytes)" and "79" * 100 in lines


def test_files_that_could_not_be_read_are_asked_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vidpipe.media import files

    def down(uri: str, *_: object) -> None:
        raise OSError("the disk is away")

    with monkeypatch.context() as patch:
        patch.setattr(files, "open_bytes", down)
        assert "1 failed (io_error)" in run(place).stdout
    assert "nothing to do" in run(place).stdout
    assert "1 rejected" in run(place, "--retry-failed").stdout
    dataset = Dataset(place / "d").open()
    assert dataset.read("videos")["reason"].to_pylist() == ["not_media"]
    assert dataset.read("outcomes/ingest")["reason"].to_pylist() == ["not_media"]


def test_json_of_a_query_has_ids_in_hex_and_no_numbers_that_json_lacks(place: Path) -> None:
    Dataset(place / "d").create()
    sql = "SELECT [unhex('AB')] a, {'k': unhex('cd')} b, 'nan'::DOUBLE c, [1.5, 'inf'::DOUBLE] d"
    result = CliRunner().invoke(main, ["query", "--json", str(place / "d"), sql])
    assert json.loads(result.stdout) == {"a": ["ab"], "b": {"k": "cd"}, "c": None, "d": [1.5, None]}


def test_a_stage_list_without_a_name(place: Path) -> None:
    assert_refused(run(place, "--stages", " ,"), "names no stage")


def test_unknown_stage(place: Path) -> None:
    assert_refused(run(place, "--stages", "encod"), "did you mean 'encode'")


def test_unknown_column_in_an_expression_is_told_before_anything_is_decoded(place: Path) -> None:
    result = run(place, "--set", "encode.where='motion_scor > 0.1'")
    assert_refused(result, "encode.where", "did you mean 'motion_score'")
    assert not (place / "d").exists()


def test_expression_that_is_no_sql(place: Path) -> None:
    assert_refused(run(place, "--set", "encode.where='motion_score >'"), "encode.where")


def test_bucket_off_the_latent_space(place: Path) -> None:
    assert_refused(run(place, "--set", "encode.buckets=['6x30x32']"), "nearest is 5x32x32")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_output(place: Path) -> None:
    (place / "closed").mkdir(mode=0o500)
    assert_refused(run(place, output="closed/d"), "cannot be written")


def test_output_that_is_a_file_or_below_one(place: Path) -> None:
    assert_refused(run(place, output="recipe.toml"), "is a file")
    assert_refused(run(place, output="recipe.toml/d"), "recipe.toml")


def test_output_that_holds_something_else(place: Path) -> None:
    assert_refused(run(place, output="footage"), "not a dataset")


def test_dataset_of_another_schema_version(place: Path) -> None:
    Dataset(place / "d").create()
    marker = json.loads((place / "d" / "dataset.json").read_text())
    (place / "d" / "dataset.json").write_text(json.dumps({**marker, "schema_version": 99}))
    assert_refused(run(place), "schema version 99", "upgrade")


def test_no_dataset(place: Path) -> None:
    for command in (["status"], ["report"], ["verify"], ["clean"], ["query"], ["lineage"]):
        extra = {"query": ["SELECT 1"], "lineage": ["ab"]}.get(command[0], [])
        assert_refused(CliRunner().invoke(main, [*command, str(place / "footage"), *extra]), "footage")


def test_dry_run_writes_nothing(place: Path) -> None:
    result = run(place, "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0].split()[:2] == ["ingest", "1"]
    assert not (place / "d").exists()


def test_dry_run_says_that_a_run_would_be_refused(place: Path) -> None:
    with av.open(str(place / "footage" / "grey.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.height, stream.width, stream.pix_fmt = 32, 32, "gray"
        for _ in range(20):
            container.mux(stream.encode(av.VideoFrame(32, 32, "gray")))
        container.mux(stream.encode())
    assert run(place, "--stages", "ingest,analyze").exit_code == 0
    changed = ("--stages", "analyze", "--set", "analyze.trim_frames=2")
    told = run(place, *changed, "--dry-run")
    assert told.exit_code == 0, told.output
    assert told.stdout.splitlines()[0].split()[:2] == ["analyze", "1"]
    assert "would be refused" in told.stdout and "--redo analyze" in told.stdout
    assert_refused(run(place, *changed), "--redo analyze")
    for more in ("--redo", "--adopt"):
        told = run(place, *changed, more, "analyze", "--dry-run")
        (line,) = told.stdout.splitlines()
        assert line.split()[:2] == ["analyze", str(int(more == "--redo"))]
    assert_refused(run(place, *changed), "--redo analyze")  # asking has written nothing


def test_the_last_lines_say_why_rows_were_not_kept() -> None:
    tally = Tally()
    tally.add([Outcome(id=b"", status="kept")] * 2)
    tally.add([Outcome(id=b"", status="failed", reason="io_error")] * 4)
    for count, reason in enumerate(("too_dark", "too_small", "too_short", "no_bucket"), 1):
        tally.add([Outcome(id=b"", status="rejected", reason=reason)] * count)
    tally.add([Outcome(id=b"", status="rejected", reason="expression", rule="motion > 1")] * 9)

    @click.command()
    def command() -> None:
        cli._print_counts({"encode": tally, "idle": Tally()})

    line = CliRunner().invoke(command).stdout
    rejected = "19 rejected (motion > 1 is false 9, no_bucket 4, too_short 3, ...)"
    assert line == f"encode           2 kept, {rejected}, 4 failed (io_error)\n"


def test_weights_of_stages_that_do_not_run_need_not_be_there(place: Path) -> None:
    (place / "weights.toml").write_text(
        'stages = ["ingest", "analyze", "caption", "embed", "encode"]\n[encode]\nvae = "wan2.1"\nsource = "/nowhere"\n'
        'buckets = ["5x32x32"]\n[embed]\nencoder = "umt5"\nsource = "/nowhere"\n'
    )
    done = run(place, "--stages", "ingest,analyze", recipe="weights.toml")
    assert done.exit_code == 0, done.output
    for stage in ("encode", "embed"):
        assert_refused(run(place, "--stages", stage, recipe="weights.toml"), "/nowhere")
    assert_refused(run(place, "--stages", "ingest", "--redo", "embd", recipe="weights.toml"), "did you mean 'embed'")
