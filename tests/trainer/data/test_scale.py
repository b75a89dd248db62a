"""The index of many rows: the benchmark's tables, small, give the rows that its filter keeps."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture
def bench():
    path = Path(__file__).parents[2] / "bench" / "index.py"
    spec = importlib.util.spec_from_file_location("bench_index", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("rows", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_third_is_kept_and_planned(bench, tmp_path, rows):
    bench.write(tmp_path / "d", rows)
    found = bench.build(tmp_path / "d", tmp_path / "cache", 0.3, "1GB")
    assert found["rows"] == pytest.approx(0.3 * rows, rel=0.05)
    assert found["packs"] == 512
    per_row = (found["index_bytes"] - 8192 - 28 * min(bench.TEXTS, rows)) / found["rows"]
    assert per_row < 56, "48 bytes a row, 8 a caption"
