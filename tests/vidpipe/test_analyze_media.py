"""Analyze on real footage: cuts that were looked at frame by frame, boxes and duplicates that are known."""

from __future__ import annotations

from fractions import Fraction

import pyarrow as pa
import pytest

from schemas import tables
from vidpipe.analyze import AnalyzeConfig, analyze_video, make_detectors, scorer_columns
from vidpipe.media.decode import open_video
from vidpipe.media.probe import probe
from vidpipe.near_duplicates import INPUT_COLUMNS, group
from vidpipe.shots.detector import merged
from vidpipe.shots.frames import ShotFrames, shrink

pytestmark = pytest.mark.media

HARD_CUTS = {
    "cosmos_video_30s.mp4": [286, 348, 356, 372, 523, 573, 610, 624],
    "webm_bbb_trailer.webm": [227, 280, 330, 347, 375, 400, 415, 623, 650, 749, 756, 776],
    "sam2_dog.mp4": [],
    "intel_car_detection.mp4": [],
    "mdn_rabbit320.mp4": [],
}
GRADUAL = {
    "cosmos_video_30s.mp4": [75, 174, 237, 338, 386, 470, 478, 631],  # a dip to grey, fades to and from black
    "webm_bbb_trailer.webm": [2, 99, 169, 472, 496, 522, 546, 572, 669, 807],  # logos, fades, a flash, the end
}


def transitions(path):
    detectors = make_detectors(AnalyzeConfig())
    count = 0
    with open_video(str(path)) as reader:
        for batch in reader.scan(max_short_side=256):
            frames = ShotFrames(shrink(batch.frames_THWC, 64))
            count += len(frames)
            for detector in detectors:
                detector.push(frames)
    return merged((t for d in detectors for t in d.finish()), count)


@pytest.mark.parametrize("name", sorted(HARD_CUTS))
def test_cuts_are_found_exactly_and_nothing_else_is(media_dir, name):
    found = transitions(media_dir / name)
    hard = {t.start for t in found if t.start == t.end}
    assert set(HARD_CUTS[name]) <= hard
    near = [*HARD_CUTS[name], *GRADUAL.get(name, [])]
    stray = [t for t in found if not any(t.start - 14 <= n <= t.end + 14 for n in near)]
    assert stray == []


def analyzed(media_dir, name, number=0):
    path = str(media_dir / name)
    return analyze_video(path, {**probe(path).to_row(), "video_id": bytes([number]) * 16}, AnalyzeConfig()).clips


def test_letterboxed_trailer(media_dir):
    clips = analyzed(media_dir, "cosmos_video_30s.mp4")
    boxes = {tuple(c[f"crop_{n}"] for n in ("x", "y", "width", "height")) for c in clips}
    for x, y, width, height in boxes:  # the picture is 320:136 at 0:22 when scaled to a width of 320
        assert (x, width) == (0, 854)
        assert 58 <= y <= 61 and 419 <= y + height <= 422


def test_letterboxed_robot(media_dir):
    name = "robot_gr1_sim/videos/chunk-000/observation.images.ego_view/episode_000004.mp4"
    for clip in analyzed(media_dir, name):
        assert clip["crop_x"] == 0 and clip["crop_width"] == clip["width"]
        assert 40 <= clip["crop_y"] <= 60
        assert Fraction(clip["crop_height"], clip["height"]) < Fraction(3, 4)


def test_two_codecs_and_a_turned_copy_are_near_duplicates(media_dir):
    names = ["mdn_rabbit320.mp4", "mdn_rabbit320.webm", "vali_test.mp4", "vali_rot_90.mp4"]
    names += ["sam2_dog.mp4", "mdn_frog.mp4"]
    clips = [clip for i, name in enumerate(names) for clip in analyzed(media_dir, name, i)]
    columns = [*tables.CLIPS.columns, *scorer_columns(AnalyzeConfig())]
    schema = pa.schema([c.field() for c in columns if c.name in INPUT_COLUMNS])
    groups = group(pa.Table.from_pylist([{k: c[k] for k in INPUT_COLUMNS} for c in clips], schema))
    by_video: dict[bytes, set[bytes]] = {}
    for clip, name in zip(clips, groups["duplicate_group"].to_pylist()):
        by_video.setdefault(clip["video_id"], set()).add(name)
    found = list(by_video.values())
    assert found[0] == found[1] and found[2] == found[3]
    assert len(set.union(*found)) == 4
