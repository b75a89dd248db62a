"""The PyAV back end: FFmpeg's decoders on the CPU, with damage seen and every time exact.

Random access starts at an entry that the bitstream itself proves (`entry`), never at what a container's flag says. It
is used only in files whose times are all present and distinct; in others, and where a frame that was asked for is
missing or damaged after a seek, the stream is decoded from its start.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from typing import Any

import numpy as np

from vidpipe.media.batches import BATCH_BYTES, MAX_FRAME_SECONDS, AllFrames, Batcher, GlancedFrames, Pictures
from vidpipe.media.config import DecodeConfig
from vidpipe.media.container import choose_stream, open_container
from vidpipe.media.convert import Converter
from vidpipe.media.damage import Damage
from vidpipe.media.decode import ClipFrames, FrameBatch, Glance, check_pts, scan_size
from vidpipe.media.errors import MediaError
from vidpipe.media.facts import VideoFacts
from vidpipe.media.files import DEFAULT_STORAGE, StorageConfig, io_errors, local_path
from vidpipe.media.packets import IndexBuilder, PacketIndex, read_index, seek_margin
from vidpipe.media.passes import Decoded, bytes_of, prepare, run
from vidpipe.media.reference import ClipReference

COARSE = 1.5
"""A pass that scales down by this factor or more decodes coarsely (`passes.prepare`)."""
FORWARD_SECONDS = 4
"""A clip that starts this little after where decoding stands is reached by decoding on, not by a seek."""


_INDEXING = threading.BoundedSemaphore(2)
"""Threads that read an index of a local file at once: each packet takes the interpreter's lock, so that sixteen threads
that begin together would each have theirs only after all were read, while the decoder idles."""


class PyAvReader:
    """See `decode.VideoReader`. Frames are on the CPU; `device` only says where `frames` puts them."""

    decoder_name = "pyav"
    parts = True
    """Whether a part of the index is enough; False where frames are counted from the start of the file."""

    def __init__(
        self,
        uri: str,
        *,
        facts: VideoFacts,
        device: str = "cpu",
        config: DecodeConfig,
        storage: StorageConfig = DEFAULT_STORAGE,
        packets: PacketIndex | None = None,
    ) -> None:
        self.facts = facts
        self._uri, self._device, self._config, self._storage = uri, device, config, storage
        self._hdr = facts.color_transfer if facts.hdr else None
        self._converter: Converter | None = None
        self._run: _Run | None = None
        self._cached: tuple[tuple[int, int], list[Decoded]] | None = None
        self._packets = packets
        self._from_start = False
        """Set once random access disagreed with what the index promised."""
        self.sought = False

    def __enter__(self) -> PyAvReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._close_run()
        self._cached = None

    def _close_run(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None

    def scan(
        self,
        *,
        size_hw: tuple[int, int] | None = None,
        max_short_side: int | None = None,
        batch_size: int = 32,
        glance: Glance | None = None,
    ) -> Iterator[FrameBatch]:
        """See `decode.VideoReader.scan`."""
        facts = self.facts
        stored_hw = facts.geometry.before_rotation(scan_size(facts, size_hw, max_short_side))
        batch_size = max(1, min(batch_size, BATCH_BYTES // (3 * stored_hw[0] * stored_hw[1])))
        full = size_hw is None and max_short_side is None
        pictures: Pictures = AllFrames(facts, stored_hw, batch_size, full=full)
        if glance is not None:
            pictures = GlancedFrames(facts, stored_hw, glance, batch_size)
        coarse = facts.coded_height >= COARSE * stored_hw[0]
        indexed = not self._knows_all()
        with _Run(self._uri, facts, self._config, self._storage, coarse=coarse, indexed=indexed) as run_:
            yield from self._batches(run_, Batcher(facts, batch_size, pictures))
            if indexed:
                self._take_index(run_.index())

    def _knows_all(self) -> bool:
        return self._packets is not None and self._packets.whole

    def _take_index(self, index: PacketIndex) -> None:
        self._packets = index

    def _batches(self, run_: _Run, batcher: Batcher) -> Iterator[FrameBatch]:
        found = False
        try:
            for decoded in run_.frames:
                found = True
                ready = batcher.add(decoded)
                if ready is not None:
                    yield ready
        except MediaError:
            yield from batcher.finish()
            raise
        if not found:
            raise MediaError("no_frames", f"{self._uri}: the decoder gave no frame")
        yield from batcher.finish()

    def frame_pts(self, clip: ClipReference) -> np.ndarray:
        """See `decode.VideoReader.frame_pts`.

        The span is decoded, and its frames are kept for `frames`. Where they would not fit `cache_bytes`, the times are
        those that the packets promise: a damaged one among them is then stood in for by `frames`.
        """
        if self._frame_bytes() * self._expected_frames(clip) > self._config.cache_bytes and self.index(clip).plain:
            return self.index().between(clip.start_pts, clip.end_pts)
        times = self._load(clip)
        if self.sought and not self._as_promised(clip, times):
            self._decode_from_start()
            times = self._load(clip)
        return times

    def _load(self, clip: ClipReference) -> np.ndarray:
        """Decode a span for its times; keep its frames if they fit."""
        found: list[Decoded] = []
        times, total, self._cached = [], 0, None
        for decoded in self._span(clip, clip.start_pts):
            times.append(decoded.time)
            total += bytes_of(decoded.frame)
            if total <= self._config.cache_bytes:
                found.append(decoded)
        if len(found) == len(times):
            self._cached = (clip.start_pts, clip.end_pts), found
        return np.asarray(times, dtype=np.int64)

    def _as_promised(self, clip: ClipReference, times: np.ndarray) -> bool:
        frames = self._cached[1] if self._cached else []
        whole = not any(decoded.damaged for decoded in frames)
        return whole and np.array_equal(times, self.index(clip).between(clip.start_pts, clip.end_pts))

    def _expected_frames(self, clip: ClipReference) -> float:
        rate = self.facts.avg_fps or 60
        return clip.duration_seconds * rate

    def _frame_bytes(self) -> float:
        height, width = self.facts.geometry.coded_hw
        return height * width * (1.5 if self.facts.pix_fmt in ("yuv420p", "yuvj420p") else 6)

    def _decode_from_start(self) -> None:
        """Give up seeking in this file: what a seek gave was not what the packets promise."""
        self._from_start, self.sought, self._cached = True, False, None
        self._close_run()

    def index(self, clip: ClipReference | None = None) -> PacketIndex:
        """Packet index of the stream; the first call reads the file through without decoding.

        Args:
            clip: what is asked about; a part of the index that was given to the reader is enough if it covers it.
        """
        known = self._packets
        in_part = self.parts and known is not None and (clip is None or known.covers(clip.start_pts, clip.end_pts))
        if not (in_part or self._knows_all()):
            with _INDEXING if local_path(self._uri) else nullcontext():
                self._take_index(self._read_index())
        assert self._packets is not None
        return self._packets

    def _read_index(self) -> PacketIndex:
        stored = self.facts.container.startswith("mov")  # others' dts depend on what decoding a frame tells
        with io_errors(self._uri), open_container(self._uri, self._storage, decode=not stored) as container:
            stream = choose_stream(container, self._uri, self.facts.stream_index)
            return read_index(container, stream, self.facts)

    def frames(
        self,
        clip: ClipReference,
        pts: Sequence[int] | np.ndarray,
        *,
        size_hw: tuple[int, int] | None = None,
        crop_xywh: Sequence[int] | None = None,
    ) -> ClipFrames:
        """See `decode.VideoReader.frames`."""
        import torch

        wanted = check_pts(clip, pts)
        unique, inverse = np.unique(wanted, return_inverse=True)
        out, damaged = self._picked(clip, unique, size_hw, crop_xywh)
        if len(unique) < len(wanted):
            out = out[torch.from_numpy(inverse)]
        return ClipFrames(frames_TCHW=out.to(self._device), pts=wanted, damaged=damaged[inverse])

    def _picked(
        self, clip: ClipReference, wanted: np.ndarray, size_hw: tuple[int, int] | None, crop_xywh: Sequence[int] | None
    ) -> tuple[Any, np.ndarray]:
        """Frames at distinct, ascending times, and which are damaged. If a seek gave less, again from the start."""
        out, damaged = self._converted(clip, wanted, size_hw, crop_xywh)
        if damaged.any() and self.sought:
            self._decode_from_start()
            out, damaged = self._converted(clip, wanted, size_hw, crop_xywh)
        return out, damaged

    def _converted(
        self, clip: ClipReference, wanted: np.ndarray, size_hw: tuple[int, int] | None, crop_xywh: Sequence[int] | None
    ) -> tuple[Any, np.ndarray]:
        import torch

        from vidpipe.media.resize import resize_crop

        geometry, converter = self.facts.geometry, self._full_size()
        stored = np.empty((1, *geometry.coded_hw, 3), dtype=np.uint8)
        damaged = np.zeros(len(wanted), dtype=bool)
        out: torch.Tensor | None = None
        for k, (decoded, exact) in enumerate(self._chosen(clip, wanted)):
            converter.to_rgb(decoded.frame, stored[0])
            frame_TCHW = geometry.orient_torch(torch.from_numpy(stored).permute(0, 3, 1, 2))
            if geometry.sar != (1, 1):
                frame_TCHW = resize_crop(frame_TCHW, None, geometry.display_hw)
            if clip.crop_xywh is not None:
                frame_TCHW = resize_crop(frame_TCHW, clip.crop_xywh, None)
            frame_TCHW = resize_crop(frame_TCHW, crop_xywh, size_hw)
            if out is None:
                out = torch.empty((len(wanted), *frame_TCHW.shape[1:]), dtype=torch.uint8)
            out[k] = frame_TCHW[0]
            damaged[k] = decoded.damaged or not exact
        assert out is not None
        return out, damaged

    def _full_size(self) -> Converter:
        if self._converter is None:
            self._converter = Converter(self.facts.geometry.coded_hw, self._hdr, self.facts.color_primaries)
        return self._converter

    def _chosen(self, clip: ClipReference, wanted: np.ndarray) -> Iterator[tuple[Decoded, bool]]:
        """For each wanted time, ascending and distinct, the frame on screen then, and whether it is that time's own."""
        cached = self._cached
        frames = (
            cached[1] if cached and cached[0] == (clip.start_pts, clip.end_pts) else self._span(clip, int(wanted[0]))
        )
        shown: Decoded | None = None
        k = 0
        for decoded in frames:
            while k < len(wanted) and decoded.time > wanted[k]:
                yield shown or decoded, False
                k += 1
            shown = decoded
            if k < len(wanted) and decoded.time == wanted[k]:
                yield decoded, True
                k += 1
            if k == len(wanted):
                return
        if shown is None:
            raise MediaError("no_frames", f"{self._uri}, {clip.start_seconds:.3f}-{clip.end_seconds:.3f} s: no frame")
        for _ in range(k, len(wanted)):
            yield shown, False

    def _span(self, clip: ClipReference, first: int) -> Iterator[Decoded]:
        """Frames of a clip's span from `first` on; from an entry where that is exact, else from the stream's start."""
        run_ = self._standing_before(first, clip)
        for decoded in run_.until(clip.end_pts):
            if decoded.time >= clip.start_pts:
                yield decoded

    def _standing_before(self, pts: int, clip: ClipReference) -> _Run:
        """A run whose next frames lead up to `pts` in a clip: the one that stands there, or one from an entry or the
        start."""
        run_ = self._run
        near = int(FORWARD_SECONDS / self.facts.time_base)
        if run_ is not None and run_.time < pts and (self._from_start or pts - run_.time <= near):
            return run_
        entry = None
        if not self._from_start and pts - self.facts.start_pts > near:
            index = self.index(clip)
            entry = index.entry_before(pts, seek_margin(self.facts)) if index.regular else None
        if entry is None and run_ is not None and run_.time < pts:
            return run_
        if entry is not None and run_ is not None and index.pts[entry] <= run_.time < pts:
            return run_  # nothing to gain by a seek
        self._close_run()
        self._run = _Run(self._uri, self.facts, self._config, self._storage)
        self.sought = entry is not None and self._run.enter(*index.times(entry))
        if entry is not None and not self.sought:
            self._from_start = True
            self._close_run()
            self._run = _Run(self._uri, self.facts, self._config, self._storage)
        return self._run


