"""Log lines, metrics.jsonl and the curve."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch

from schemas.errors import UserError
from trainer.curve import write_curve
from trainer.metrics import Interval, LogConfig, MetricsWriter, memory_bytes, peak_flops, read_metrics

INTERVAL = Interval(
    step=20, num_steps=100, loss=0.51234, grad_norm=1.5, lr=3e-4, seconds=4.0, tokens=8000, flops=8e12,
    data_seconds=0.2, padding=0.031, imbalance=1.004, memory_bytes=3 << 30, size=2, peak_flops=989e12,
    bins=(0.9, math.nan),
)  # fmt: skip


def test_line():
    line = INTERVAL.line()
    for part in (
        "step:     20/100", "loss: 0.5123", "grad_norm: 1.500", "lr: 3.00e-04", "tps: 1,000", "tflops: 1.00",
        "mfu: 0.10%", "memory: 3.00GiB", "padding: 3.1%", "imbalance: 1.004", "data: 5.0%",
    ):  # fmt: skip
        assert part in line
    assert "loader" not in line
    assert "mfu: n/a" in dataclasses.replace(INTERVAL, peak_flops=None).line()


def test_a_slow_loader_is_named():
    slow = dataclasses.replace(INTERVAL, data_seconds=2.0, data_cause="readers")
    assert slow.line().endswith("<- the loader is the bottleneck: steps wait 50% of the time for packs (readers)")


def test_values():
    values = INTERVAL.values()
    assert values["tokens_per_second"] == 1000 and values["data_share"] == 0.05
    assert values["mfu"] == pytest.approx(8e12 / 4 / 2 / 989e12)
    assert values["loss/t0.0"] == 0.9 and "loss/t0.5" not in values


def test_writer_drops_what_a_resumed_run_does_again(tmp_path):
    config = LogConfig(tensorboard=False)
    writer = MetricsWriter(tmp_path, config)
    for step in (1, 2, 3):
        writer.write(step, {"loss": step / 10})
    writer.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 4, "lo')  # cut off by a crash
    again = MetricsWriter(tmp_path, config, resumed_step=2)
    again.write(3, {"loss": 9.0})
    again.close()
    assert [(r["step"], r["loss"]) for r in read_metrics(tmp_path / "metrics.jsonl")] == [(1, 0.1), (2, 0.2), (3, 9.0)]


def test_tensorboard_holds_the_same(tmp_path):
    writer = MetricsWriter(tmp_path, LogConfig())
    writer.write(5, {"loss": 0.25, "bad": math.nan})
    writer.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(5, 0.25)]
    (row,) = (json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert row["loss"] == 0.25


def test_curve(tmp_path):
    path = tmp_path / "loss.svg"
    write_curve(path, [])
    assert not path.exists()
    write_curve(path, [{"step": 0, "loss": 2.0}, {"step": 10, "loss": 1.0}, {"step": 10, "heldout/loss": math.nan}])
    text = path.read_text()
    assert text.count("<polyline") == 1 and "training: 1.0000" in text
    (points,) = [line for line in text.splitlines() if "polyline" in line]
    # from the left edge near the top, where 1.05 * 2 is, to the right edge at half of that
    assert 'points="50.0,36.7 780.0,203.3"' in points


def test_host_figures():
    cpu = torch.device("cpu")
    assert peak_flops(cpu) is None
    assert 10 << 20 < memory_bytes(cpu) < 1 << 40
    with pytest.raises(UserError, match="every"):
        LogConfig(every=0)
