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


def choose(facts: VideoFacts, device: str, config: DecodeConfig) -> str:
    """Name of the back end; see `decode.open_video`."""
    return cpu_default()[0]
