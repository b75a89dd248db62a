"""A decoder that hangs or crashes, and a file that stops giving bytes, cost one file and nothing else.

The bad decoder is a third party's: registered by entry point, as theirs would be, so that worker processes find it.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from vidpipe import pipeline
from vidpipe.recipe import load
from vidpipe.sandbox import Sandbox, UnitTimeout
from vidpipe.stages.ingest import examine
from vidpipe.store.dataset import Dataset

STUB = """
import ctypes, time
from vidpipe.media.pyav import PyAvReader

class BadReader(PyAvReader):
    def scan(self, **options):
        name = self.facts.uri if hasattr(self.facts, "uri") else str(self.__dict__)
        if "spins" in name:
            while True:
                time.sleep(0.01)
        if "crashes" in name:
            ctypes.string_at(0)
        yield from super().scan(**options)
"""
RECIPE = """
stages = ["ingest", "analyze"]
[analyze]
min_seconds = 0.3
[engine]
workers = 1
decoder = "bad"
row_deadline_seconds = 3.0
commit_seconds = 0.1
"""


class Quiet:
    def update(self, stage: str, **counts: float) -> None:
        pass

    def log(self, line: str) -> None:
        print(line)


def write_video(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=24)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        picture = rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
        for i in range(24):
            frame = av.VideoFrame.from_ndarray(np.roll(picture, i, 1), format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


@pytest.fixture
def bad_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the stub where this process and its children look."""
    site = tmp_path / "site"
    info = site / "bad_decoder-1.dist-info"
    info.mkdir(parents=True)
    (site / "bad_decoder.py").write_text(STUB)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-decoder\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vidpipe.decoders]\nbad = bad_decoder:BadReader\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def run(tmp_path: Path, **options: Any) -> dict[str, Counter[str]]:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    recipe = load(str(tmp_path / "recipe.toml"))
    sources = (str(tmp_path / "footage"),)
    return pipeline.run(recipe, str(tmp_path / "d"), pipeline.RunOptions(sources=sources, **options), Quiet())


@pytest.mark.usefixtures("bad_decoder")
def test_a_spinning_and_a_crashing_decoder_cost_their_files_alone(tmp_path: Path) -> None:
    (tmp_path / "footage").mkdir()
    for i, name in enumerate(["a.mp4", "b_spins.mp4", "c.mp4", "d_crashes.mp4", "e.mp4"]):
        write_video(tmp_path / "footage" / name, i)
    counts = run(tmp_path)
    assert counts["analyze"] == {"kept": 3, "failed": 2}
    con = Dataset(tmp_path / "d").connect()
    rows = con.execute(
        'SELECT v.uris[1], o.reason, o.message FROM "outcomes/analyze" o JOIN videos v ON o.id = v.video_id '
        "WHERE o.status = 'failed' ORDER BY 1"
    ).fetchall()
    assert [(Path(uri).name, reason) for uri, reason, _ in rows] == [
        ("b_spins.mp4", "deadline"),
        ("d_crashes.mp4", "crashed"),
    ]
    assert "no answer within" in rows[0][2] and "SIGSEGV" in rows[1][2]
    assert con.execute("SELECT count(DISTINCT video_id) FROM clips").fetchall() == [(3,)]


def test_a_file_that_stops_giving_bytes_is_given_up_on(tmp_path: Path) -> None:
    fifo = tmp_path / "stuck.mp4"
    os.mkfifo(fifo)
    row = {"uri": str(fifo), "size_bytes": 100_000, "etag": "x", "hint": "video"}
    found = examine(row)  # not a regular file: it is not even opened
    assert (found["status"], found["reason"]) == ("failed", "io_error")
    box = Sandbox()
    writer = os.open(fifo, os.O_RDWR)  # somebody holds the other end and writes no more than a header
    os.write(writer, b"\0\0\0\x18ftypmp42")
    try:
        box.call(abs, 1, deadline_seconds=60)
        with pytest.raises(UnitTimeout):
            box.call(av.open, str(fifo), deadline_seconds=2.0)
        assert box.call(abs, -2, deadline_seconds=60) == 2
    finally:
        os.close(writer)
        box.kill()
