"""The synthetic footage is what its truth.json says, read back with PyAV."""

from __future__ import annotations

import json
from pathlib import Path

import av
import make_footage
import numpy as np
import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("footage")
    make_footage.make_footage(path, num_plain=12, num_reels=1, seconds=0.5, seed=3)
    return path


@pytest.fixture(scope="module")
def truth(folder) -> dict[str, dict]:
    return json.loads((folder / "truth.json").read_text())


def frames_of(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def test_every_video_has_the_frames_and_size_that_it_says(folder, truth):
    videos = [v for v in truth.values() if v["num_frames"] and v["kind"] != "image"]
    assert len(videos) > 20
    for video in videos:
        expected = (video["num_frames"], video["height"], video["width"], 3)
        assert frames_of(folder / video["name"]).shape == expected, video["name"]


def test_every_file_is_in_the_truth_or_a_sidecar(folder, truth):
    sidecars = {"truth.json", "captions.jsonl"}
    stems = {Path(name).stem for name in truth}
    for path in folder.iterdir():
        assert path.name in truth or path.name in sidecars or path.stem in stems
    assert {v["kind"] for v in truth.values()} >= {
        "plain", "cuts", "dissolve", "letterbox", "still", "dark", "blurred", "title", "short", "twin", "copy",
        "broken", "not_media", "audio_only", "image", "variable_rate",
    }  # fmt: skip


def test_cuts_are_where_the_picture_jumps(folder, truth):
    reel = truth["reel_0.mp4"]
    small = frames_of(folder / "reel_0.mp4")[:, ::8, ::8].astype(np.float32)
    jump = np.abs(np.diff(small, axis=0)).mean((1, 2, 3))
    found = sorted(int(i) + 1 for i in np.argsort(jump)[-len(reel["cuts"]) :])
    assert len(reel["cuts"]) == 4
    assert found == reel["cuts"]


def test_bars_are_black_and_the_picture_is_not(folder, truth):
    for name in ("letterbox.mp4", "pillarbox.mp4"):
        x, y, width, height = truth[name]["crop_xywh"]
        frames = frames_of(folder / name)
        inside = np.zeros(frames.shape[1:3], bool)
        inside[y : y + height, x : x + width] = True
        assert frames[:, ~inside].mean() < 4 < 40 < frames[:, inside].mean()


def test_still_dark_and_blurred_are_so(folder):
    still, dark = frames_of(folder / "still.mp4"), frames_of(folder / "dark.mp4")
    assert np.abs(np.diff(still.astype(int), axis=0)).mean() < 0.5
    assert dark.mean() < 12
    steepest = {
        name: np.abs(np.diff(frames_of(folder / name)[0].astype(int), axis=1)).max()
        for name in ("still.mp4", "blurred.mp4")
    }
    assert steepest["blurred.mp4"] < steepest["still.mp4"] / 3


def test_twin_and_copy(folder, truth):
    assert (folder / "copy.mp4").read_bytes() == (folder / truth["copy.mp4"]["same_as"]).read_bytes()
    twin, plain = frames_of(folder / "twin.webm"), frames_of(folder / truth["twin.webm"]["same_as"])
    assert len(twin) == len(plain)
    assert abs(twin[0].mean() - plain[0].mean()) < 12


def test_variable_rate_has_uneven_times(folder):
    with av.open(str(folder / "variable_rate.mp4")) as container:
        times = [float(frame.time) for frame in container.decode(video=0)]
    steps = np.round(np.diff(times) * 24).astype(int)
    assert set(steps.tolist()) == {1, 3}


def test_broken_files_do_not_open(folder, truth):
    broken = [name for name, video in truth.items() if video["kind"] == "broken"]
    assert broken == ["broken.mp4", "empty.mp4"]
    for name in broken:
        with pytest.raises(av.error.FFmpegError):
            frames_of(folder / name)


def test_captions_come_in_three_forms_and_say_what_is_seen(folder, truth):
    lines = [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()]
    by_file = {line["file"]: line["caption"] for line in lines}
    kinds = {"txt": 0, "json": 0, "jsonl": len(by_file)}
    for video in truth.values():
        if len(video["captions"]) != 1:
            continue
        (text,) = video["captions"]
        stem = (folder / video["name"]).with_suffix("")
        if stem.with_suffix(".txt").exists():
            kinds["txt"] += 1
            assert stem.with_suffix(".txt").read_text().strip() == text
        elif stem.with_suffix(".json").exists():
            kinds["json"] += 1
            assert json.loads(stem.with_suffix(".json").read_text())["caption"] == text
        else:
            assert by_file[video["name"]] == text
    assert min(kinds.values()) >= 5


def test_a_reel_has_a_caption_for_the_span_of_each_shot(folder, truth):
    reel = truth["reel_0.mp4"]
    shots = json.loads((folder / "reel_0.json").read_text())["captions"]
    assert [s["text"] for s in shots] == reel["captions"]
    assert [round(s["start"] * 24) for s in shots] == [0, *reel["cuts"]]
    assert [round(s["end"] * 24) for s in shots] == [*reel["cuts"], reel["num_frames"]]


def test_the_same_seed_gives_the_same_pixels(folder, tmp_path):
    make_footage.plain(tmp_path, 1, seed=3, seconds=0.5)
    make_footage.plain(tmp_path, 2, seed=4, seconds=0.5)
    assert np.array_equal(frames_of(tmp_path / "plain_001.mp4"), frames_of(folder / "plain_001.mp4"))
    assert not np.array_equal(frames_of(tmp_path / "plain_002.mp4")[0], frames_of(folder / "plain_002.mp4")[0])
