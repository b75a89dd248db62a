"""One protocol for every decoder: open a stream, pass over all its frames, or ask for some by their exact times.

Frames are uint8 RGB as displayed: pixel aspect, then rotation, then reflection applied, HDR mapped to SDR. A time is a
pts in the stream's own units, made strictly increasing by the rule of `timeline.Timeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from schemas.errors import UserError
from vidpipe.media.config import DecodeConfig
from vidpipe.media.errors import MediaError
from vidpipe.media.files import DEFAULT_STORAGE, StorageConfig
from vidpipe.media.reference import ClipReference

if TYPE_CHECKING:
    import torch

    from vidpipe.media.facts import VideoFacts
    from vidpipe.media.packets import PacketIndex

DEFAULT_CONFIG = DecodeConfig()


class Look(IntEnum):
    """How closely a pass shall look at a frame, besides its thumbnail."""

    THUMBNAIL = 0
    GREY = 1
    FULL = 2


@dataclass(frozen=True, kw_only=True)
class Glance:
    """Makes a pass look at every frame in small, at some in grey, and at few at the pass's size.

    Attributes:
        thumbnail_side: short side of the thumbnails that all frames get, in pixels; None for none.
        grey_side: short side of the grey pictures, in pixels.
        look: asked once for each frame, in presentation order, with its pts. FULL means GREY too.
    """

    thumbnail_side: int | None
    grey_side: int
    look: Callable[[int], Look]


@dataclass(frozen=True, eq=False, kw_only=True)
class Glanced:
    """What a glance saw of the frames of a batch.

    Attributes:
        thumbnails_THWC: uint8 RGB of every frame; None where none were asked for.
        grey_HW: uint8 [h, w] of the frames that were looked at in grey, by place in the batch: luma in [0, 255].
        full: places in the batch of the frames in `FrameBatch.frames_THWC`.
    """

    thumbnails_THWC: np.ndarray | None
    grey_HW: Mapping[int, np.ndarray]
    full: Sequence[int]


@dataclass(frozen=True, eq=False, kw_only=True)
class FrameBatch:
    """Consecutive frames of a pass.

    Attributes:
        frames_THWC: uint8 RGB [T, H, W, 3], on the host; after a glance those of `glanced.full`, in a list.
        pts: int64 [T], strictly increasing within a stream.
        durations: int64 [T], until the next frame, in pts units.
        damaged: bool [T], the decoder reported errors in the frame or in what it was predicted from.
        glanced: what else a glance gave; None if all frames are given.
    """

    frames_THWC: Any
    pts: np.ndarray
    durations: np.ndarray
    damaged: np.ndarray
    glanced: Glanced | None = None

    def __len__(self) -> int:
        return len(self.pts)

    def __repr__(self) -> str:
        span = f"{self.pts[0]}..{self.pts[-1]}" if len(self.pts) else "empty"
        shape = self.frames_THWC.shape if self.glanced is None else f"{len(self.glanced.full)} of {len(self)}"
        return f"FrameBatch(frames={shape}, pts={span}, damaged={int(self.damaged.sum())})"


@dataclass(frozen=True, eq=False, kw_only=True)
class ClipFrames:
    """Frames of a clip, in the order asked for.

    Attributes:
        frames_TCHW: torch uint8 RGB [T, 3, H, W] on the reader's device.
        pts: int64 [T], as asked for.
        damaged: bool [T]; also where the frame asked for could not be decoded and the one on screen before stands in.
    """

    frames_TCHW: torch.Tensor
    pts: np.ndarray
    damaged: np.ndarray

    def __len__(self) -> int:
        return len(self.pts)

    def __repr__(self) -> str:
        shape = tuple(self.frames_TCHW.shape)
        return f"ClipFrames(frames={shape}, device={self.frames_TCHW.device}, damaged={int(self.damaged.sum())})"


class VideoReader(Protocol):
    """An open video stream. One thread at a time; use as a context manager."""

    facts: VideoFacts
    decoder_name: str

    def __enter__(self) -> VideoReader: ...

    def __exit__(self, *exc: object) -> None: ...

    def scan(
        self,
        *,
        size_hw: tuple[int, int] | None = None,
        max_short_side: int | None = None,
        batch_size: int = 32,
        glance: Glance | None = None,
    ) -> Iterator[FrameBatch]:
        """Yield every frame of the stream once, in presentation order.

        Args:
            size_hw: displayed height and width of the frames; scaled by the decoder's filter.
            max_short_side: scale down to this short side, keeping the aspect (even sizes); smaller videos stay.
            batch_size: frames a batch; the last is shorter.
            glance: give thumbnails of all frames, and only some at the pass's size. A back end may give all frames at
                that size instead, where it is no dearer; `FrameBatch.glanced` is then None.
        Raises:
            MediaError: `no_frames` if nothing could be decoded; `io_error` or `decode_error` where the stream ends
                because reading failed.
        """
        ...

    def index(self, clip: ClipReference | None = None) -> PacketIndex:
        """Packet index of the stream, at least of the clip: free after a whole pass, else the file is read through."""
        ...

    def frame_pts(self, clip: ClipReference) -> np.ndarray:
        """Times of the decodable frames in the clip's span, ascending: int64 [N]."""
        ...

    def frames(
        self,
        clip: ClipReference,
        pts: Sequence[int] | np.ndarray,
        *,
        size_hw: tuple[int, int] | None = None,
        crop_xywh: Sequence[int] | None = None,
    ) -> ClipFrames:
        """Decode exact frames by time.

        Args:
            pts: times from `frame_pts` of this clip, ascending, repeats allowed.
            size_hw: output size, antialiased bicubic, after cropping.
            crop_xywh: box in displayed pixels; the clip's own crop, if it has one, is applied first.
        Raises:
            MediaError: `no_frames` if the span has no decodable frame.
            UserError: a time outside the span.
        """
        ...


