"""encode: clips of one bucket, from many files, to rows of a latent table.

Decoded clips (`vidpipe.feed`) are gathered into batches of the bucket's shape, whatever files they come from, and go
through the VAE together. On a GPU the frames stay there from NVDEC on; each batch of latents is copied once, into
pinned memory, while the next batch runs, and a thread of its own makes rows of it.

Units that share a GPU's process take turns: one has the encoder from its first batch to its last, while the next
decodes the clips that it will begin with and the last one writes.

Out of memory halves the batch and goes on; the limit is remembered for the VAE, bucket and device as long as the
process lives. A clip that fails becomes an outcome, and the others go on.
"""

from __future__ import annotations

import functools
import json
import threading
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from schemas import conditioning, ids, layout, tables
from schemas.buckets import Bucket
from schemas.columns import TableSpec
from schemas.latent_spaces import METADATA_KEY
from schemas.outcomes import Outcome
from vidpipe.bucketing import Fit
from vidpipe.conditioners.base import Conditioner, ConditionerConfig, make_conditioner, wanted
from vidpipe.encode_config import EncodeConfig, parse_fps
from vidpipe.feed import DecodedClip, FeedConfig, failed, feed
from vidpipe.sandbox import waiting, working

if TYPE_CHECKING:
    import torch

    from vidpipe.vaes.base import Vae

__all__ = ["EncodeConfig", "encode_clips", "identity", "latents_spec", "parse_fps", "table_metadata"]

Row = Mapping[str, Any]
GPU_BATCH_PIXELS = 81 * 480 * 832
"""Pixels in one call of the VAE: enough to fill an H200. More do not raise its rate (81x480x832: 165 frames/s with one
clip, 159 with four), cost memory, and make the first call wait for more clips."""
MAX_QUEUED = 2
"""Batches whose kernels wait on a device: more would only hold memory."""

_batch_limits: dict[tuple[str, str, str], int] = {}
"""Greatest number of clips that fits, by VAE, bucket and device: learned from running out of memory."""


_encoders: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""Held by the unit whose turn it is, by device."""


@functools.cache
def _encoder_thread(device: str) -> ThreadPoolExecutor:
    """The one thread of this process that encodes on a GPU, whichever threads ask: one batch at a time, and cuDNN's
    choice of algorithms, which PyTorch keeps a thread (tens of milliseconds a convolution and shape), is made once."""
    return ThreadPoolExecutor(1, thread_name_prefix=f"encode-{device}")


class Turn:
    """A unit's hold on the encoder of a GPU; on a CPU there is nothing to take turns for."""

    def __init__(self, device: str) -> None:
        self._lock = _encoders[device] if device.startswith("cuda") else None
        self._held = False

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def take(self) -> None:
        """Wait for the encoder, unless it is held already; meanwhile no deadline of the unit runs."""
        if self._lock is None or self._held:
            return
        if not self._lock.acquire(blocking=False):
            with waiting():
                self._lock.acquire()
        self._held = True

    def end(self) -> None:
        """Let the next unit have it."""
        if self._lock is not None and self._held:
            self._held = False
            self._lock.release()


def conditioners_of(config: EncodeConfig, device: str = "cpu") -> list[Conditioner]:
    """The conditioners of a configuration, made once a process; their weights are loaded at the first use."""
    return [
        _conditioner(c.name, c.source or config.source, device, ids.canonical_json(c.params).decode())
        for c in wanted(config.conditioning, config.for_model)
    ]


@functools.lru_cache(maxsize=16)
def _conditioner(name: str, source: str, device: str, params: str) -> Conditioner:
    return make_conditioner(ConditionerConfig(name=name, params=json.loads(params)), source=source, device=device)


def identity(config: EncodeConfig, vae: Vae) -> dict[str, Any]:
    """All that shapes a latent table's rows besides the clip and its geometry, for the stage's fingerprint."""
    names = sorted((c.identity() for c in conditioners_of(config)), key=ids.canonical_json)
    more = {"conditioning": names} if names else {}
    return {**config.identity(), **vae.identity(), **more}


def latents_spec(config: EncodeConfig) -> TableSpec:
    """Columns of the latent tables that this configuration writes, its conditioning columns included."""
    return tables.LATENTS.with_columns(column for c in conditioners_of(config) for column in c.columns())


def table_metadata(vae: Vae, bucket: Bucket, config: EncodeConfig | None = None) -> dict[bytes, bytes]:
    """Metadata of a latent table: the latent space, the bucket, and what the conditioning columns hold."""
    metadata = {METADATA_KEY: vae.space.to_json().encode(), layout.BUCKET_KEY: str(bucket).encode()}
    conditioners = conditioners_of(config) if config else []
    if conditioners:
        metadata[conditioning.METADATA_KEY] = conditioning.to_json(
            [c.described(vae, bucket) for c in conditioners]
        ).encode()
    return metadata


