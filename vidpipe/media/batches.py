"""Gathers the frames of a pass into batches: all of them at one size, or what a glance asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from vidpipe.media.convert import Converter
from vidpipe.media.decode import FrameBatch, Glance, Glanced, Look, scan_size
from vidpipe.media.facts import VideoFacts
from vidpipe.media.passes import Decoded
from vidpipe.media.thumbnails import Thumbnailer

MAX_FRAME_SECONDS = 60
"""A frame is on screen at most this long: a gap in a stream is not a shot of one picture."""
BATCH_BYTES = 96 << 20
"""Frames of a pass that are held at once."""


class Pictures(Protocol):
    """What is kept of the frames of a batch."""

    def start(self) -> None:
        """Begin a batch."""

    def put(self, decoded: Decoded) -> None:
        """Take its next frame."""

    def fields(self) -> dict[str, Any]:
        """The batch's pictures, as fields of FrameBatch."""


class AllFrames:
    """Every frame, converted to one size."""

    def __init__(self, facts: VideoFacts, stored_hw: tuple[int, int], size: int, *, full: bool = False) -> None:
        """Take the stored height and width; `full` makes the displayed pixels those that `frames` gives, to the bit."""
        self._geometry, self._squared = facts.geometry, full and facts.geometry.sar != (1, 1)
        if self._squared:
            stored_hw = facts.geometry.coded_hw
        self._shape = (size, *stored_hw, 3)
        self._converter = Converter(stored_hw, facts.color_transfer if facts.hdr else None, facts.color_primaries)

    def start(self) -> None:
        self._pixels, self._count = np.empty(self._shape, dtype=np.uint8), 0

    def put(self, decoded: Decoded) -> None:
        self._converter.to_rgb(decoded.frame, self._pixels[self._count])
        self._count += 1

    def fields(self) -> dict[str, Any]:
        frames_THWC = self._geometry.orient(self._pixels[: self._count])
        return {"frames_THWC": self._square(frames_THWC) if self._squared else frames_THWC}

    def _square(self, frames_THWC: np.ndarray) -> np.ndarray:
        import torch

        from vidpipe.media.resize import resize_crop

        frames_TCHW = torch.from_numpy(np.ascontiguousarray(frames_THWC)).permute(0, 3, 1, 2)
        return resize_crop(frames_TCHW, None, self._geometry.display_hw).permute(0, 2, 3, 1).contiguous().numpy()


class GlancedFrames:
    """A thumbnail of every frame, some in grey, and those that are wanted whole."""

    def __init__(self, facts: VideoFacts, stored_hw: tuple[int, int], glance: Glance, size: int) -> None:
        hdr = facts.color_transfer if facts.hdr else None
        self._geometry, self._stored_hw, self._glance = facts.geometry, stored_hw, glance
        self._converter = Converter(stored_hw, hdr, facts.color_primaries)
        self._thumbnailer = Thumbnailer(hdr, facts.color_primaries)
        side, to_stored = glance.thumbnail_side, facts.geometry.before_rotation
        self._grey_hw = to_stored(scan_size(facts, None, glance.grey_side))
        self._shape = None if side is None else (size, *to_stored(scan_size(facts, None, side)), 3)

    def start(self) -> None:
        self._count = 0
        self._frames: list[np.ndarray] = []
        self._full: list[int] = []
        self._grey: dict[int, np.ndarray] = {}
        self._thumbnails = None if self._shape is None else np.empty(self._shape, dtype=np.uint8)

    def put(self, decoded: Decoded) -> None:
        frame, k, upright = decoded.frame, self._count, self._geometry.orient
        if self._thumbnails is not None:
            self._thumbnailer.to_rgb(frame, self._thumbnails[k])
        look = self._glance.look(decoded.time)
        if look >= Look.GREY:
            self._grey[k] = upright(self._thumbnailer.to_grey(frame, self._grey_hw)[None])[0]
        if look == Look.FULL:
            frame_HWC = np.empty((*self._stored_hw, 3), dtype=np.uint8)
            self._converter.to_rgb(frame, frame_HWC)
            self._full.append(k)
            self._frames.append(upright(frame_HWC[None])[0])
        self._count += 1

    def fields(self) -> dict[str, Any]:
        small = self._thumbnails
        upright = None if small is None else self._geometry.orient(small[: self._count])
        glanced = Glanced(thumbnails_THWC=upright, grey_HW=self._grey, full=self._full)
        return {"frames_THWC": self._frames, "glanced": glanced}


class Batcher:
    """Gathers frames of a pass; holds the last back until the next one tells its duration."""

    def __init__(self, facts: VideoFacts, size: int, pictures: Pictures) -> None:
        self._size, self._pictures = size, pictures
        self._longest = max(1, int(MAX_FRAME_SECONDS / facts.time_base))
        self._own = 1
        self._start()

    def _start(self) -> None:
        self._times: list[int] = []
        self._damaged: list[bool] = []
        self._pictures.start()

    def add(self, decoded: Decoded) -> FrameBatch | None:
        """Take a frame; returns the batch before it when that is full."""
        ready = None
        if len(self._times) == self._size:
            ready = self._batch(decoded.time)
            self._start()
        self._pictures.put(decoded)
        self._times.append(decoded.time)
        self._damaged.append(decoded.damaged)
        self._own = decoded.frame.duration or 0
        return ready

    def _batch(self, next_time: int) -> FrameBatch:
        times = np.asarray(self._times, dtype=np.int64)
        return FrameBatch(
            pts=times,
            durations=np.minimum(np.diff(times, append=next_time), self._longest),
            damaged=np.asarray(self._damaged, dtype=bool),
            **self._pictures.fields(),
        )

    def finish(self) -> Iterator[FrameBatch]:
        """The last batch; the last frame lasts as long as it says, else as long as the one before."""
        if self._times:
            last = self._times[-1]
            before = last - self._times[-2] if len(self._times) > 1 else 1
            yield self._batch(last + (self._own or before))
