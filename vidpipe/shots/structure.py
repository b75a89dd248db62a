"""Cuts and dissolves by the structure of tiny grey thumbnails.

Cuts: one minus the normalised cross-correlation of neighbouring thumbnails, where it stands out from its neighbours'.
This sees a cut between two white scenes, which PySceneDetect's colour differences miss, and is blind to brightness.

Dissolves and fades: frames t - k, t, t + k, where the outer two differ in structure and frame t is a blend of them. A
moving camera or object gives no blend, since what moves is somewhere else in the middle frame and not half transparent.
Measured on real shots joined with known cuts and dissolves, see docs/shots.md. The alternative that was turned down is
twin comparison (summed small changes), which fires on every pan.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from schemas.errors import UserError
from vidpipe.shots.detector import DetectorConfig, ShotDetector, Transition
from vidpipe.shots.frames import ShotFrames, reduce

SHORT_SIDE = 18
REACH = (4, 8, 14)  # k: half of the length, in frames, over which a dissolve is looked for
MARGIN = max(REACH)
BLOCK = 128
CUT_NOISE, DISSOLVE_NOISE = 4.0, 64.0  # variance of grey that counts as no structure
MIDDLE, STEP = 0.2, 0.08  # how far from a half the blend may be, and how much it moves in a quarter of the length
EDGE = 0.1


class Structure(ShotDetector):
    """Cuts and dissolves from thumbnails of some 28x16; the frames of a dissolve belong to no shot."""

    name = "structure"
    version = 1

    @dataclass(frozen=True, kw_only=True)
    class Config(DetectorConfig):
        """Parameters.

        Attributes:
            cut: least structural distance of a cut, one minus a correlation, in (0, 2].
            ratio: of that distance to its neighbours' mean.
            window_frames: of these neighbours, on either side.
            dissolve: least structural distance between a dissolve's ends; 2 and more looks for none.
            residual: most that the middle may differ from a blend, as a share of the ends' squared difference.
        """

        cut: float = 0.3
        ratio: float = 3.0
        window_frames: int = 2
        dissolve: float = 0.5
        residual: float = 0.06

        def __post_init__(self) -> None:
            if self.cut <= 0 or self.dissolve <= 0 or self.residual <= 0:
                raise UserError("cut, dissolve and residual must be above 0")
            if self.window_frames < 1:
                raise UserError(f"window_frames must be at least 1, found {self.window_frames}")

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        self._thumbnails: list[np.ndarray] = []
        self._first = 0  # number of the frame of the first thumbnail kept
        self._distances = array("f")
        self._dissolves: list[Transition] = []

    def push(self, frames: ShotFrames) -> None:
        factor = max(1, round(min(frames.gray_THW.shape[1:]) / SHORT_SIDE))
        self._thumbnails += [reduce(gray_HW, factor).reshape(-1) for gray_HW in frames.gray_THW]
        if len(self._thumbnails) >= BLOCK + 2 * MARGIN:
            self._look()

    def _look(self) -> None:
        frames_TN = np.stack(self._thumbnails).astype(np.float32)
        known = len(self._distances) - self._first
        if known == 0:
            self._distances.append(0.0)
            known = 1
        self._distances.extend(distance(frames_TN[known - 1 : -1], frames_TN[known:], CUT_NOISE).tolist())
        self._dissolves += [t.shifted(self._first) for t in find_dissolves(frames_TN, self.config)]
        passed = max(0, len(self._thumbnails) - 2 * MARGIN)
        del self._thumbnails[:passed]
        self._first += passed

    def finish(self) -> list[Transition]:
        if len(self._distances) < self._first + len(self._thumbnails):
            self._look()
        cuts = standing_out(np.array(self._distances), self.config)
        return [*(Transition(c, c) for c in cuts), *self._dissolves]


def standing_out(distance_T: np.ndarray, config: Structure.Config) -> list[int]:
    """Frames whose distance to the one before reaches the threshold and a multiple of its neighbours' mean."""
    width = config.window_frames
    padded = np.pad(distance_T, width)
    total = sum(padded[width + k : len(distance_T) + width + k] for k in range(-width, width + 1) if k)
    above = (distance_T >= config.cut) & (distance_T >= config.ratio * total / (2 * width))
    return np.flatnonzero(above).tolist()


def distance(before_TN: np.ndarray, after_TN: np.ndarray, noise: float) -> np.ndarray:
    """One minus the correlation of two thumbnails, in [0, 2]; flat ones count as alike."""
    before = before_TN - before_TN.mean(axis=1, keepdims=True)
    after = after_TN - after_TN.mean(axis=1, keepdims=True)
    covariance = np.einsum("tn,tn->t", before, after) / before.shape[1] + noise
    variances = [np.einsum("tn,tn->t", x, x) / x.shape[1] + noise for x in (before, after)]
    return 1 - covariance / np.sqrt(variances[0] * variances[1])


def find_dissolves(frames_TN: np.ndarray, config: Structure.Config) -> list[Transition]:
    """Transitions found around each frame that has MARGIN frames on either side, or less at a shorter reach."""
    found = []
    for reach in REACH:
        if len(frames_TN) <= 2 * reach or config.dissolve >= 2:
            continue
        before, after = frames_TN[: -2 * reach], frames_TN[2 * reach :]
        change = after - before
        energy = np.einsum("tn,tn->t", change, change) + 1e-3 * frames_TN.shape[1]
        first, middle, last = (
            _blend(frames_TN[reach + q : len(frames_TN) - reach + q], before, change, energy)
            for q in (-(reach // 2), 0, reach // 2)
        )
        hit = distance(before, after, DISSOLVE_NOISE) >= config.dissolve
        hit &= np.maximum(np.maximum(first[1], middle[1]), last[1]) <= config.residual
        hit &= np.abs(middle[0] - 0.5) < MIDDLE
        hit &= (first[0] < middle[0] - STEP) & (last[0] > middle[0] + STEP)
        for start in np.flatnonzero(hit):
            found.append(_extent(frames_TN, int(start), reach))
    return found


def _blend(
    frames: np.ndarray, before: np.ndarray, change: np.ndarray, energy: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How far along each frame is from `before` to `after`, and what is left over, as a share of the energy."""
    moved = frames - before
    share = np.einsum("tn,tn->t", moved, change) / energy
    return share, np.einsum("tn,tn->t", moved, moved) / energy - share**2


def _extent(frames_TN: np.ndarray, start: int, reach: int) -> Transition:
    """Frames between `start` and `start + 2 * reach` that are neither the one end nor the other."""
    window = frames_TN[start : start + 2 * reach + 1]
    change = window[-1] - window[0]
    share = (window - window[0]) @ change / (change @ change)
    begin = np.flatnonzero(share[: reach + 1] <= EDGE).max() + 1
    end = reach + np.flatnonzero(share[reach:] >= 1 - EDGE).min()
    return Transition(start + int(begin), start + int(end))
