"""The one pass over a video's frames behind `vidpipe.analyze`: detectors see every frame, scorers sample."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.errors import UserError
from schemas.ids import clip_id
from vidpipe.analyze import AnalyzeResult, GivenSpan
from vidpipe.media.decode import Glance, Look
from vidpipe.scorers.base import Scorer, Span
from vidpipe.scorers.sample import SMALL_SHORT_SIDE
from vidpipe.scorers.track import Due, Track
from vidpipe.shots.detector import ShotDetector, merged
from vidpipe.shots.frames import ShotFrames, shrink
from vidpipe.shots.windows import WindowRule, cut_windows

if TYPE_CHECKING:
    from vidpipe.media.decode import FrameBatch

SPAN_TOLERANCE_SECONDS = 5e-4
FORCED_BELOW_SECONDS = 0.999

Crop = tuple[int, int, int, int] | None


@dataclass(frozen=True, kw_only=True)
class Source:
    """What the pass needs of a video's row; `width` and `height` as displayed."""

    video_id: bytes
    stream_index: int
    time_base: Fraction
    width: int
    height: int
    still: bool = False


@dataclass(frozen=True, kw_only=True)
class _Clip:
    first: int
    last: int
    shot_index: int
    window_index: int
    caption: str | None = None
    crop: Crop = None


