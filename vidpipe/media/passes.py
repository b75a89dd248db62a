"""One decoding pass over a stream with PyAV: from the start, or from an entry, to times, frames and damage."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vidpipe.media.config import DecodeConfig
from vidpipe.media.errors import MediaError
from vidpipe.media.facts import VideoFacts
from vidpipe.media.timeline import Timeline


@dataclass(slots=True)
class Decoded:
    """A frame as the decoder gave it: before scaling, orientation and conversion."""

    time: int
    frame: Any
    damaged: bool


class Damage:
    """Which frames are damaged: those that the decoder says it concealed or lacked parts of, and what follows an error
    until the next key frame, since prediction carries it on. An error in a picture that nothing refers to ends with it.
    """

    def __init__(self) -> None:
        self._broken = False
        self.num_errors = 0

    def error(self) -> None:
        """A packet was refused."""
        self._broken = True
        self.num_errors += 1

    def of(self, frame: Any) -> bool:
        """Whether this frame, the next in presentation order, is damaged."""
        if frame.key_frame:
            self._broken = False
        if frame.is_corrupt:
            self._broken = True
            self.num_errors += 1
        return self._broken


def prepare(stream: Any, config: DecodeConfig) -> None:
    """Set a stream's decoder up before it opens."""
    context = stream.codec_context
    context.thread_count = config.num_threads
    context.thread_type = "NONE" if config.num_threads == 1 else "AUTO"
    context.flags |= (
        1 << 3
    )  # AV_CODEC_FLAG_OUTPUT_CORRUPT, as the ffmpeg tool sets: damaged frames come, and are marked


def run(container: Any, stream: Any, facts: VideoFacts, config: DecodeConfig, damage: Damage) -> Iterator[Decoded]:
    """Decode from where the container stands to the end.

    Raises:
        MediaError: `io_error` if reading fails; packets that cannot be decoded are counted in `damage` instead.
    """
    timeline = Timeline(facts.time_base, stream.average_rate, facts.container)
    frames = _marked(container, stream, facts, damage)
    if facts.interlaced and config.interlaced == "deinterlace":
        from vidpipe.media.deinterlace import deinterlaced

        frames = deinterlaced(frames, stream)
    for frame, pts, damaged in frames:
        yield Decoded(timeline.time(pts), frame, damaged)


def _marked(container: Any, stream: Any, facts: VideoFacts, damage: Damage) -> Iterator[tuple[Any, int | None, bool]]:
    import av

    failures = 0
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
        except av.error.FFmpegError as error:
            if isinstance(error, av.error.InvalidDataError):
                damage.error()
                packet = None  # the rest cannot be read; drain what the decoder holds
                for frame in _drain(stream):
                    yield frame, _pts(frame), damage.of(frame)
                return
            raise MediaError("io_error", f"{facts.uri}: reading failed: {error.strerror}") from None
        if packet is None:
            return
        try:
            decoded = packet.decode()
        except av.error.FFmpegError:
            damage.error()
            failures += 1
            continue
        for frame in decoded:
            yield frame, _pts(frame), damage.of(frame)


def _drain(stream: Any) -> Iterator[Any]:
    import av

    try:
        yield from stream.codec_context.decode(None)
    except av.error.FFmpegError:
        return


def _pts(frame: Any) -> int | None:
    return frame.dts if frame.pts is None else frame.pts


def bytes_of(frame: Any) -> int:
    """Size of a decoded frame's planes."""
    return sum(plane.buffer_size for plane in frame.planes)


__all__ = ["Damage", "Decoded", "bytes_of", "deque", "prepare", "run"]
