"""What a file is, from its header and index: a row of `videos`, or the reason why it cannot be one.

Reads the header, the index where the container has one (MP4, MOV, AVI), and the packets at both ends; a container
without an index is read through if it is no larger than `INDEX_BYTES`. One frame is decoded, as FFmpeg's own opening
does, for what no header says: the display matrix as FFmpeg understands it, interlacing, and whether any picture comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vidpipe.media import colour_names
from vidpipe.media.container import (
    HEIF_BRANDS,
    STILL_DEMUXERS,
    check_decodable,
    choose_stream,
    moving_streams,
    open_container,
)
from vidpipe.media.errors import MediaError
from vidpipe.media.facts import VideoFacts
from vidpipe.media.files import DEFAULT_STORAGE, StorageConfig, io_errors, open_bytes
from vidpipe.media.geometry import Geometry, clean_sar, orientation_of

INDEX_BYTES = 64 << 20
"""A file up to this size is read through for its index if its header has none."""
FIRST_FRAME_PACKETS = 240
"""Packets given to the decoder before a file counts as having no frame at its beginning."""
EDGE_PACKETS = 96
"""Packets read at either end for the least and the greatest pts; more than any codec reorders."""
VFR_SPREAD = 0.1
"""Frame intervals that differ by more than this fraction of their median (and by more than 1.5 ticks) are variable."""


@dataclass
class _Packets:
    """Times of the video packets that were read. `starts` and `ends` are pts; dts stands in where pts is missing."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    num_packets: int = 0
    num_keyframes: int = 0

    def add(self, packet: Any) -> None:
        self.num_packets += 1
        self.num_keyframes += packet.is_keyframe
        pts = packet.dts if packet.pts is None else packet.pts
        if pts is None or packet.is_discard:
            return
        self.starts.append(pts)
        self.ends.append(pts + max(packet.duration or 0, 0))


def probe(
    uri: str, size_bytes: int = -1, storage: StorageConfig = DEFAULT_STORAGE, stream_index: int | None = None
) -> VideoFacts:
    """Learn what a file is.

    Args:
        size_bytes: its length, where a listing has told; -1 if unknown.
        stream_index: None chooses as `container.choose_stream` does.
    Raises:
        MediaError: why it is no video or image; `reason` is a key of `errors.REASONS`.
    """
    import av

    if size_bytes == 0:
        raise MediaError("empty_file", f"{uri}: the file is empty")
    with open_container(uri, storage) as container:
        stream = choose_stream(container, uri, stream_index)
        check_decodable(stream, uri)
        try:
            with io_errors(uri):
                return _probe_stream(uri, size_bytes, container, stream, storage)
        except av.error.FFmpegError as error:
            raise MediaError("bad_header", f"{uri}: its packets cannot be read ({error.strerror})") from None


def _probe_stream(uri: str, size_bytes: int, container: Any, stream: Any, storage: StorageConfig) -> VideoFacts:
    size = container.size if size_bytes < 0 else size_bytes
    indexed = bool(stream.frames) and len(stream.index_entries) == stream.frames
    whole = not indexed and size <= INDEX_BYTES
    packets, frame = _head(uri, container, stream, whole)
    if frame is None:
        if stream.codec_context.name == "webp":
            raise MediaError("unsupported_codec", f"{uri}: animated or damaged WebP, which FFmpeg does not decode")
        raise MediaError("no_frames", f"{uri}: {_first_failure(stream, packets)}")
    if not whole:
        _tail(container, stream, packets)
    count, keyframes, times = packets.num_packets, packets.num_keyframes, packets.starts
    if indexed:
        entries = np.array([(e.timestamp, e.is_keyframe) for e in stream.index_entries], dtype=np.int64)
        count, keyframes = len(entries), int(entries[:, 1].sum())
        if packets.num_packets < count:  # else all pts are known, which tell more than the index's dts
            times = entries[:, 0].tolist()
    known = indexed or whole
    counts = (count, keyframes) if known else None
    return _facts(uri, size, container, stream, frame, packets, times, counts, storage)


def _head(uri: str, container: Any, stream: Any, whole: bool) -> tuple[_Packets, Any]:
    """Read packets from the start: all, or as many as a first frame and the least pts need."""
    import av

    packets, frame = _Packets(), None
    stream.codec_context.thread_count = 1
    for packet in container.demux(stream):
        if packet.has_sidedata("encryption_info") or packet.has_sidedata("encryption_init_info"):
            raise MediaError("encrypted", f"{uri}: its video samples are encrypted")
        if packet.size:
            packets.add(packet)
        if frame is None and packets.num_packets <= FIRST_FRAME_PACKETS:
            with suppress(av.error.FFmpegError):  # the next packets may be whole
                frame = next(iter(packet.decode()), None)
        if (
            not whole
            and packets.num_packets >= EDGE_PACKETS
            and (frame is not None or packets.num_packets > FIRST_FRAME_PACKETS)
        ):
            break
    return packets, frame


def _tail(container: Any, stream: Any, packets: _Packets) -> None:
    """Read the last packets, for the greatest pts; what the header says where seeking fails."""
    import av

    entries = stream.index_entries
    target = entries[max(0, len(entries) - EDGE_PACKETS)].timestamp if len(entries) else stream.duration or (1 << 60)
    tail = _Packets()
    try:
        container.seek(target, stream=stream, backward=True)
        for packet in container.demux(stream):
            if packet.size:
                tail.add(packet)
    except av.error.FFmpegError:
        pass
    packets.ends.extend(tail.ends)


