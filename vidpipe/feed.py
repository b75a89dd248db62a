"""Feed: from clips of one bucket to their frames, each file opened once, in as many threads as asked for.

Threads, not processes: decoders release the interpreter, NVDEC wants several streams at once from one CUDA context, and
frames then never move between processes. A bounded queue keeps the decoders no further ahead than the encoder needs.
With no threads the same steps run one after another in the caller, which is best where each core has its own worker.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING, Any

from schemas.buckets import Bucket
from schemas.errors import UserError
from schemas.outcomes import Outcome
from vidpipe.bucketing import Fit, Misfit, describe, fit
from vidpipe.encode_config import EncodeConfig
from vidpipe.media.errors import MediaError
from vidpipe.media.reference import ClipReference

if TYPE_CHECKING:
    import torch

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class DecodedClip:
    """A clip ready for the VAE.

    Attributes:
        frames_TCHW: uint8 RGB of the bucket's size, on the decoder's device.
        start_seconds: time of the first frame in the source.
        seconds: wall time spent on decoding it.
        ready: CUDA event after which the frames may be read; None on a CPU.
    """

    row: Row
    fit: Fit
    frames_TCHW: torch.Tensor
    start_seconds: float
    seconds: float
    ready: Any = None

    def frames(self) -> torch.Tensor:
        """The frames, for use in the current stream."""
        if self.ready is not None:
            import torch

            stream = torch.cuda.current_stream(self.frames_TCHW.device)
            stream.wait_event(self.ready)
            self.frames_TCHW.record_stream(stream)
        return self.frames_TCHW


@dataclass(frozen=True, kw_only=True)
class FeedConfig:
    """How clips are decoded; no effect on the frames.

    Attributes:
        decoder: a name of `vidpipe.registry.DECODERS`, or `auto`.
        device: where frames shall be.
        threads: files decoded at once; 0 decodes in the caller.
        ahead: clips that may wait for the encoder.
    """

    decoder: str = "auto"
    device: str = "cpu"
    threads: int = 0
    ahead: int = 4


Fed = DecodedClip | Outcome


class Watch:
    """Which clip a hang or a crash is to be blamed on: the one that has been decoding longest.

    Args:
        progress: told the index of that clip among `rows`, whenever it changes.
    """

    def __init__(self, rows: Sequence[Row], progress: Callable[[int], None]) -> None:
        self._index = {id(row): i for i, row in enumerate(rows)}
        self._progress = progress
        self._decoding: dict[int, None] = {}  # insertion order is age
        self._lock = threading.Lock()

    def start(self, row: Row) -> None:
        """A thread begins with a clip."""
        with self._lock:
            self._decoding[self._index[id(row)]] = None
            self._tell()

    def end(self, row: Row) -> None:
        """A clip is decoded, or given up."""
        with self._lock:
            self._decoding.pop(self._index[id(row)], None)
            self._tell()

    def _tell(self) -> None:
        if self._decoding:
            self._progress(next(iter(self._decoding)))


def feed(
    rows: Sequence[Row],
    bucket: Bucket,
    config: EncodeConfig,
    how: FeedConfig,
    progress: Callable[[int], None] = lambda index: None,
) -> Iterator[Fed]:
    """Yield frames or an outcome for each clip, in any order.

    Args:
        rows: columns of the joined clip view, `uris` included.
        progress: see `Watch`; called by one thread at a time.
    """
    watch = Watch(rows, progress)
    ordered = sorted(rows, key=lambda r: (tuple(r["uris"]), r["stream_index"], r["start_pts"], r["end_pts"]))
    files = [list(group) for _, group in groupby(ordered, key=lambda r: (tuple(r["uris"]), r["stream_index"]))]
    if how.threads == 0:
        for clips in files:
            yield from _decode_file(clips, bucket, config, how, watch)
    else:
        yield from _threaded(files, bucket, config, how, watch)


def _threaded(
    files: list[list[Row]], bucket: Bucket, config: EncodeConfig, how: FeedConfig, watch: Watch
) -> Iterator[Fed]:
    todo: queue.SimpleQueue[list[Row]] = queue.SimpleQueue()
    for clips in files:
        todo.put(clips)
    done: queue.Queue[Fed | BaseException | None] = queue.Queue(maxsize=how.ahead)
    stop = threading.Event()

    def put(item: Fed | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                done.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work(number: int) -> None:
        try:
            with own_stream(how.device, number):
                decode()
        except BaseException as error:  # handed to the consumer, which raises it
            put(error)
        finally:
            put(None)

    def decode() -> None:
        while not stop.is_set():
            try:
                clips = todo.get_nowait()
            except queue.Empty:
                return
            for item in _decode_file(clips, bucket, config, how, watch):
                if not put(item):
                    return

    count = min(how.threads, len(files))
    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(work, number), daemon=True)
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        running = len(threads)
        while running:
            item = done.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def own_stream(device: str, number: int) -> Iterator[None]:
    """The CUDA stream of a feed's thread: in the default one its frames would wait for the encoder's whole queue."""
    if not device.startswith("cuda"):
        yield
        return
    import torch

    with torch.cuda.stream(_stream(device, number)):
        yield


@functools.cache
def _stream(device: str, number: int) -> Any:
    """The same for every unit: PyTorch keeps freed memory a stream, and asks the driver for more in a new one."""
    import torch

    return torch.cuda.Stream(device)


def _decode_file(
    clips: list[Row], bucket: Bucket, config: EncodeConfig, how: FeedConfig, watch: Watch
) -> Iterator[Fed]:
    """All clips of one file, in pts order, through one reader; the file's next location where one cannot be opened."""
    start = time.perf_counter()
    watch.start(clips[0])
    try:
        reader = _open(clips, config, how)
    except MediaError as error:
        watch.end(clips[0])
        seconds = (time.perf_counter() - start) / len(clips)
        for row in clips:
            yield failed(row, bucket, error.reason, f"{describe(row)}: {error}", seconds)
        return
    with reader:
        for row in clips:
            watch.start(row)
            item = decode_clip(reader, row, bucket, config)
            watch.end(row)
            yield item