class _Run:
    """A decoding pass that can be continued: `time` is that of the last frame given."""

    def __init__(
        self,
        uri: str,
        facts: VideoFacts,
        config: DecodeConfig,
        storage: StorageConfig,
        *,
        coarse: bool = False,
        indexed: bool = False,
    ) -> None:
        self._stack, self._facts, self._config = ExitStack(), facts, config
        self._container = self._stack.enter_context(open_container(uri, storage))
        self._stream = choose_stream(self._container, uri, facts.stream_index)
        prepare(self._stream, config, coarse=coarse)
        self.damage = Damage(facts.codec, self._stream.codec_context.extradata)
        self._builder = IndexBuilder(facts, self._stream.codec_context.extradata) if indexed else None
        self.frames = run(self._container, self._stream, facts, config, self.damage, builder=self._builder)
        self.time = -(1 << 62)
        self._ahead: Decoded | None = None

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.frames = iter(())
        self._stack.close()

    def index(self) -> PacketIndex:
        """Index of the packets that were read, in a pass that was asked for it."""
        assert self._builder is not None
        return self._builder.finish()

    def enter(self, pts: int, dts: int | None) -> bool:
        """Go to the packet with these times; False where the container does not lead there.

        The first packet is decoded before, since a stream's parameters may be in it alone (in-band parameter sets; the
        SEI that names x264's version, by which FFmpeg knows how to read some of its streams).
        """
        import av

        with suppress(av.error.FFmpegError):
            self._stream.codec_context.decode(next(self._container.demux(self._stream)))
        for target in (pts,) if dts is None else (dts, pts, min(dts, pts) - 1):
            try:
                self._container.seek(target, stream=self._stream, backward=True)
                for packet in self._container.demux(self._stream):
                    if packet.pts == pts and packet.dts == dts:
                        self.frames = run(
                            self._container, self._stream, self._facts, self._config, self.damage, first=packet
                        )
                        return True
                    if dts is not None and (packet.dts is None or packet.dts > dts):
                        break
            except av.error.FFmpegError:
                continue
        return False

    def until(self, end: int) -> Iterator[Decoded]:
        """Frames before `end`; the first at or after it is kept for the next call."""
        while True:
            decoded, self._ahead = self._ahead or next(self.frames, None), None
            if decoded is None:
                return
            if decoded.time >= end:
                self._ahead = decoded
                return
            self.time = decoded.time
            yield decoded


def durations_of(times: np.ndarray, facts: VideoFacts) -> np.ndarray:
    """Time until the next frame, in pts units, at most MAX_FRAME_SECONDS; the last lasts until the stream's end."""
    last = max(facts.end_pts, int(times[-1]) + 1) if len(times) else 0
    return np.minimum(np.diff(times, append=last), max(1, int(MAX_FRAME_SECONDS / facts.time_base)))