def _first_failure(stream: Any, packets: _Packets) -> str:
    name, context = stream.codec_context.name, stream.codec_context
    if not packets.num_packets:
        return "the video stream has no packets"
    return (
        f"none of its first {min(packets.num_packets, FIRST_FRAME_PACKETS)} packets gave a frame "
        f"({name}, {context.width}x{context.height} by the header)"
    )


def _facts(
    uri: str, size: int, container: Any, stream: Any, frame: Any, packets: _Packets, times: Sequence[int],
    counts: tuple[int, int] | None, storage: StorageConfig,
) -> VideoFacts:  # fmt: skip
    context = stream.codec_context
    sar = stream.sample_aspect_ratio
    still = container.format.name in STILL_DEMUXERS or (counts is not None and counts[0] == 1 and _is_still(container))
    rotation, hflip = exif_orientation(uri, storage) if still else frame_orientation(frame)
    geometry = Geometry(
        coded_hw=(frame.height, frame.width),
        sar=clean_sar(sar.numerator, sar.denominator) if sar else (1, 1),
        rotation=rotation,
        hflip=hflip,
    )
    start, end = _span(stream, frame, packets)
    seconds = float((end - start) * stream.time_base)
    return VideoFacts(
        uri=uri,
        kind="image" if still else "video",
        size_bytes=size,
        container=container.format.name,
        stream_index=stream.index,
        num_video_streams=len(moving_streams(container)),
        codec=context.codec.canonical_name,
        profile=stream.profile,
        pix_fmt=frame.format.name,
        coded_width=frame.width,
        coded_height=frame.height,
        width=geometry.display_hw[1],
        height=geometry.display_hw[0],
        sar_num=geometry.sar[0],
        sar_den=geometry.sar[1],
        rotation=rotation,
        hflip=hflip,
        time_base_num=stream.time_base.numerator,
        time_base_den=stream.time_base.denominator,
        start_pts=start,
        end_pts=end,
        duration_seconds=seconds,
        header_seconds=_header_seconds(container, stream),
        num_packets=counts[0] if counts else None,
        num_keyframes=counts[1] if counts else None,
        avg_fps=_average_rate(stream, counts, seconds),
        vfr=is_vfr(times),
        interlaced=_interlaced(context, frame),
        color_range=colour_names.RANGES.get(frame.color_range or context.color_range),
        color_space=colour_names.SPACES.get(_set(frame.colorspace, context.colorspace)),
        color_transfer=colour_names.TRANSFERS.get(_set(frame.color_trc, context.color_trc)),
        color_primaries=colour_names.PRIMARIES.get(_set(frame.color_primaries, context.color_primaries)),
        has_audio=any(s.type == "audio" for s in container.streams),
    )


def _set(of_frame: int, of_header: int) -> int:
    return of_header if of_frame == 2 else of_frame  # 2: unspecified


def _is_still(container: Any) -> bool:
    """Whether a container that holds one picture is an image, rather than a video of one frame."""
    brand = container.metadata.get("major_brand", "").strip()
    return container.format.name in ("webp_pipe", "webp", "gif", "apng") or brand in HEIF_BRANDS


def frame_orientation(frame: Any) -> tuple[int, bool]:
    """Rotation and reflection from a decoded frame's display matrix; (0, False) without one."""
    try:
        data = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:  # PyAV 18 refuses frames with kinds of side data that it does not know; it gives the angle
        return round(-frame.rotation / 90) % 4 * 90, False
    return (0, False) if data is None else orientation_of(bytes(data))


EXIF_ORIENTATION = 274
_EXIF = {2: (0, True), 3: (180, False), 4: (180, True), 5: (90, True), 6: (90, False), 7: (270, True), 8: (270, False)}


def exif_orientation(uri: str, storage: StorageConfig) -> tuple[int, bool]:
    """Rotation and reflection of an image from its EXIF; (0, False) without."""
    from PIL import Image

    try:
        with open_bytes(uri, storage) as file, Image.open(file) as image:
            return _EXIF.get(image.getexif().get(EXIF_ORIENTATION, 1), (0, False))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return 0, False  # not an image that PIL knows, or its EXIF is broken


def _span(stream: Any, frame: Any, packets: _Packets) -> tuple[int, int]:
    """Least pts, and the greatest pts plus its duration."""
    rate = stream.average_rate or stream.guessed_rate
    tick = max(1, round(1 / (rate * stream.time_base))) if rate else 1
    if not packets.starts:
        start = frame.pts or stream.start_time or 0
        return start, start + max(1, packets.num_packets) * tick
    start, end = min(packets.starts), max(packets.ends)
    return start, end if end > max(packets.starts) else max(packets.starts) + tick


def _header_seconds(container: Any, stream: Any) -> float | None:
    if container.duration is not None and container.duration > 0:
        return container.duration / 1_000_000
    return float(stream.duration * stream.time_base) if stream.duration else None


def _average_rate(stream: Any, counts: tuple[int, int] | None, seconds: float) -> float | None:
    if counts and seconds > 0:
        return counts[0] / seconds
    return float(stream.average_rate) if stream.average_rate else None


def _interlaced(context: Any, frame: Any) -> bool | None:
    if frame.interlaced_frame or context.field_order >= 2:
        return True
    return False if context.field_order == 1 or frame is not None else None


def is_vfr(times: Sequence[int]) -> bool | None:
    """Whether frame times are unevenly spaced; None with fewer than three."""
    gaps = np.diff(np.unique(np.asarray(times, dtype=np.int64)))
    if len(gaps) < 2:
        return None
    spread = int(gaps.max() - gaps.min())
    return bool(spread > 1.5 and spread > VFR_SPREAD * float(np.median(gaps)))
