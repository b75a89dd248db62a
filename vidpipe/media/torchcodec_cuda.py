"""The torchcodec back end on an NVIDIA GPU: NVDEC to RGB to the asked size, without a copy to the host.

What NVDEC decodes is told by torchcodec itself (`cpu_fallback`); where it would fall back, and in files where its seeks
are not proven exact, frames come from PyAV on the CPU and are moved, and `decoder_name` says so. HDR comes as float32
and is mapped on the device. Written for torchcodec 0.17, whose NVDEC interface converts by the stream's matrix and
range and rotates, but takes no transforms: cropping and scaling are ours.

Two hazards of its cache of idle NVDEC decoders: surfaces of another crop (keyed by coded size since 0.17, and held by
a test), and a decoder left in a bad state by a broken file. So after any failure the idle decoders are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vidpipe.media.decode import FrameBatch, Glance, scan_size
from vidpipe.media.files import local_path, open_bytes
from vidpipe.media.packets import CUT_SHORT
from vidpipe.media.pyav import durations_of
from vidpipe.media.reference import ClipReference
from vidpipe.media.torchcodec_cpu import TorchcodecReader

CODECS = frozenset(("h264", "hevc", "av1", "vp8", "vp9", "mpeg4", "mpeg1video", "mpeg2video", "mjpeg"))
"""Codecs that NVDEC has hardware for; profiles are asked of torchcodec."""


class TorchcodecCudaReader(TorchcodecReader):
    """See `decode.VideoReader`; frames stay on `device`.

    Passes are NVDEC's too: fast, but decode errors are hidden. Only packets that the container marks are then damaged.
    """

    torchcodec_name = "torchcodec-cuda"
    parts = False  # until NVDEC is shown to give the same frames by torchcodec's mappings: test_gpu.py
    chunk_bytes = 512 << 20
    _fell_back: bool | None = None

    def eligible(self, clip: ClipReference | None = None) -> bool:
        """Whether NVDEC decodes this file, and is exact in it."""
        if self.facts.codec not in CODECS or self.facts.interlaced:
            return False
        if not (self.index(clip).plain and self.index(clip).keyframes_proven):
            return False
        if self._fell_back is None:
            self._fell_back = self._falls_back()
        return not self._fell_back

    def trusts(self, clip: ClipReference) -> bool:
        """Whether the clip goes through NVDEC: all but those known to be damaged."""
        return clip.intact is not False and self.eligible(clip)

    def _falls_back(self) -> bool:
        """Whether torchcodec would decode on the CPU. The interface of 0.17 knows when the decoder is made."""
        try:
            return bool(self._opened().cpu_fallback)
        except RuntimeError:
            self._forget()
            return True

    def _opened(self) -> Any:
        if self._decoder is None:
            import torch
            from torchcodec.decoders import VideoDecoder

            source: Any = local_path(self._uri)
            if source is None:
                source = self._file = open_bytes(self._uri, self._storage)
            dtype: dict[str, Any] = {"output_dtype": torch.float32} if self.facts.hdr else {}
            self._decoder = VideoDecoder(source, stream_index=self.facts.stream_index, device=self._device, **dtype)
        return self._decoder

    def _by_torchcodec(
        self, clip: ClipReference, wanted: np.ndarray, size_hw: tuple[int, int] | None, crop_xywh: Sequence[int] | None
    ) -> tuple[Any, np.ndarray]:
        try:
            return super()._by_torchcodec(clip, wanted, size_hw, crop_xywh)
        except RuntimeError:
            self._forget()
            raise

    def _forget(self) -> None:
        """Drop the decoder and torchcodec's idle ones: one that met a broken file must not serve the next."""
        from torchcodec.decoders import get_nvdec_cache_capacity, set_nvdec_cache_capacity

        self._close_decoder()
        capacity = get_nvdec_cache_capacity()
        set_nvdec_cache_capacity(0)
        set_nvdec_cache_capacity(capacity)

    def _square(self, frames_TCHW: Any) -> Any:
        """HDR mapped, mirrored, square pixels; torchcodec has rotated already."""
        if self.facts.hdr:
            from vidpipe.media.tone_map import to_sdr_torch

            frames_TCHW = to_sdr_torch(frames_TCHW, self.facts.color_transfer or "", self.facts.color_primaries)
        if self.facts.hflip:  # of a mirrored matrix torchcodec takes an angle a for 180 - a
            frames_TCHW = frames_TCHW.flip(3 if self.facts.rotation % 180 else 2)
        return super()._square(frames_TCHW)

    def scan(
        self,
        *,
        size_hw: tuple[int, int] | None = None,
        max_short_side: int | None = None,
        batch_size: int = 32,
        glance: Glance | None = None,
    ) -> Iterator[FrameBatch]:
        """See `decode.VideoReader.scan`. Scaled on the device; only the small frames are copied to the host."""
        if not self.eligible():
            yield from super().scan(
                size_hw=size_hw, max_short_side=max_short_side, batch_size=batch_size, glance=glance
            )
            return
        out_hw = scan_size(self.facts, size_hw, max_short_side)
        times = self.index().shown()
        durations, cut_short = durations_of(times, self.facts), np.isin(times, self._cut_short())
        height, width = self.facts.geometry.coded_hw
        step = max(1, min(batch_size, self.chunk_bytes // (12 * height * width)))
        self.decoder_name = self.torchcodec_name
        for start in range(0, len(times), step):
            part = slice(start, min(start + step, len(times)))
            try:
                frames_THWC = self._small(part.start, part.stop, times[part], out_hw)
            except RuntimeError:
                yield from self._rest(int(times[start]), size_hw, max_short_side, batch_size)
                return
            yield FrameBatch(
                frames_THWC=frames_THWC, pts=times[part], durations=durations[part], damaged=cut_short[part]
            )

    def _rest(
        self, start: int, size_hw: tuple[int, int] | None, max_short_side: int | None, batch_size: int
    ) -> Iterator[FrameBatch]:
        """What a pass has left where NVDEC failed, by PyAV, which sees the damage."""
        self._forget()
        self._fell_back, self.decoder_name = True, "pyav"
        for batch in super().scan(size_hw=size_hw, max_short_side=max_short_side, batch_size=batch_size):
            keep = batch.pts >= start
            if keep.any():
                yield FrameBatch(
                    frames_THWC=batch.frames_THWC[keep],
                    pts=batch.pts[keep],
                    durations=batch.durations[keep],
                    damaged=batch.damaged[keep],
                )

    def _small(self, start: int, stop: int, times: np.ndarray, out_hw: tuple[int, int]) -> np.ndarray:
        from torch.nn.functional import interpolate

        batch = self._opened().get_frames_in_range(start, stop)
        self._check_times(batch, times)
        frames_TCHW = self._square(batch.data)
        if tuple(frames_TCHW.shape[2:]) != out_hw:
            small = interpolate(frames_TCHW.float(), size=out_hw, mode="bilinear", antialias=True)
            frames_TCHW = small.round_().clamp_(0, 255).byte()
        return frames_TCHW.permute(0, 2, 3, 1).contiguous().cpu().numpy()

    def _cut_short(self) -> np.ndarray:
        """Times of packets that the container marks as damaged."""
        index = self.index()
        return index.pts[(index.flags & CUT_SHORT) > 0]
