"""Captions from files beside a video."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from vidpipe.captioners.base import CaptionRequest, make_captioner
from vidpipe.captioners.sidecar import Sidecar, SidecarConfig, names_in, read_map, read_sidecar
from vidpipe.media.errors import MediaError


@pytest.fixture(autouse=True)
def fresh_caches() -> None:
    for cached in (names_in, read_map, read_sidecar):
        cached.cache_clear()


def request(
    folder: Path, name: str = "clip.mp4", start: float = 0.0, end: float = 2.0, caption: str | None = None
) -> CaptionRequest:
    def no_frames(count: int, side: int) -> np.ndarray:
        raise AssertionError("a sidecar needs no frames")

    row = {"start_seconds": start, "end_seconds": end, "given_caption": caption}
    return CaptionRequest(row=row, uris=[str(folder / name)], frames=no_frames)


def texts(answer: object) -> list[str]:
    assert isinstance(answer, list), answer
    return [c.text for c in answer]


def test_text_file_is_one_caption(tmp_path: Path) -> None:
    (tmp_path / "clip.txt").write_text("a red\n ball  rolls\n")
    (tmp_path / "other.txt").write_text("not this one")
    assert texts(Sidecar().caption([request(tmp_path)])[0]) == ["a red ball rolls"]


def test_json_forms(tmp_path: Path) -> None:
    values = {
        "a": "plain text",
        "b": {"caption": "one", "language": "de"},
        "c": {"captions": ["one", {"text": "two", "language": "fr"}]},
        "d": ["one", "two", "one"],
    }
    for name, value in values.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    answers = Sidecar(SidecarConfig(language="en")).caption([request(tmp_path, f"{n}.mp4") for n in values])
    assert [texts(a) for a in answers] == [["plain text"], ["one"], ["one", "two"], ["one", "two"]]
    assert [c.language for a in answers[1:3] for c in a] == ["de", "en", "fr"]  # type: ignore[union-attr]


@pytest.mark.parametrize("folder", ["", "deep/er/"])
def test_members_of_a_tar_have_theirs_beside_them(tmp_path: Path, folder: str) -> None:
    files = {f"{folder}clip.mp4": "", f"{folder}clip.txt": "a red ball", "else/clip.txt": "not this one"}
    files[f"{folder}map.jsonl"] = json.dumps({"file": "clip.mp4", "caption": "it rolls"})
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    answer = Sidecar().caption([request(tmp_path, f"set.tar::{folder}clip.mp4")])[0]
    assert texts(answer) == ["a red ball", "it rolls"]


@pytest.mark.parametrize("wrong", [{"start": "0", "end": 1}, {"start": 0, "end": [1]}, {"language": 3}])
def test_times_and_languages_of_the_wrong_type(tmp_path: Path, wrong: dict) -> None:
    (tmp_path / "clip.json").write_text(json.dumps({"text": "a ball", **wrong}))
    answer = Sidecar().caption([request(tmp_path)])[0]
    assert isinstance(answer, MediaError) and answer.reason == "bad_sidecar" and "expected" in str(answer)


def test_a_timed_caption_goes_to_the_clips_that_it_covers(tmp_path: Path) -> None:
    entries = [{"text": "start", "start": 0, "end": 3}, {"text": "end", "start": 3, "end": 6}, {"text": "all"}]
    (tmp_path / "clip.json").write_text(json.dumps({"captions": entries}))
    answers = Sidecar().caption([request(tmp_path, start=0, end=4), request(tmp_path, start=3, end=6)])
    assert [texts(a) for a in answers] == [["start", "all"], ["end", "all"]]


def test_map_by_name(tmp_path: Path) -> None:
    lines = [{"file": "clip.mp4", "caption": "mapped"}, {"uri": "sub/other.mp4", "text": "other"}, {"unrelated": 1}]
    (tmp_path / "captions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    answers = Sidecar().caption([request(tmp_path), request(tmp_path, "other.mp4"), request(tmp_path, "third.mp4")])
    assert [texts(a) for a in answers] == [["mapped"], ["other"], []]


def test_malformed_file_is_that_clips_failure(tmp_path: Path) -> None:
    (tmp_path / "clip.json").write_text("{")
    (tmp_path / "good.txt").write_text("fine")
    bad, good = Sidecar().caption([request(tmp_path), request(tmp_path, "good.mp4")])
    assert isinstance(bad, MediaError) and bad.reason == "bad_sidecar" and "clip.json" in str(bad)
    assert texts(good) == ["fine"]


def test_clip_table_copies_the_given_caption(tmp_path: Path) -> None:
    captioner = make_captioner("clip_table", {"language": "en"})
    answers = captioner.caption([request(tmp_path, caption=" given "), request(tmp_path)])
    assert [texts(a) for a in answers] == [["given"], []]
