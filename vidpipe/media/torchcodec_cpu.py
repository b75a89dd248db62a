"""The torchcodec back end on the CPU: exact frames of clips from its decoder, in files where its seeks are exact.

torchcodec trusts containers' keyframe flags and hides decode errors. So a clip is given to it only if a pass saw it
intact, the packet index is plain and each flagged keyframe is a proven clean entry; other clips, HDR, mirrored or
interlaced pictures go through PyAV, with the same pixels. Passes go through PyAV always, since damage must be seen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from vidpipe.media.files import local_path, open_bytes
from vidpipe.media.packets import PacketIndex
from vidpipe.media.pyav import PyAvReader
from vidpipe.media.reference import ClipReference

CODECS = frozenset(("h264", "hevc", "av1", "vp8", "vp9", "mjpeg"))


class TorchcodecReader(PyAvReader):
    """See `decode.VideoReader`. `decoder_name` is `pyav` until `frames` has used torchcodec.

    Attributes:
        problem: what made it leave a clip to PyAV that it had trusted itself with; empty if nothing did.
    """

    torchcodec_name = "torchcodec"
    problem = ""
    chunk_bytes = 192 << 20
    """Full-size RGB frames that are held before they are cropped and scaled."""
    _decoder: Any = None
    _file: Any = None

    def __exit__(self, *exc: object) -> None:
        self._close_decoder()
        super().__exit__(*exc)

    def _close_decoder(self) -> None:
        self._decoder = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def eligible(self, clip: ClipReference | None = None) -> bool:
        """Whether torchcodec is exact for intact clips of this file; a part of its index that has `clip` tells."""
        facts = self.facts
        plain_picture = not (facts.hdr or facts.hflip or facts.interlaced) and facts.pix_fmt in ("yuv420p", "yuvj420p")
        # profiles with lossless blocks are read by x264's version, which torchcodec's seek forgets
        known = facts.codec in CODECS and "4:4:4" not in (facts.profile or "")
        return plain_picture and known and self.index(clip).plain and self.index(clip).keyframes_proven

    def _take_index(self, index: PacketIndex) -> None:
        self._close_decoder()  # it was told of the packets that were known
        super()._take_index(index)

    def trusts(self, clip: ClipReference) -> bool:
        """Whether the clip goes through torchcodec."""
        return bool(clip.intact) and self.eligible(clip)

    def frame_pts(self, clip: ClipReference) -> np.ndarray:
        """See `decode.VideoReader.frame_pts`: from the packet index where torchcodec decodes."""
        if self.trusts(clip):
            return self.index().between(clip.start_pts, clip.end_pts)
        return super().frame_pts(clip)

    def _converted(
        self, clip: ClipReference, wanted: np.ndarray, size_hw: tuple[int, int] | None, crop_xywh: Sequence[int] | None
    ) -> tuple[Any, np.ndarray]:
        import torch

        if self.trusts(clip) and np.isin(wanted, self.index().shown()).all():
            try:
                return self._by_torchcodec(clip, wanted, size_hw, crop_xywh)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # a damaged packet ends its batch; PyAV says which frames are lost
                self.problem = str(error)
        self.decoder_name = "pyav"
        return super()._converted(clip, wanted, size_hw, crop_xywh)

    def _by_torchcodec(
        self, clip: ClipReference, wanted: np.ndarray, size_hw: tuple[int, int] | None, crop_xywh: Sequence[int] | None
    ) -> tuple[Any, np.ndarray]:
        import torch

        from vidpipe.media.resize import resize_crop

        decoder = self._opened()
        where = np.searchsorted(self.index().shown(), wanted).tolist()
        sample_bytes = 4 if self.facts.hdr else 1
        step = max(1, self.chunk_bytes // (3 * sample_bytes * self.facts.coded_width * self.facts.coded_height))
        parts = []
        for start in range(0, len(where), step):
            batch = decoder.get_frames_at(where[start : start + step])
            self._check_times(batch, wanted[start : start + step])
            frames_TCHW = self._square(batch.data)
            if clip.crop_xywh is not None:
                frames_TCHW = resize_crop(frames_TCHW, clip.crop_xywh, None)
            parts.append(resize_crop(frames_TCHW, crop_xywh, size_hw))
        self.decoder_name = self.torchcodec_name
        return parts[0] if len(parts) == 1 else torch.cat(parts), np.zeros(len(wanted), dtype=bool)

    def _opened(self) -> Any:
        if self._decoder is None:
            from torchcodec.decoders import VideoDecoder

            source: Any = local_path(self._uri)
            if source is None:
                source = self._file = open_bytes(self._uri, self._storage)
            self._decoder = VideoDecoder(
                source,
                stream_index=self.facts.stream_index,
                num_ffmpeg_threads=self._config.num_threads,
                custom_frame_mappings=self._mappings(),
            )
        return self._decoder

    def _mappings(self) -> str | None:
        """The known packets in torchcodec's form: it then does not read the file through for itself."""
        times = self.index().shown()
        if not len(times):
            return None
        durations = np.maximum(1, np.diff(times, append=times[-1:] + 1))
        keys = ("pts", "duration", "key_frame")
        columns = times.tolist(), durations.tolist(), self.index().flagged().astype(int).tolist()
        return json.dumps({"frames": [dict(zip(keys, values)) for values in zip(*columns)]})

    def _check_times(self, batch: Any, wanted: np.ndarray) -> None:
        """Raise RuntimeError unless torchcodec's frames are those of these times."""
        given = batch.pts_seconds.cpu().numpy() / float(self.facts.time_base)
        if not np.array_equal(np.rint(given).astype(np.int64), wanted):
            raise RuntimeError("torchcodec gave frames of other times")

    def _square(self, frames_TCHW: Any) -> Any:
        """Square pixels; torchcodec has rotated already."""
        from vidpipe.media.resize import resize_crop

        display_hw = self.facts.geometry.display_hw
        same = tuple(frames_TCHW.shape[2:]) == tuple(display_hw)
        return frames_TCHW if same else resize_crop(frames_TCHW, None, display_hw)