class AnalyzePass:
    """Push the batches of a whole video in presentation order, then `finish`."""

    def __init__(
        self,
        *,
        source: Source,
        make_scorers: Callable[[], Sequence[Scorer]],
        detectors: Sequence[ShotDetector],
        rule: WindowRule,
        shot_short_side: int,
        given: Sequence[GivenSpan],
        decoder_name: str,
    ) -> None:
        self._source, self._rule, self._given, self._decoder_name = source, rule, given, decoder_name
        self._detectors, self._shot_short_side = detectors, shot_short_side
        self._tracks = {crop: Track(make_scorers(), self._fractions(crop)) for crop in _crops(given)}
        self._pts, self._durations, self._damaged = array("q"), array("q"), array("B")
        self._forced = _forced_times(given)
        self._plans: deque[tuple[float, list[tuple[Track, Due]]]] = deque()
        self._base_seconds = float(source.time_base)

    @property
    def num_frames(self) -> int:
        """Frames pushed so far."""
        return len(self._pts)

    def _fractions(self, crop: Crop) -> tuple[float, float, float, float] | None:
        if crop is None:
            return None
        x, y, width, height = crop
        full_width, full_height = self._source.width, self._source.height
        if min(x, y) < 0 or min(width, height) < 1 or x + width > full_width or y + height > full_height:
            raise UserError(f"clip table: crop {crop} is not inside the {full_width}x{full_height} picture")
        return y / full_height, (y + height) / full_height, x / full_width, (x + width) / full_width

    def glance(self) -> Glance:
        """What the decoder is asked for: detectors see every frame in small, scorers sample."""
        side = self._shot_short_side if self._detectors else None
        return Glance(thumbnail_side=side, grey_side=SMALL_SHORT_SIDE, look=self.look)

    def look(self, pts: int) -> Look:
        """What scorers want of the next frame; called once a frame, in presentation order, before it is pushed."""
        seconds = pts * self._base_seconds
        forced = self._is_forced(seconds)
        plan = [(track, due) for track in self._tracks.values() if (due := track.due(seconds, forced=forced))]
        self._plans.append((seconds, plan))
        if not plan:
            return Look.THUMBNAIL
        return Look.FULL if any(due.full for _, due in plan) else Look.GREY

    def push(self, batch: FrameBatch) -> None:
        """Take the next frames: all of them, or what a glance gave of them."""
        index, glanced = self.num_frames, batch.glanced
        self._pts.extend(batch.pts.tolist())
        self._durations.extend(batch.durations.tolist())
        self._damaged.extend(batch.damaged.tolist())
        if glanced is None:
            full: dict[int, np.ndarray] = dict(enumerate(batch.frames_THWC))
            grey: Mapping[int, np.ndarray] = {}
            for pts in batch.pts.tolist():
                self.look(pts)
        else:
            full, grey = dict(zip(glanced.full, batch.frames_THWC, strict=True)), glanced.grey_HW
        if self._detectors:
            small_THWC = None if glanced is None else glanced.thumbnails_THWC
            if small_THWC is None:
                small_THWC = shrink(batch.frames_THWC, self._shot_short_side)
            small = ShotFrames(small_THWC)
            for detector in self._detectors:
                detector.push(small)
        for i in range(len(batch)):
            seconds, plan = self._plans.popleft()
            for track, due in plan:
                track.measure(index + i, seconds, due, full.get(i), grey.get(i))

    def _is_forced(self, seconds: float) -> bool:
        forced = False
        while self._forced and self._forced[-1] <= seconds + SPAN_TOLERANCE_SECONDS:
            self._forced.pop()
            forced = True
        return forced

    def finish(self, uri: str, cut_short: str = "") -> AnalyzeResult:
        """Clips with their scores, once all frames are pushed; `cut_short` says why decoding ended early."""
        notes = [f"{uri}: decoded {self.num_frames} frames, then: {cut_short}"] if cut_short else []
        damaged = sum(self._damaged)
        if damaged:
            notes.append(f"{uri}: {damaged} of {self.num_frames} frames are damaged")
        clips = list(self._given_clips(uri, notes) if self._given else self._shot_clips())
        rows = list({row["clip_id"]: row for row in map(self._row, reversed(clips))}.values())[::-1]
        if len(rows) < len(clips):
            notes.append(f"{uri}: {len(clips) - len(rows)} spans of the clip table repeat another; the first is kept")
        if not rows and not self._given:
            notes.append(
                f"{uri}: no shot of at least {self._rule.min_seconds:g} s in {self.num_frames} frames; "
                "lower analyze.min_seconds to keep shorter ones"
            )
        return AnalyzeResult(clips=rows, message="; ".join(notes), num_frames=self.num_frames)

    def _shot_clips(self) -> Iterator[_Clip]:
        if self._source.still:
            yield _Clip(first=0, last=0, shot_index=0, window_index=0)
            return
        transitions = merged((t for detector in self._detectors for t in detector.finish()), self.num_frames)
        starts = np.array(self._pts) * self._base_seconds
        ends = starts + np.array(self._durations) * self._base_seconds
        ends[:-1] = np.minimum(ends[:-1], starts[1:])
        for w in cut_windows(starts, ends, transitions, self._rule):
            yield _Clip(first=w.first, last=w.last, shot_index=w.shot_index, window_index=w.window_index)

    def _given_clips(self, uri: str, notes: list[str]) -> Iterator[_Clip]:
        pts = np.array(self._pts)
        starts = pts * self._base_seconds
        for number, span in enumerate(self._given):
            end = math.inf if span.end_seconds is None else span.end_seconds
            if span.pts is not None:
                first, stop = (int(i) for i in np.searchsorted(pts, span.pts, "left"))
            else:
                edges = np.array((span.start_seconds, end)) - SPAN_TOLERANCE_SECONDS
                first, stop = (int(i) for i in np.searchsorted(starts, edges, "left"))
            last = stop - 1
            if last < first:
                notes.append(
                    f"{uri}: the clip table's span {span.start_seconds:g}-{end:g} s holds no frame; "
                    f"frames start at {starts[0]:.3f} to {starts[-1]:.3f} s"
                )
                continue
            yield _Clip(
                first=first, last=last, shot_index=-1, window_index=number, caption=span.caption, crop=span.crop_xywh
            )

    def _row(self, clip: _Clip) -> dict[str, Any]:
        source, base = self._source, self._source.time_base
        start_pts = self._pts[clip.first]
        end_pts = self._pts[clip.last] + max(1, self._durations[clip.last])
        if clip.last + 1 < self.num_frames:
            end_pts = max(start_pts + 1, min(end_pts, self._pts[clip.last + 1]))
        seconds = float((end_pts - start_pts) * base)
        num_frames = clip.last - clip.first + 1
        width, height = (source.width, source.height) if clip.crop is None else clip.crop[2:]
        track = self._tracks[clip.crop]
        span = Span(
            first=clip.first,
            last=clip.last,
            start_seconds=float(start_pts * base),
            end_seconds=float(end_pts * base),
            width=width,
            height=height,
            analysed_width=track.analysed_hw[1],
            analysed_height=track.analysed_hw[0],
        )
        return {
            "clip_id": clip_id(source.video_id, source.stream_index, start_pts, end_pts, base, clip.crop),
            "video_id": source.video_id,
            "stream_index": source.stream_index,
            "start_pts": start_pts,
            "end_pts": end_pts,
            "time_base_num": base.numerator,
            "time_base_den": base.denominator,
            "start_seconds": span.start_seconds,
            "end_seconds": span.end_seconds,
            "duration_seconds": seconds,
            "num_frames": num_frames,
            "fps": num_frames / seconds,
            "width": width,
            "height": height,
            "user_crop": None if clip.crop is None else list(clip.crop),
            "shot_index": clip.shot_index,
            "window_index": clip.window_index,
            "given_caption": clip.caption,
            "damaged_fraction": sum(self._damaged[clip.first : clip.last + 1]) / num_frames,
            "decoder": self._decoder_name,
            "packets": None,
            **track.summarise(span),
        }


def _crops(given: Sequence[GivenSpan]) -> list[Crop]:
    return list(dict.fromkeys(span.crop_xywh for span in given)) or [None]


def _forced_times(given: Sequence[GivenSpan]) -> list[float]:
    """Start and middle of each short span, latest first: so that even a span of two frames has two samples.

    Longer ones are left to the grid of times, which then gives what it gave when shots were detected.
    """
    times = set()
    for span in given:
        length = math.inf if span.end_seconds is None else span.end_seconds - span.start_seconds
        if length < FORCED_BELOW_SECONDS:
            times |= {span.start_seconds, span.start_seconds + length / 2}
    return sorted(times, reverse=True)
