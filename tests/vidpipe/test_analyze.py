"""Analyze: rows of clips from frames of known content."""

from __future__ import annotations

from fractions import Fraction

import cv2
import numpy as np
import pyarrow as pa
import pytest

from schemas import tables
from schemas.config import build, to_mapping
from schemas.errors import UnknownKey, UserError
from schemas.ids import clip_id
from vidpipe.analyze import (
    AnalyzeConfig,
    AnalyzeResult,
    analyze_batches,
    analyze_video,
    fingerprint_params,
    scorer_columns,
)
from vidpipe.media.decode import FrameBatch
from vidpipe.media.errors import MediaError

HEIGHT, WIDTH, RATE = 128, 228, 25
TICK = Fraction(1, 1000)
VIDEO = b"v" * 16


def facts(**changes):
    row = {
        "video_id": VIDEO,
        "kind": "video",
        "stream_index": 2,
        "time_base_num": 1,
        "time_base_den": 1000,
        "width": WIDTH * 3,
        "height": HEIGHT * 3,
    }
    return {**row, **changes}


def picture(seed):
    noise = np.random.default_rng(seed).normal(0, 1, (12, 20, 3)).astype(np.float32)
    smooth = cv2.resize(noise, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    return np.clip(smooth * 50 + 110, 0, 255).astype(np.uint8)


def shot(seed, count):
    base = picture(seed)
    return [np.roll(base, i // 4, axis=1) for i in range(count)]


def batches(frames, *, pts=None, start=0, damaged=(), size=32):
    pts = np.asarray(pts if pts is not None else start + np.arange(len(frames)) * 1000 // RATE, np.int64)
    durations = np.diff(pts, append=pts[-1] + 40) if len(pts) else pts
    bad = np.isin(np.arange(len(frames)), list(damaged))
    for i in range(0, len(frames), size):
        part = slice(i, i + size)
        yield FrameBatch(
            frames_THWC=np.stack(frames[part]), pts=pts[part], durations=durations[part], damaged=bad[part]
        )


def run(frames, config=None, spans=None, row=None, **options):
    return analyze_batches(batches(frames, **options), row or facts(), config or AnalyzeConfig(), spans, uri="a.mp4")


def test_clips_between_cuts_with_every_column():
    frames = shot(1, 60) + shot(2, 80) + shot(3, 10) + shot(4, 50)
    result = run(frames, AnalyzeConfig(trim_frames=1), start=500, damaged=(59, 61, 62))
    spans = [(c["shot_index"], c["window_index"], c["start_pts"], c["end_pts"], c["num_frames"]) for c in result.clips]
    assert spans == [(0, 0, 500, 2860, 59), (1, 0, 2940, 6060, 78), (3, 0, 6540, 8500, 49)]
    first, second, _ = result.clips
    assert first["clip_id"] == clip_id(VIDEO, 2, 500, 2860, TICK)
    assert first["start_seconds"] == 0.5 and first["duration_seconds"] == 2.36 and first["fps"] == pytest.approx(25)
    assert (first["damaged_fraction"], second["damaged_fraction"]) == (0, 2 / 78)
    assert "3 of 200 frames are damaged" in result.message and result.num_frames == 200
    spec = tables.CLIPS.with_columns(scorer_columns(AnalyzeConfig()))
    names = {c.name for c in spec.columns} - {"fingerprint", "unit_id"}
    assert all(set(c) == names for c in result.clips)
    table = pa.Table.from_pylist(result.clips, pa.schema([c.field() for c in spec.columns if c.name in names]))
    assert table.num_rows == 3 and table["motion_score"].null_count == 0


def test_batches_of_any_size_give_the_same_rows():
    frames = shot(1, 60) + shot(2, 80)
    assert run(frames, size=1).clips == run(frames, size=7).clips == run(frames, size=1000).clips


def test_long_shots_become_windows():
    result = run(shot(1, 130), AnalyzeConfig(max_seconds=2.0))
    assert [(c["shot_index"], c["window_index"], c["num_frames"]) for c in result.clips] == [
        (0, 0, 43),
        (0, 1, 44),
        (0, 2, 43),
    ]
    assert [c["end_pts"] for c in result.clips[:-1]] == [c["start_pts"] for c in result.clips[1:]]


def test_variable_frame_rate_keeps_cuts_at_their_frames():
    rng = np.random.default_rng(0)
    frames = shot(1, 60) + shot(2, 60)
    pts = np.cumsum(rng.integers(10, 200, len(frames)))
    result = run(frames, AnalyzeConfig(trim_frames=0, max_seconds=60.0), pts=pts)
    assert [c["start_pts"] for c in result.clips] == [pts[0], pts[60]]
    assert result.clips[0]["end_pts"] == pts[60]


def test_spans_of_a_clip_table_keep_their_frames_and_skip_detection():
    frames = shot(1, 60) + shot(2, 60)
    spans = [
        {"start_seconds": 1.0, "end_seconds": 3.0, "caption": "over the cut"},
        {"start_seconds": 0.05, "end_seconds": 0.13, "caption": None},
        {"start_seconds": None, "end_seconds": None},
        {"start_seconds": 4.0, "end_seconds": 99.0},
    ]
    result = run(frames, spans=spans)
    found = [(c["start_pts"], c["end_pts"], c["shot_index"], c["window_index"]) for c in result.clips]
    assert found == [(1000, 3000, -1, 0), (80, 160, -1, 1), (0, 4800, -1, 2), (4000, 4800, -1, 3)]
    assert [c["given_caption"] for c in result.clips] == ["over the cut", None, None, None]
    assert all(c["motion_score"] is not None for c in result.clips)  # two samples even in two frames


def test_spans_without_frames_and_repeated_ones_are_told():
    spans = [{"start_seconds": s, "end_seconds": s + 1} for s in (1.0, 50.0, 1.0)]
    result = run(shot(1, 60), spans=spans)
    assert len(result.clips) == 1
    assert "50-51 s holds no frame" in result.message and "1 spans of the clip table repeat" in result.message
    with pytest.raises(UserError, match="start < end"):
        run(shot(1, 60), spans=[{"start_seconds": 2.0, "end_seconds": 1.0}])


def test_scores_of_known_clips_are_those_of_the_first_pass():
    frames = shot(1, 60) + shot(2, 80)
    first = run(frames).clips
    keys = ("start_seconds", "end_seconds", "start_pts", "end_pts")
    for fields in (keys, keys[:2]):
        again = run(frames, spans=[{k: c[k] for k in fields} for c in first]).clips
        assert [c["clip_id"] for c in again] == [c["clip_id"] for c in first]
        for column in scorer_columns(AnalyzeConfig()):
            assert [c[column.name] for c in again] == pytest.approx([c[column.name] for c in first], abs=1e-9)


def test_users_crop_is_scored_and_named():
    bright = np.full((HEIGHT, WIDTH, 3), 40, np.uint8)
    bright[:64, :114] = 200
    whole, corner = run(
        [bright] * 50,
        spans=[
            {"start_seconds": 0.0, "end_seconds": 2.0},
            {"start_seconds": 0.0, "end_seconds": 2.0, "crop_xywh": [0, 0, 342, 192]},
        ],
    ).clips
    assert corner["luminance_mean"] == pytest.approx(200 / 255, abs=1e-6)
    assert whole["luminance_mean"] == pytest.approx(80 / 255, abs=1e-6)
    assert (corner["width"], corner["height"], corner["user_crop"]) == (342, 192, [0, 0, 342, 192])
    assert corner["clip_id"] == clip_id(VIDEO, 2, 0, 2000, TICK, (0, 0, 342, 192)) != whole["clip_id"]
    with pytest.raises(UserError, match="not inside"):
        run([bright], spans=[{"crop_xywh": [600, 0, 342, 192]}])


def test_image_is_a_clip_of_one_frame():
    (clip,) = run([picture(1)], row=facts(kind="image")).clips
    assert (clip["num_frames"], clip["shot_index"], clip["end_pts"] - clip["start_pts"]) == (1, 0, 40)
    assert clip["blur_score"] is not None and clip["motion_score"] is None
    assert clip["phash_0"] == clip["phash_1"] == clip["phash_2"] is not None


def test_video_without_a_long_shot_says_so():
    result = run(shot(1, 10), damaged=(1,))
    assert result.clips == []
    assert "no shot of at least 1 s in 10 frames" in result.message and "1 of 10" in result.message


def test_only_the_scorers_asked_for():
    config = AnalyzeConfig(scorers=("luminance",), detectors=())
    (clip,) = run(shot(1, 50) + shot(2, 50), config).clips
    assert "luminance_mean" in clip and "motion_score" not in clip and "phash_0" not in clip


class Reader:
    decoder_name = "stub"

    def __init__(self, frames, error=None):
        self.frames, self.error = frames, error

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def scan(self, *, max_short_side, glance):
        assert glance.thumbnail_side == 64
        yield from batches(self.frames)
        if self.error:
            raise self.error


@pytest.mark.parametrize("reason", ["decode_error", "io_error"])
def test_stream_that_breaks_off(monkeypatch, reason):
    error = MediaError(reason, "a.mp4: broken")
    monkeypatch.setattr("vidpipe.media.decode.open_video", lambda *a, **k: Reader(shot(1, 60), error))
    if reason == "io_error":
        with pytest.raises(MediaError):
            analyze_video("a.mp4", facts(), AnalyzeConfig())
        return
    result = analyze_video("a.mp4", facts(), AnalyzeConfig())
    assert len(result.clips) == 1 and result.clips[0]["decoder"] == "stub"
    assert "decoded 60 frames, then: a.mp4: broken" in result.message


def test_stream_without_frames_is_an_error(monkeypatch):
    monkeypatch.setattr("vidpipe.media.decode.open_video", lambda *a, **k: Reader([]))
    with pytest.raises(MediaError, match="no frame") as caught:
        analyze_video("a.mp4", facts(), AnalyzeConfig())
    assert caught.value.reason == "no_frames"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scorers": ["motoin"]}, "did you mean 'motion'"),
        ({"detectors": ["adaptiv"]}, "did you mean 'adaptive'"),
        ({"scorer_params": {"motion": {"samples_per_secnd": 4.0}}}, "did you mean 'samples_per_second'"),
        ({"detector_params": {"content": {}}}, "not among"),
        ({"detector_params": {"adaptive": {"ratio": "high"}}}, "expected float"),
        ({"scorers": ["blur", "blur"]}, "named twice"),
        ({"min_seconds": 20.0}, "min_seconds"),
        ({"short_side": 48}, "short_side"),
        ({"min_second": 2.0}, "did you mean 'min_seconds'"),
    ],
)
def test_bad_config_is_refused_with_the_nearest_name(values, message):
    with pytest.raises((UserError, UnknownKey), match=message):
        build(AnalyzeConfig, values, "analyze")


def test_config_survives_toml_values_and_fingerprint_sees_parameters():
    config = AnalyzeConfig(scorer_params={"motion": {"samples_per_second": 4.0}})
    assert build(AnalyzeConfig, to_mapping(config)) == config
    assert fingerprint_params(config) != fingerprint_params(AnalyzeConfig())
    assert fingerprint_params(AnalyzeConfig())["plugins"]["motion"] == [1, {"samples_per_second": 8.0}]


def test_what_was_left_out_of_a_kept_video_is_told_in_its_outcome(monkeypatch):
    from vidpipe.stages import analyze as stages
    from vidpipe.stages.base import Context

    told = "a.mp4: no frames in the clip table's span 50-60 s"
    monkeypatch.setattr(stages, "analyze_video", lambda *_, **__: AnalyzeResult(clips=[{}], message=told))
    stage = stages.Analyze(config=AnalyzeConfig())
    unit = stage.make_unit("f", [{"id": b"1", "uris": ["a.mp4"]}])
    (outcome,) = stage.process(unit, Context(root="", fingerprint="f")).outcomes
    assert (outcome.status, outcome.message) == ("kept", told)
