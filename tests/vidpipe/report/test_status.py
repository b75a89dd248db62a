"""`status` counts what is known of the toy dataset, under each stage's newest parameters."""

from __future__ import annotations

import io
import json
import os

import pytest

from schemas.errors import UserError
from vidpipe.report import print_status, status
from vidpipe.report.snapshot import pipeline_order
from vidpipe.report.status import bytes_text
from vidpipe.store.lease import Lease


@pytest.fixture(scope="module")
def found(toy_dataset):
    return status(toy_dataset.root)


def stage_of(found, name):
    return next(s for s in found["stages"] if s["stage"] == name)


def test_stages_come_in_pipeline_order(found):
    names = [s["stage"] for s in found["stages"]]
    assert names == ["ingest", "analyze", "near_duplicates", "split", "caption", "embed", "encode"]
    assert sorted(["zebra", "score-blur", "encode", "analyze"], key=pipeline_order) == [
        "analyze", "score-blur", "encode", "zebra",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "kept", "rejected", "failed", "pending"),
    [
        ("ingest", 2, 1, 1, None),
        ("analyze", 2, 0, 0, 0),
        ("near_duplicates", 1, 0, 0, None),
        ("caption", 4, 0, 0, 2),
        ("embed", 1, 0, 0, 1),
        ("encode", 3, 2, 1, 0),
    ],
)
def test_counts(found, stage, kept, rejected, failed, pending):
    seen = stage_of(found, stage)
    assert (seen["kept"], seen["rejected"], seen["failed"], seen["pending"]) == (kept, rejected, failed, pending)


def test_reasons_with_their_rules(found):
    assert stage_of(found, "encode")["reasons"] == [
        {"status": "rejected", "reason": "expression", "rule": "motion_score > 0.015", "rows": 2},
        {"status": "failed", "reason": "crashed", "rule": "", "rows": 1},
    ]


def test_rows_of_other_parameters_are_told_apart(found):
    assert stage_of(found, "encode")["fingerprint"] == "print-encode"
    assert stage_of(found, "encode")["other_fingerprints"] == {"old": 1}
    assert stage_of(found, "analyze")["other_fingerprints"] == {}


def test_who_coordinates_a_stage(found, toy_dataset):
    assert stage_of(found, "embed")["coordinator"] == ""
    with Lease.acquire(toy_dataset, "embed"):
        during = status(toy_dataset.root)
    assert stage_of(during, "embed")["coordinator"].startswith(f"process {os.getpid()} on ")
    assert stage_of(during, "encode")["coordinator"] == ""
    assert stage_of(status(toy_dataset.root), "embed")["coordinator"] == ""


def test_rate_and_worker_time(found):
    """Three outcomes came in the minute between the two commits; a stage of one commit has no rate."""
    assert stage_of(found, "encode")["rows_per_second"] == pytest.approx(3 / 60)
    assert stage_of(found, "encode")["worker_seconds"] == 3.0
    assert stage_of(found, "analyze")["rows_per_second"] is None
    assert stage_of(found, "analyze")["worker_seconds"] == 10.0


def test_bucket(found):
    (bucket,) = found["buckets"]
    assert bucket["bucket"] == "17x64x96" and bucket["space"] == "toy"
    assert bucket["rows"] == 3
    assert bucket["latent_shape"] == [4, 5, 8, 12]
    assert bucket["tokens_per_row"] == 5 * 4 * 6
    assert bucket["tokens"] == 3 * 120
    assert bucket["bytes"] == 3 * 4 * 5 * 8 * 12 * 2
    assert bucket["video_seconds"] == pytest.approx(3 * 17 / 8)
    assert bucket["mean_scale"] == 0.5 and bucket["mean_cropped_fraction"] == 0.25


def test_videos_clips_captions_and_tables(found):
    assert found["videos"] == {"rows": 4, "files": 4, "usable": 2, "bytes": 10_000, "hours": pytest.approx(60 / 3600)}
    assert found["clips"] == {"rows": 6, "hours": pytest.approx(30 / 3600), "median_seconds": 5.0}
    assert found["captions"] == [
        {"source": "sidecar", "rows": 4, "clips": 4, "prompt_tokens": 40, "completion_tokens": 8}
    ]
    sizes = {t["table"]: (t["rows"], t["bytes"]) for t in found["tables"]}
    assert sizes["clips"][0] == 6 and sizes["latents/toy/17x64x96"][0] == 3
    assert min(size for _, size in sizes.values()) > 500


def test_json_and_terminal(found, capsys):
    assert json.loads(json.dumps(found, default=str))["clips"]["rows"] == 6
    print_status(found)
    lines = [" ".join(line.split()) for line in io.StringIO(capsys.readouterr().out)]
    assert "encode 0 3 2 1 0.1 3.0 s" in lines
    assert "encode: 1 more outcomes under other parameters" in lines
    assert "encode: rejected motion_score > 0.015 is false 2" in lines
    assert "toy 17x64x96 3 360 11.5 kB" in lines


def test_no_dataset_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"no dataset\.json there"):
        status(str(tmp_path))


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (999.6, "1 kB"), (3_400_000, "3.4 MB"), (1.23e12, "1.23 TB"), (5e18, "5e+03 PB")],
)
def test_bytes_text(size, text):
    assert bytes_text(size) == text
