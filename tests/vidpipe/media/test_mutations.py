"""Forty mutated files of ten kinds: an outcome for each, no hang, no crash. The script beside runs 500 real ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

KINDS = [
    "h264_closed", "h264_open_gop", "h264_ts", "hevc_open_gop", "mpeg2_ts", "mpeg4_avi", "vp8_altref", "vp9_altref",
    "av1", "flv",
]  # fmt: skip


@pytest.fixture(scope="module")
def mutate():
    spec = importlib.util.spec_from_file_location("mutate", Path(__file__).with_name("mutate.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wrong(found: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    return [row for row in found if row[1] in ("BUG", "HANG", "CRASH")]


def test_forty_mutated_files_have_an_outcome_each(mutate, recipe_file):
    found = mutate.run([recipe_file(kind) for kind in KINDS], 40, seed=1, deadline_seconds=60)
    assert len(found) == 40 and not wrong(found)
    assert sum(outcome == "decoded" for _, outcome, _ in found) > 15
    assert any("0 damaged" not in message for _, outcome, message in found if outcome == "decoded")


def test_a_hang_a_crash_and_a_bug_are_seen(mutate, recipe_file, monkeypatch):
    """The harness itself must be able to fail."""
    import os
    import time

    path = str(recipe_file("h264_closed"))
    monkeypatch.setattr("vidpipe.media.decode.open_video", lambda path: time.sleep(60))
    assert mutate.outcome_of(path, 0.5)[0] == "HANG"
    monkeypatch.setattr("vidpipe.media.decode.open_video", lambda path: os.kill(os.getpid(), 11))
    assert mutate.outcome_of(path, 20) == ("CRASH", "exit status -11")
    monkeypatch.setattr("vidpipe.media.decode.open_video", lambda path: 1 / 0)
    assert mutate.outcome_of(path, 20)[0] == "BUG"


@pytest.mark.media
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_five_hundred_mutations_of_real_files(mutate, media_dir):
    found = mutate.run(mutate.real_files(media_dir), 500, seed=0, deadline_seconds=60)
    assert len(found) == 500 and not wrong(found)
