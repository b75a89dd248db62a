"""Which back end `auto` takes for a file."""

from __future__ import annotations

from functools import lru_cache

from vidpipe.media.config import DecodeConfig
from vidpipe.media.facts import VideoFacts


@lru_cache(maxsize=1)
def cpu_default() -> tuple[str, str]:
    """Back end for CPU decoding, and why."""
    from vidpipe.media.doctor import torchcodec_problem

    problem = torchcodec_problem()
    if problem:
        return "pyav", f"torchcodec cannot be used ({problem})"
    return "torchcodec", "for clips, where it is exact for the file; PyAV for passes and other files"


@lru_cache(maxsize=1)
def gpu_default() -> tuple[str, str]:
    """Back end for a CUDA device, and why."""
    from vidpipe.media.doctor import dali_problem, nvdec_problem

    problem = nvdec_problem()
    if not problem:
        return "torchcodec-cuda", "NVDEC, where the codec and the file allow; PyAV for others"
    if not dali_problem():
        return "dali", f"torchcodec cannot use NVDEC ({problem})"
    return "pyav", f"torchcodec cannot use NVDEC ({problem}) and DALI is not there: frames are decoded on the CPU"


def choose(facts: VideoFacts, device: str, config: DecodeConfig) -> str:
    """Name of the back end; see `decode.open_video`."""
    return gpu_default()[0] if device.startswith("cuda") and facts.kind == "video" else cpu_default()[0]
