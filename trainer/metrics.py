"""What a run says: a line a log interval in torchtitan's form, `metrics.jsonl`, TensorBoard, and a curve as SVG."""

from __future__ import annotations

import json
import logging
import math
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from schemas.errors import UserError
from trainer.curve import write_curve

log = logging.getLogger("trainer")

PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "H100 PCIe": 756e12, "A100": 312e12, "B200": 2250e12}
"""Dense bfloat16 FLOP/s by what the device's name contains, from NVIDIA's data sheets; the longest match holds."""


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Logging.

    Attributes:
        every: steps between lines.
        tensorboard: also write event files under RUN/tensorboard.
    """

    every: int = 10
    tensorboard: bool = True

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UserError(f"log.every: expected at least 1, found {self.every}")


def peak_flops(device: torch.device) -> float | None:
    """Dense bfloat16 FLOP/s of a known GPU; None elsewhere, where no MFU is printed."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    matches = [key for key in PEAK_FLOPS if key in name]
    return PEAK_FLOPS[max(matches, key=len)] if matches else None


def memory_bytes(device: torch.device) -> int:
    """Most memory held so far: reserved on a GPU, resident in the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass(frozen=True, kw_only=True)
class Interval:
    """What happened over some steps, over all ranks.

    Attributes:
        step: steps done at its end.
        loss: mean over its steps.
        seconds: wall time.
        tokens: that counted, over all ranks.
        flops: forward and backward of the model, over all ranks.
        data_seconds: mean over ranks of the time that a step waited for its packs.
        data_cause: what it waited for, where the loader says so.
        padding: share of the packs' budgets that is padding.
        imbalance: sum over steps of the most FLOPs of a rank, over the sum of the means; 1 is level.
        bins: training loss by timestep; NaN where there was no sample.
    """

    step: int
    num_steps: int
    loss: float
    grad_norm: float
    lr: float
    seconds: float
    tokens: float
    flops: float
    data_seconds: float
    padding: float
    imbalance: float
    memory_bytes: int
    size: int = 1
    peak_flops: float | None = None
    data_cause: str = ""
    bins: tuple[float, ...] = ()

    @property
    def tokens_per_second(self) -> float:
        """A rank's."""
        return self.tokens / self.seconds / self.size

    @property
    def mfu(self) -> float | None:
        """Model FLOPs over the device's peak."""
        return self.flops / self.seconds / self.size / self.peak_flops if self.peak_flops else None

    @property
    def data_share(self) -> float:
        """Share of the time spent waiting for packs."""
        return self.data_seconds / self.seconds

    def line(self) -> str:
        """One line for a person; names the loader where steps mostly wait for it."""
        mfu = f"{self.mfu:.2%}" if self.mfu is not None else "n/a"
        parts = [
            f"step: {self.step:>6}/{self.num_steps}",
            f"loss: {self.loss:.4f}",
            f"grad_norm: {self.grad_norm:.3f}",
            f"lr: {self.lr:.2e}",
            f"tps: {self.tokens_per_second:,.0f}",
            f"tflops: {self.flops / self.seconds / self.size / 1e12:.2f}",
            f"mfu: {mfu}",
            f"memory: {self.memory_bytes / 2**30:.2f}GiB",
            f"padding: {self.padding:.1%}",
            f"imbalance: {self.imbalance:.3f}",
            f"data: {self.data_share:.1%}",
        ]
        text = "  ".join(parts)
        if self.data_share > 0.3:
            cause = f" ({self.data_cause})" if self.data_cause else ""
            text += f"  <- the loader is the bottleneck: steps wait {self.data_share:.0%} of the time for packs{cause}"
        return text

    def values(self) -> dict[str, float]:
        """Scalars for metrics.jsonl and TensorBoard."""
        found = {
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "lr": self.lr,
            "seconds": self.seconds,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens_per_second,
            "tflops": self.flops / self.seconds / self.size / 1e12,
            "memory_bytes": self.memory_bytes,
            "padding": self.padding,
            "imbalance": self.imbalance,
            "data_share": self.data_share,
        }
        if self.mfu is not None:
            found["mfu"] = self.mfu
        return {**found, **bin_values("loss", self.bins)}


def bin_values(name: str, bins: tuple[float, ...]) -> dict[str, float]:
    """`name/t0.0` ... for the bins that have samples."""
    return {f"{name}/t{i / len(bins):.1f}": b for i, b in enumerate(bins) if math.isfinite(b)}


class MetricsWriter:
    """Appends to RUN/metrics.jsonl and TensorBoard; only the main rank makes one.

    A resumed run drops the lines after the step that it resumes from, so that each step stands there once.
    """

    def __init__(self, run: Path, config: LogConfig, resumed_step: int = 0) -> None:
        run.mkdir(parents=True, exist_ok=True)
        self.path = run / "metrics.jsonl"
        _keep_until(self.path, resumed_step)
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - open for as long as the run
        self._board: Any = None
        if config.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(run / "tensorboard"), purge_step=resumed_step + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add one line; values that are not finite are left out of TensorBoard."""
        self._file.write(json.dumps({"step": step, "time": round(time.time(), 3), **values}) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                if math.isfinite(value):
                    self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and draw the curve."""
        self._file.close()
        if self._board is not None:
            self._board.close()
        write_curve(self.path.with_name("loss.svg"), read_metrics(self.path))


def _keep_until(path: Path, step: int) -> None:
    if path.exists():
        kept = [json.dumps(row) + "\n" for row in read_metrics(path) if row["step"] <= step]
        path.write_text("".join(kept), encoding="utf-8")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Lines of a metrics.jsonl; a last line cut off by a crash is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
