"""One decoding pass over a stream with PyAV: from the start, or from an entry, to times, frames and damage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vidpipe.media.config import DecodeConfig
from vidpipe.media.damage import Damage, are_errors, complaints, listen
from vidpipe.media.errors import MediaError
from vidpipe.media.facts import VideoFacts
from vidpipe.media.packets import IndexBuilder
from vidpipe.media.timeline import Timeline


@dataclass(slots=True)
class Decoded:
    """A frame as the decoder gave it: before scaling, orientation and conversion."""

    time: int
    frame: Any
    damaged: bool


def prepare(stream: Any, config: DecodeConfig, *, coarse: bool = False) -> None:
    """Set a stream's decoder up before it opens.

    Args:
        coarse: leave the loop filter out where that cannot spread, which saves a tenth of decoding: in pictures that
            nothing refers to, and in all B pictures of H.264 that is coded out of order, where every P and I picture
            keeps every bit. Scaled down, the others differ by little (measured in docs/decoding.md). HEVC calls all
            its pictures B. Never for frames that are trained on.
    """
    context = stream.codec_context
    context.thread_count = config.num_threads
    context.thread_type = "NONE" if config.num_threads == 1 else "AUTO"
    context.flags |= (
        1 << 3
    )  # AV_CODEC_FLAG_OUTPUT_CORRUPT, as the ffmpeg tool sets: damaged frames come, and are marked
    if coarse and context.name in ("h264", "hevc"):
        context.options = {"skip_loop_filter": "bidir" if context.name == "h264" and context.has_b_frames else "noref"}


def run(
    container: Any,
    stream: Any,
    facts: VideoFacts,
    config: DecodeConfig,
    damage: Damage,
    first: Any = None,
    builder: IndexBuilder | None = None,
) -> Iterator[Decoded]:
    """Decode from where the container stands to the end.

    Args:
        first: a packet that was read already and comes before the rest.
        builder: told each packet.
    Raises:
        MediaError: `io_error` if reading fails; packets that cannot be decoded are counted in `damage` instead.
    """
    timeline = Timeline(facts.time_base, stream.average_rate, facts.container)
    frames = _marked(container, stream, facts, damage, first, builder)
    if facts.interlaced and config.interlaced == "deinterlace":
        from vidpipe.media.deinterlace import deinterlaced

        frames = deinterlaced(frames, stream)
    for frame, pts, damaged in frames:
        yield Decoded(timeline.time(pts), frame, damaged)


def _marked(
    container: Any, stream: Any, facts: VideoFacts, damage: Damage, first: Any, builder: IndexBuilder | None
) -> Iterator[tuple[Any, int | None, bool]]:
    """Frames with their own pts and whether they are damaged, to the end or to where the rest cannot be read."""
    listen()
    packets, context = container.demux(stream), stream.codec_context
    ended = False
    while not ended:
        with complaints() as messages:
            packet = first if first is not None else _next(packets, facts, damage)
            first = None
        if messages and are_errors(messages):
            damage.lost()
        ended = packet is None or not packet.size  # the empty packet drains the decoder
        if builder is not None and packet is not None:
            builder.add(packet)
        yield from _decoded(context, packet, damage)


def _next(packets: Iterator[Any], facts: VideoFacts, damage: Damage) -> Any:
    """The next packet; None where there are no more, or the rest cannot be read."""
    import av

    try:
        return next(packets, None)
    except av.error.InvalidDataError:
        damage.lost()
        return None
    except (av.error.FFmpegError, OSError) as error:
        raise MediaError("io_error", f"{facts.uri}: reading failed: {error.strerror or error}") from None


def _decoded(context: Any, packet: Any, damage: Damage) -> Iterator[tuple[Any, int | None, bool]]:
    import av

    if packet is not None and packet.size:
        damage.decoding(packet)
    with complaints() as messages:
        try:
            frames = context.decode(packet)
        except av.error.EOFError:  # drained already
            return
        except av.error.FFmpegError:
            damage.error(packet)
            return
    if packet is not None and (are_errors(messages) or packet.is_corrupt or damage.is_impossible(packet)):
        damage.error(packet)
    for frame in frames:
        yield frame, _pts(frame), damage.of(frame)


def _pts(frame: Any) -> int | None:
    return frame.dts if frame.pts is None else frame.pts


def bytes_of(frame: Any) -> int:
    """Size of a decoded frame's planes."""
    return sum(plane.buffer_size for plane in frame.planes)
