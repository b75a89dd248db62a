"""The commit protocol under kills and pauses: a sample in CI, all of `prove_protocol.py` with --long."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import prove_protocol
from tests.chaos.s3_server import BUCKET, s3_server

SAMPLE = [
    ("local", "kill", 3),
    ("local", "pause", 6),
    ("local", "cross", 49),
    ("local", "random", 8),
    ("local", "crowd", 6),
    ("local", "create", 6),
    ("local", "writers", 2),
    ("local", "ask-again", 2),
    ("s3", "kill", 7),
    ("s3", "pause", 11),
    ("s3", "create", 6),
]


@pytest.fixture(scope="module")
def s3():
    with s3_server() as environment:
        yield environment


@pytest.mark.parametrize(("storage", "case", "every"), SAMPLE, ids=lambda value: str(value))
def test_a_sample_of_the_steps(storage, case, every, tmp_path, request):
    environment = request.getfixturevalue("s3") if storage == "s3" else {}
    root = f"s3://{BUCKET}/{case}" if storage == "s3" else str(tmp_path / "data")
    lines = list(prove_protocol.play(storage, case, root, environment, 20_000 if storage == "local" else 3_000, every))
    assert len(lines) > 1 or case in ("cross", "create")
    assert [line for line in lines if not line["ok"]] == []


@pytest.mark.long
def test_every_step_over_a_million_rows():
    script = Path(prove_protocol.__file__)
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, check=False)
    failed = [line for line in done.stdout.splitlines() if not json.loads(line)["ok"]]
    assert (failed, done.returncode) == ([], 0)
