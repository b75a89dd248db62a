"""Content and adaptive detection: PySceneDetect's own cuts, and known ones."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scenedetect import AdaptiveDetector, ContentDetector, FrameTimecode

from schemas.errors import UserError
from vidpipe.shots.colour import Adaptive, ColourConfig, Content


def theirs(detector, frames):
    cuts = []
    for i, frame in enumerate(frames):
        cuts += detector.process_frame(FrameTimecode(i, Fraction(25)), np.ascontiguousarray(frame[..., ::-1]))
    return [(c.frame_num, c.frame_num) for c in cuts]


def footage(takes):
    frames = []
    for seed in range(12):
        frames += takes.shot(seed, 3 + 5 * seed, speed=[0, 1, 6][seed % 3])
    return frames


@pytest.mark.parametrize("threshold", [5.0, 15.0, 27.0, 60.0])
def test_content_cuts_where_pyscenedetect_does(takes, threshold):
    frames = footage(takes)
    expected = theirs(ContentDetector(threshold=threshold, min_scene_len=0), frames)
    assert takes.detect(Content(Content.Config(threshold=threshold)), frames) == expected
    assert expected


@pytest.mark.parametrize(("ratio", "width", "content"), [(3.0, 2, 15.0), (2.5, 2, 12.0), (1.5, 1, 5.0), (4.0, 5, 20.0)])
def test_adaptive_cuts_where_pyscenedetect_does(takes, ratio, width, content):
    frames = footage(takes)
    own = AdaptiveDetector(adaptive_threshold=ratio, window_width=width, min_content_val=content, min_scene_len=0)
    config = Adaptive.Config(ratio=ratio, window_frames=width, min_content=content)
    expected = theirs(own, frames)
    assert takes.detect(Adaptive(config), frames, batch=7) == expected
    assert expected


def test_scores_equal_theirs_with_weights(takes):
    frames = footage(takes)
    weights = ContentDetector.Components(0.5, 2.0, 1.0, 0.0)
    detector = ContentDetector(weights=weights)
    scores = [detector._calculate_frame_score(FrameTimecode(i, 25.0), f[..., ::-1]) for i, f in enumerate(frames)]
    ours = Content(Content.Config(weight_hue=0.5, weight_saturation=2.0, weight_luma=1.0))
    takes.detect(ours, frames)
    np.testing.assert_allclose(ours.scores, scores, rtol=1e-12)


def test_a_cut_at_frame_41_is_cut_at_frame_41(takes):
    frames = takes.shot(1, 41) + takes.shot(2, 30)
    assert takes.detect(Adaptive(), frames) == [(41, 41)]


def test_camera_motion_is_no_cut(takes):
    assert takes.detect(Adaptive(), takes.shot(3, 60, speed=3.5)) == []


def test_two_frames_are_too_few_and_none_is_fine(takes):
    assert takes.detect(Adaptive(), takes.shot(1, 1) + takes.shot(2, 1)) == []
    assert takes.detect(Adaptive(), []) == []


def test_bad_parameters_are_refused():
    with pytest.raises(UserError, match="weight"):
        ColourConfig(weight_hue=0, weight_saturation=0, weight_luma=0)
    with pytest.raises(UserError, match="window_frames"):
        Adaptive.Config(window_frames=0)