def encode_clips(
    rows: Sequence[Row],
    bucket: Bucket,
    vae: Vae,
    config: EncodeConfig,
    *,
    fingerprint: str,
    decoder: str = "auto",
    threads: int | None = None,
    progress: Callable[[int], None] = lambda index: None,
) -> tuple[pa.Table, list[Outcome]]:
    """Encode clips of one bucket.

    Args:
        rows: columns of the joined clip view (`uris` included); any files, any order.
        vae: its device is where frames are wanted.
        fingerprint: of the encode stage, for the latent ids.
        threads: files decoded at once; None for 8 on a GPU and none (in turn with the VAE) on a CPU.
        progress: told the index of the clip that a hang or a crash is to be blamed on, as it changes.
    Returns:
        rows of `latents_spec(config)` without provenance, ordered by latent_id (a hash: so files are mixed, and
        the order is the same on every machine); and one outcome a clip, its item the bucket, in the order of `rows`.
    Raises:
        BucketMismatch: the bucket is not one of the VAE's space.
    """
    vae.check_bucket(bucket)
    on_gpu = vae.device.startswith("cuda")
    how = FeedConfig(
        decoder=decoder,
        device=vae.device,
        threads=8 * on_gpu if threads is None else threads,
        ahead=max(4, 2 * batch_limit(vae, bucket, config)) if on_gpu else 2,
    )
    made: list[dict[str, Any]] = []
    outcomes: dict[bytes, Outcome] = {}
    with Turn(vae.device) as turn, Outbox(config, fingerprint, background=how.threads > 0) as outbox:
        for batch in batches(feed(rows, bucket, config, how, progress), vae, bucket, config, outcomes):
            turn.take()
            for part, tensors, seconds in encode_batch(batch, vae, bucket, config, outcomes):
                outbox.put(part, tensors)
                outcomes.update((c.row["clip_id"], kept(c, bucket, seconds)) for c in part)
        turn.end()  # its last kernels are queued: the next unit's may be queued behind them
        made = outbox.rows()
    made.sort(key=lambda r: r["latent_id"])
    return to_table(latents_spec(config), made), [outcomes[r["clip_id"]] for r in rows]


def batches(
    fed: Iterable[DecodedClip | Outcome],
    vae: Vae,
    bucket: Bucket,
    config: EncodeConfig,
    outcomes: dict[bytes, Outcome],
) -> Iterator[list[DecodedClip]]:
    """Gather decoded clips up to the batch limit; outcomes go to `outcomes`."""
    batch: list[DecodedClip] = []
    for item in fed:
        if isinstance(item, Outcome):
            outcomes[item.id] = item
            continue
        batch.append(item)
        if len(batch) >= batch_limit(vae, bucket, config):
            yield batch
            batch = []
    if batch:
        yield batch


def encode_batch(
    batch: list[DecodedClip], vae: Vae, bucket: Bucket, config: EncodeConfig, outcomes: dict[bytes, Outcome]
) -> Iterator[tuple[list[DecodedClip], dict[str, torch.Tensor], float]]:
    """Yield parts of a batch with their tensors by column and the seconds a clip; halve while memory runs out."""
    import torch

    todo = [batch]
    while todo:
        part = todo.pop(0)
        start = time.perf_counter()
        try:
            with working():  # the first of a shape may compile for minutes
                if vae.device.startswith("cuda"):
                    tensors = _encoder_thread(vae.device).submit(encode_part, part, vae, bucket, config).result()
                else:
                    tensors = encode_part(part, vae, bucket, config)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            del error
            free_memory(vae.device)
            size = batch_size(part, vae, bucket, config)
            if size == 1:
                message = f"bucket {bucket} does not fit {vae.device}'s memory, even alone"
                outcomes[part[0].row["clip_id"]] = failed(part[0].row, bucket, "out_of_memory", message)
                continue
            half = (size + 1) // 2
            _batch_limits[_key(vae, bucket)] = min(half, batch_limit(vae, bucket, config))
            todo[:0] = [part[i : i + half] for i in range(0, len(part), half)]
            continue
        yield part, tensors, (time.perf_counter() - start) / len(part)


def encode_part(part: list[DecodedClip], vae: Vae, bucket: Bucket, config: EncodeConfig) -> dict[str, torch.Tensor]:
    """The tensors of some clips by column, in the current stream."""
    import torch

    clips = [c.frames() for c in part]
    clips += [clips[-1]] * (batch_size(part, vae, bucket, config) - len(clips))
    frames = torch.stack(clips).transpose(1, 2)
    tensors = {"latent": vae.encode(frames)}
    for conditioner in conditioners_of(config, vae.device):
        tensors[conditioner.column] = conditioner.encode(frames, vae)
    return {column: tensor[: len(part)] for column, tensor in tensors.items()}


