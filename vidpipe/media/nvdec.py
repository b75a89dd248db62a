"""What the NVDEC of a GPU decodes, asked of the driver (`cuvidGetDecoderCaps` of NVIDIA's Video Codec SDK)."""

from __future__ import annotations

import ctypes
from functools import lru_cache

CODECS = {"mpeg1video": 0, "mpeg2video": 1, "mpeg4": 2, "vc1": 3, "h264": 4, "mjpeg": 5, "hevc": 8, "vp8": 9, "vp9": 10,
          "av1": 11}  # fmt: skip
"""FFmpeg's codec names and the numbers of `cudaVideoCodec`."""
_YUV_420 = 1


class _Caps(ctypes.Structure):
    """CUVIDDECODECAPS."""

    _fields_ = (
        ("codec", ctypes.c_int), ("chroma", ctypes.c_int), ("bit_depth_minus_8", ctypes.c_uint),
        ("reserved1", ctypes.c_uint * 3), ("supported", ctypes.c_ubyte), ("engines", ctypes.c_ubyte),
        ("output_formats", ctypes.c_ushort), ("max_width", ctypes.c_uint), ("max_height", ctypes.c_uint),
        ("max_macroblocks", ctypes.c_uint), ("min_width", ctypes.c_ushort), ("min_height", ctypes.c_ushort),
        ("histogram", ctypes.c_ubyte), ("counter_bits", ctypes.c_ubyte), ("histogram_bins", ctypes.c_ushort),
        ("reserved3", ctypes.c_uint * 10),
    )  # fmt: skip


@lru_cache(maxsize=256)
def engines(codec: str, bit_depth: int = 8, device: int = 0) -> int:
    """NVDEC engines of a GPU that decode 4:2:0 of a codec; 0 if it has no hardware for it.

    Raises:
        RuntimeError: no GPU, or the driver's library does not answer.
    """
    import torch

    if codec not in CODECS:
        return 0
    try:
        library = ctypes.CDLL("libnvcuvid.so.1")
    except OSError as error:
        raise RuntimeError(f"the driver's video library cannot be loaded: {error}") from None
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # makes the device's context the current one
        caps = _Caps(codec=CODECS[codec], chroma=_YUV_420, bit_depth_minus_8=bit_depth - 8)
        code = library.cuvidGetDecoderCaps(ctypes.byref(caps))
    if code:
        raise RuntimeError(f"cuvidGetDecoderCaps: CUDA error {code}")
    return int(caps.engines) if caps.supported else 0


def summary(device: int = 0) -> str:
    """Codecs with hardware, and those without."""
    found = {codec: max(engines(codec, bits, device) for bits in (8, 10)) for codec in CODECS}
    has = ", ".join(codec for codec, count in found.items() if count)
    lacks = ", ".join(codec for codec, count in found.items() if not count)
    return f"{max(found.values())} engines for {has}" + (f"; none for {lacks}" if lacks else "")
