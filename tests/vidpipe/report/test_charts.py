"""Histograms: counts, edges and thresholds."""

from __future__ import annotations

import re

import pytest

from vidpipe.report import charts
from vidpipe.report.snapshot import Snapshot


@pytest.fixture
def snapshot(toy_dataset):
    with Snapshot(toy_dataset) as opened:
        yield opened


KEPT = "SELECT id FROM \"now/outcomes/encode\" WHERE status = 'kept'"


def test_counts_of_kept_and_others(snapshot):
    chart = charts.histogram(snapshot, "motion_score", KEPT)
    assert (chart.low, chart.high) == (0.0, pytest.approx(0.05))
    assert (sum(chart.kept), sum(chart.others), chart.nulls) == (3, 3, 0)
    assert chart.others[0] == 1 and chart.others[-1] == 1


def test_a_constant_column_has_one_bin(snapshot):
    chart = charts.histogram(snapshot, "blur_score", KEPT)
    assert chart.low == chart.high == 0.25
    assert charts.draw(chart, [0.25]).count("<text") == 1
    assert chart.kept[0] == 3 and sum(chart.kept) == 3


def test_a_column_without_values_has_no_chart(snapshot):
    assert charts.histogram(snapshot, "sar_num", KEPT) is None


def test_thresholds_come_from_simple_rules_only():
    rules = ["motion > 0.02", "coalesce(blur, 1)<=1e-3", "a > b", "motion > 0.1 or x", "motion >= -4", "f(a, 1) > 2"]
    assert charts.thresholds(rules) == {"motion": [0.02, -4.0], "blur": [0.001]}


def test_drawing_stays_inside_its_box():
    chart = charts.Histogram(column="x", low=0.0, high=1.0, kept=(5,) + (0,) * 34 + (1,), others=(5,) + (0,) * 35)
    svg = charts.draw(chart, [0.5, 7.0])
    assert svg.count('class="mark"') == 1
    assert 'x1="130.0"' in svg
    for y, height in re.findall(r'y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', svg):
        assert 0 <= float(y) <= float(y) + float(height) <= 78.1
    assert "5 kept" in svg and "5 not kept" in svg