def batch_size(part: list[DecodedClip], vae: Vae, bucket: Bucket, config: EncodeConfig) -> int:
    """Clips that the VAE is given for these: a compiled one always a full batch, the last clip repeated, since another
    size would be compiled for half a minute."""
    return max(len(part), batch_limit(vae, bucket, config)) if getattr(vae, "compile", False) else len(part)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a GPU's or the host's allocator refused; the host's raises a plain RuntimeError."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def free_memory(device: str) -> None:
    """Give cached blocks back to the driver."""
    import gc

    import torch

    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def _key(vae: Vae, bucket: Bucket) -> tuple[str, str, str]:
    return vae.space.revision, str(bucket), vae.device


def batch_limit(vae: Vae, bucket: Bucket, config: EncodeConfig) -> int:
    """Clips in one call of the VAE."""
    wanted = 1
    if config.batch_frames:
        wanted = max(1, config.batch_frames // bucket.num_frames)
    elif vae.device.startswith("cuda"):
        wanted = max(1, GPU_BATCH_PIXELS // (bucket.num_frames * bucket.height * bucket.width))
    return min(wanted, _batch_limits.get(_key(vae, bucket), wanted))


class Outbox:
    """Latents on their way to rows: one copy to the host, then bytes and checksum, in a thread where asked for."""

    def __init__(self, config: EncodeConfig, fingerprint: str, background: bool) -> None:
        self.config = config
        self.fingerprint = fingerprint
        self.pool = ThreadPoolExecutor(1) if background else None
        self.futures: list[Future[list[dict[str, Any]]]] = []
        self.queued: deque[Any] = deque()

    def __enter__(self) -> Outbox:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.pool:
            self.pool.shutdown(cancel_futures=True)

    def put(self, clips: list[DecodedClip], tensors: dict[str, torch.Tensor]) -> None:
        """Take a batch; the copies are queued behind the encoder on the device, and nothing waits for them here."""
        wait = None
        if tensors["latent"].is_cuda:
            import torch

            if len(self.queued) >= MAX_QUEUED:
                self.queued.popleft().synchronize()
            tensors = {name: to_pinned(tensor) for name, tensor in tensors.items()}
            wait = torch.cuda.Event()
            wait.record()
            self.queued.append(wait)
        facts = [(c.row, c.fit, c.start_seconds) for c in clips]  # the frames themselves are let go
        if self.pool:
            self.futures.append(self.pool.submit(self._rows, facts, tensors, wait))
        else:
            done: Future[list[dict[str, Any]]] = Future()
            done.set_result(self._rows(facts, tensors, wait))
            self.futures.append(done)

    def rows(self) -> list[dict[str, Any]]:
        """All rows; waits for what is on its way."""
        return [row for future in self.futures for row in future.result()]

    def _rows(
        self, facts: list[tuple[Row, Fit, float]], tensors: dict[str, torch.Tensor], wait: Any
    ) -> list[dict[str, Any]]:
        if wait is not None:
            wait.synchronize()
        of_clip = [dict(zip(tensors, parts)) for parts in zip(*tensors.values())]
        return [self._row(row, fit, at, parts) for (row, fit, at), parts in zip(facts, of_clip)]

    def _row(self, row: Row, fit: Fit, start_seconds: float, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        data = {name: latent_bytes(tensor) for name, tensor in tensors.items()}
        geometry = {"bucket": str(fit.bucket), "crop": list(fit.crop_xywh)}
        rate = self.config.rate
        return {
            "latent_id": ids.latent_id(row["clip_id"], rate, geometry, self.fingerprint),
            "clip_id": row["clip_id"],
            "fps": float(rate) if rate else row.get("fps"),
            "start_seconds": start_seconds,
            "crop": list(fit.crop_xywh),
            "frames_dropped": fit.frames_dropped,
            "scale": fit.scale,
            "cropped_fraction": fit.cropped_fraction,
            **data,
            **{f"{name}_crc32": zlib.crc32(payload) for name, payload in data.items()},
        }


def to_pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Start a copy into pinned host memory, in the current stream's order."""
    import torch

    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def kept(clip: DecodedClip, bucket: Bucket, seconds: float) -> Outcome:
    """Outcome of an encoded clip: decoding and its share of the batch."""
    return Outcome(id=clip.row["clip_id"], item=str(bucket), status="kept", seconds=clip.seconds + seconds)


def latent_bytes(latent: torch.Tensor) -> bytes:
    """Raw bytes, C order, little endian."""
    import torch

    return latent.contiguous().view(torch.uint8).numpy().tobytes()


def to_table(spec: TableSpec, rows: Sequence[Row]) -> pa.Table:
    """Arrow table of a spec's columns but provenance."""
    fields = [c.field() for c in spec.columns if c.name not in ("fingerprint", "unit_id")]
    return pa.table({f.name: pa.array([r.get(f.name) for r in rows], f.type) for f in fields}, schema=pa.schema(fields))