def open_video(
    uri: str,
    stream_index: int | None = None,
    *,
    decoder: str = "auto",
    device: str = "cpu",
    config: DecodeConfig = DEFAULT_CONFIG,
    facts: VideoFacts | None = None,
    storage: StorageConfig = DEFAULT_STORAGE,
    packets: PacketIndex | None = None,
) -> VideoReader:
    """Open one stream of a file.

    Args:
        stream_index: None chooses as `container.choose_stream` does.
        decoder: a name of `vidpipe.registry.DECODERS`, or `auto`: on a CUDA device NVDEC where the codec allows; else
            torchcodec where its libraries load and it is known to be exact for the file; else PyAV.
        device: where frames of `VideoReader.frames` shall be: `cpu` or `cuda[:n]`.
        facts: what `probe` said of this stream, to save probing it again.
        packets: what `VideoReader.index` said of this stream or of some clips of it, to save reading it through again.
    Raises:
        MediaError: the file cannot be used.
        UserError: an unknown decoder, or one that cannot do this file.
    """
    from vidpipe.media import choice
    from vidpipe.registry import load_decoder

    if facts is None or (stream_index is not None and facts.stream_index != stream_index):
        from vidpipe.media.probe import probe

        facts = probe(uri, storage=storage, stream_index=stream_index)
    check_rules(facts, config)
    name = choice.choose(facts, device, config) if decoder == "auto" else decoder
    return load_decoder(name)(uri, facts=facts, device=device, config=config, storage=storage, packets=packets)


def check_rules(facts: VideoFacts, config: DecodeConfig) -> None:
    """Raise MediaError where the recipe rejects such footage."""
    if facts.hdr and config.hdr == "reject":
        told = f"{facts.color_transfer} is high dynamic range, which the recipe rejects"
        raise MediaError("hdr_rejected", f"{facts.uri}: {told}")
    if facts.interlaced and config.interlaced == "reject":
        raise MediaError("interlaced_rejected", f"{facts.uri}: interlaced, which the recipe rejects")


def scan_size(facts: VideoFacts, size_hw: tuple[int, int] | None, max_short_side: int | None) -> tuple[int, int]:
    """Displayed size of a pass."""
    from vidpipe.media.geometry import fit_short_side

    if size_hw is not None and max_short_side is not None:
        raise UserError("scan: give size_hw or max_short_side, not both")
    if size_hw is not None:
        if min(size_hw) < 1:
            raise UserError(f"scan: size {size_hw} must be at least 1x1")
        return size_hw
    display_hw = facts.geometry.display_hw
    return display_hw if max_short_side is None else fit_short_side(display_hw, max_short_side)


def check_pts(clip: ClipReference, pts: Any) -> np.ndarray:
    """Times asked for, as int64; UserError where one is outside the span or they descend."""
    wanted = np.asarray(pts, dtype=np.int64)
    if wanted.ndim != 1 or not len(wanted):
        raise UserError(f"clip of {clip.uri}: expected a non-empty list of pts")
    if wanted.min() < clip.start_pts or wanted.max() >= clip.end_pts:
        raise UserError(
            f"clip of {clip.uri}: pts {wanted.min()}..{wanted.max()} are not inside [{clip.start_pts}, {clip.end_pts})"
        )
    if (np.diff(wanted) < 0).any():
        raise UserError(f"clip of {clip.uri}: pts must ascend")
    return wanted
