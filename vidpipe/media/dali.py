"""The DALI back end on an NVIDIA GPU: `fn.decoders.video` over a file's bytes, frames chosen by their place in time.

Written for DALI 2.4. DALI takes whole files in memory, knows neither rotation nor pixel aspect (both applied here, on
the device), names no times (frame k is taken for the k-th of the packet index), converts by one matrix, BT.601, and
interpolates chroma. So it is used where that index is plain and its entries proven, for SDR files of that matrix up to
`FILE_BYTES`, and once its first frame of a file has been found to be PyAV's by its luma; others, and passes, go through
PyAV. One pipeline a thread and device is built and kept.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from vidpipe.media.files import open_bytes
from vidpipe.media.pyav import PyAvReader
from vidpipe.media.reference import ClipReference
from vidpipe.media.torchcodec_cpu import TorchcodecReader

FILE_BYTES = 1 << 30
CODECS = frozenset(("h264", "hevc", "vp8", "vp9", "av1", "mpeg4"))
MATRICES = (None, "smpte170m", "bt470bg")
LEAST_PSNR_DB = 40.0
"""Of luma. A frame of another time, crop, range or matrix is below. DALI interpolates chroma, which PyAV replicates, so
that where colours change abruptly RGB of the same frame differs more (34 dB in test pictures)."""
LUMA = (0.299, 0.587, 0.114)
_kept = threading.local()


class DaliReader(TorchcodecReader):
    """See `decode.VideoReader`; frames of intact clips stay on `device`."""

    torchcodec_name = "dali"
    parts = False
    _data: np.ndarray | None = None
    _agrees: bool | None = None

    def eligible(self, clip: ClipReference | None = None) -> bool:
        """Whether DALI is exact for this file, as far as is known."""
        facts, index = self.facts, self.index(clip)
        if self._agrees is False or facts.color_space not in MATRICES:
            return False
        simple = facts.pix_fmt in ("yuv420p", "yuvj420p") and not (facts.hdr or facts.interlaced)
        small = 0 < facts.size_bytes <= FILE_BYTES and facts.num_video_streams == 1
        return simple and small and facts.codec in CODECS and index.plain and index.keyframes_proven

    def trusts(self, clip: ClipReference) -> bool:
        """Whether the clip goes through DALI: all but those known to be damaged."""
        return clip.intact is not False and self.eligible()

    def _by_torchcodec(
        self, clip: ClipReference, wanted: np.ndarray, size_hw: tuple[int, int] | None, crop_xywh: Sequence[int] | None
    ) -> tuple[Any, np.ndarray]:
        import torch

        from vidpipe.media.resize import resize_crop

        where = np.searchsorted(self.index().shown(), wanted).astype(np.int32)
        if self._agrees is None:
            self._compare(clip, int(wanted[0]), where[:1])
        step = max(1, self.chunk_bytes // (3 * self.facts.coded_width * self.facts.coded_height))
        parts = []
        for start in range(0, len(where), step):
            frames_TCHW = self._square(self._decoded(where[start : start + step]))
            if clip.crop_xywh is not None:
                frames_TCHW = resize_crop(frames_TCHW, clip.crop_xywh, None)
            parts.append(resize_crop(frames_TCHW, crop_xywh, size_hw))
        self.decoder_name = self.torchcodec_name
        return torch.cat(parts), np.zeros(len(wanted), dtype=bool)

    def _compare(self, clip: ClipReference, time: int, where: np.ndarray) -> None:
        """Raise RuntimeError, once and for all, unless DALI's frame is PyAV's."""
        from dataclasses import replace

        import torch

        self._agrees = False
        with PyAvReader(self._uri, facts=self.facts, config=self._config, storage=self._storage) as reader:
            truth_TCHW = reader.frames(replace(clip, crop_xywh=None), [time]).frames_TCHW
        error = self._square(self._decoded(where)).cpu().float() - truth_TCHW.float()
        mean = float((error.movedim(1, -1) @ torch.tensor(LUMA)).square().mean())
        self._agrees = mean <= 255**2 / 10 ** (LEAST_PSNR_DB / 10)
        if not self._agrees:
            raise RuntimeError(f"DALI's frame at {time} is not PyAV's: mean squared difference of luma {mean:.0f}")

    def _decoded(self, where: np.ndarray) -> Any:
        """uint8 [T, 3, H, W] on the device, as stored."""
        import torch

        if self._data is None:
            with open_bytes(self._uri, self._storage) as file:
                self._data = np.frombuffer(file.read(), np.uint8)
        pipeline = _pipeline(torch.device(self._device).index or 0)
        pipeline.feed_input("encoded", [self._data])
        pipeline.feed_input("frames", [where])
        (output,) = pipeline.run()
        frames_THWC = torch.from_dlpack(output[0]).clone()  # DALI's memory is the pipeline's
        expected = (len(where), *self.facts.geometry.coded_hw, 3)
        if tuple(frames_THWC.shape) != expected:
            raise RuntimeError(f"DALI gave frames {tuple(frames_THWC.shape)}, expected {expected}")
        return frames_THWC.permute(0, 3, 1, 2)

    def _square(self, frames_TCHW: Any) -> Any:
        from vidpipe.media.resize import resize_crop

        geometry = self.facts.geometry
        return resize_crop(geometry.orient_torch(frames_TCHW), None, geometry.display_hw)


def _pipeline(device_id: int) -> Any:
    """This thread's pipeline on a device."""
    pipelines: dict[int, Any] | None = getattr(_kept, "pipelines", None)
    if pipelines is None:
        pipelines = _kept.pipelines = {}
    if device_id not in pipelines:
        pipelines[device_id] = _built(device_id)
    return pipelines[device_id]


def _built(device_id: int) -> Any:
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=1, num_threads=1, device_id=device_id, prefetch_queue_depth=1)
    def decode() -> Any:
        encoded = fn.external_source(name="encoded", ndim=1)
        frames = fn.external_source(name="frames", ndim=1)
        return fn.decoders.video(encoded, frames=frames, device="mixed", pad_mode="none")

    built = decode()
    built.build()
    return built