def _open(clips: Sequence[Row], config: EncodeConfig, how: FeedConfig) -> Any:
    """A reader of the file; of the next location where one cannot be opened. Known facts save opening the last one,
    known packets reading any of them through."""
    from vidpipe.media.decode import open_video
    from vidpipe.media.facts import VideoFacts
    from vidpipe.media.identity import check_unchanged
    from vidpipe.media.packets import index_of

    row, packets = clips[0], index_of(clips)

    def opened(uri: str, facts: VideoFacts | None = None) -> Any:
        check_unchanged(uri, row)
        return open_video(
            uri,
            row["stream_index"],
            decoder=how.decoder,
            device=how.device,
            config=config.decode,
            facts=facts,
            packets=packets,
        )

    *others, last = row["uris"]
    for uri in others:
        try:
            return opened(uri)
        except MediaError as error:
            if error.reason not in ("io_error", "changed"):
                raise
    return opened(last, VideoFacts.of(last, row.get("video_facts") or {}))


def decode_clip(reader: Any, row: Row, bucket: Bucket, config: EncodeConfig) -> Fed:
    """One clip through an open reader: its frames at the rate, cropped and scaled; or why not."""
    start = time.perf_counter()
    answer = fit(row, bucket, config.rate, config.limits)
    if isinstance(answer, Misfit):
        return rejected(row, bucket, answer.reason, answer.message)
    try:
        clip = reference(row)
        frames, first_pts = _sampled(reader, clip, row, answer, config.rate)
    except MediaError as error:
        return failed(row, bucket, error.reason, f"{describe(row)}: {error}", time.perf_counter() - start)
    except UserError as error:
        return failed(row, bucket, "bad_geometry", f"{describe(row)}: {error}", time.perf_counter() - start)
    damaged = float(frames.damaged.mean())
    if damaged > config.max_damaged:
        message = (
            f"{describe(row)}: {damaged:.0%} of its frames are damaged, over the limit of {config.max_damaged:.0%}"
        )
        return rejected(row, bucket, "damaged", message, f"damaged_fraction={damaged:.4g}")
    return DecodedClip(
        row=row,
        fit=answer,
        frames_TCHW=frames.frames_TCHW,
        start_seconds=float(first_pts * clip.time_base),
        seconds=time.perf_counter() - start,
        ready=_event(frames.frames_TCHW),
    )


def _event(frames_TCHW: torch.Tensor) -> Any:
    """Event of the current stream, after the frames; None for frames on a CPU."""
    if not frames_TCHW.is_cuda:
        return None
    import torch

    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(frames_TCHW.device))
    return event


def _sampled(reader: Any, clip: ClipReference, row: Row, answer: Fit, fps: Fraction | None) -> tuple[Any, int]:
    from vidpipe.media.sampling import sample_pts

    bucket = answer.bucket
    rate = None if row["num_frames"] == 1 else fps
    pts = sample_pts(reader.frame_pts(clip), None, clip, rate, bucket.num_frames)
    frames = reader.frames(clip, pts, size_hw=(bucket.height, bucket.width), crop_xywh=answer.crop_xywh)
    return frames, int(pts[0])


def reference(row: Row) -> ClipReference:
    """A clip row's span, without the user's crop: `Fit.crop_xywh` holds that already."""
    return dataclasses.replace(ClipReference.of(row), crop_xywh=None)


def failed(row: Row, bucket: Bucket, reason: str, message: str, seconds: float = 0.0) -> Outcome:
    """Outcome of a clip that could not be encoded."""
    return Outcome(
        id=row["clip_id"], item=str(bucket), status="failed", reason=reason, message=message, seconds=seconds
    )


def rejected(row: Row, bucket: Bucket, reason: str, message: str, value: str = "") -> Outcome:
    """Outcome of a clip that a rule keeps out of the bucket."""
    return Outcome(id=row["clip_id"], item=str(bucket), status="rejected", reason=reason, message=message, value=value)
