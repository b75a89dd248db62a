"""One decoding pass over a stream with PyAV: from the start, or from an entry, to times, frames and damage."""

from __future__ import annotations

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


def run(
    container: Any, stream: Any, facts: VideoFacts, config: DecodeConfig, damage: Damage, first: Any = None
) -> Iterator[Decoded]:
    """Decode from where the container stands to the end.

    Args:
        first: a packet that was read already and comes before the rest.
    Raises:
        MediaError: `io_error` if reading fails; packets that cannot be decoded are counted in `damage` instead.
    """
    timeline = Timeline(facts.time_base, stream.average_rate, facts.container)
    frames = _marked(_packets(container, stream, facts, damage, first), stream, damage)
    if facts.interlaced and config.interlaced == "deinterlace":
        from vidpipe.media.deinterlace import deinterlaced

        frames = deinterlaced(frames, stream)
    for frame, pts, damaged in frames:
        yield Decoded(timeline.time(pts), frame, damaged)


def _packets(container: Any, stream: Any, facts: VideoFacts, damage: Damage, first: Any) -> Iterator[Any]:
    """Packets to the end, and the empty one that drains the decoder, also where the rest cannot be read."""
    import av

    if first is not None:
        yield first
    try:
        yield from container.demux(stream)
    except av.error.InvalidDataError:
        damage.error()
        yield None
    except (av.error.FFmpegError, OSError) as error:
        raise MediaError("io_error", f"{facts.uri}: reading failed: {error.strerror or error}") from None


def _marked(packets: Iterator[Any], stream: Any, damage: Damage) -> Iterator[tuple[Any, int | None, bool]]:
    import av

    for packet in packets:
        try:
            decoded = stream.codec_context.decode(packet)
        except av.error.FFmpegError:
            damage.error()
            continue
        for frame in decoded:
            yield frame, _pts(frame), damage.of(frame)


def _pts(frame: Any) -> int | None:
    return frame.dts if frame.pts is None else frame.pts


def bytes_of(frame: Any) -> int:
    """Size of a decoded frame's planes."""
    return sum(plane.buffer_size for plane in frame.planes)
