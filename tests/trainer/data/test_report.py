"""The plan's report: its figures are those of the plan, its warnings come when they should, its plot is a picture."""

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from schemas.errors import UserError
from trainer.data.report import plan_report


@pytest.fixture
def index(make_index):
    return make_index()


def test_figures_are_the_plans(index, make_planner):
    planner = make_planner(index, packs_per_step=8, packs_per_rank=4)
    report = plan_report(index, planner, world_size=2, num_steps=70)
    steps = [planner.step(n) for n in range(70)]
    costs = [np.append(s.costs, 0)[s.deal(2)].sum(axis=1) for s in steps]
    assert report.sums == pytest.approx(np.mean([c.max() / c.mean() for c in costs]))
    assert report.fill == pytest.approx(np.mean([s.num_tokens.sum() / (512 * 8) for s in steps]))
    assert report.slots == 4 and report.idle_share == 0 and report.rows == 98
    assert report.steps_per_epoch == planner.steps_per_epoch
    assert report.fill <= report.fill_bound <= 1
    assert 1 <= report.sums_bound <= report.sums + 1e-9 and report.lockstep_bound <= report.lockstep + 1e-9


def test_shares_add_up(index, make_planner):
    report = plan_report(index, make_planner(index), num_steps=1)
    assert [b.bucket for b in report.buckets] == ["1x64x64", "5x64x96", "17x64x64"]
    assert [b.rows for b in report.buckets] == [56, 28, 14]
    assert report.buckets[0].of_tokens == pytest.approx(56 * 16 / (56 * 16 + 28 * 48 + 14 * 80))
    for name in ("of_samples", "of_tokens", "of_flops"):
        assert sum(getattr(b, name) for b in report.buckets) == pytest.approx(1)


def test_reads_are_bytes_of_latents_and_text(index, make_planner):
    report = plan_report(index, make_planner(index), world_size=2, num_steps=64)
    assert report.latent_bytes == pytest.approx(report.fill * 512 * 2 * 128, rel=0.05)
    assert report.text_bytes == pytest.approx(report.samples_per_step / 2 * 6 * 64, rel=0.05)  # six tokens a caption
    assert report.samples_per_step / 2 < report.requests < report.samples_per_step + 1
    assert report.cached_text_bytes == int(index.text_tokens.sum()) * 64
    flops = report.fill * 512 * 2 * 1000
    assert 0 < report.text_flops_share < 2e9 * report.samples_per_step * 3 / flops


def test_idle_slots_and_too_many_ranks(index, make_planner):
    planner = make_planner(index)
    assert plan_report(index, planner, world_size=3, num_steps=1).idle_share == pytest.approx(1 / 3)
    with pytest.raises(UserError, match="5 ranks share 4 packs"):
        plan_report(index, planner, world_size=5)


def test_a_short_budget_is_warned_of(index, make_planner):
    assert plan_report(index, make_planner(index, token_budget=160), num_steps=1).warnings == ()
    (warning,) = plan_report(index, make_planner(index, token_budget=159), num_steps=1).warnings
    assert "less than twice the longest sample, 80 tokens" in warning
    left = plan_report(index, make_planner(index, token_budget=79, allow_skipping=True), num_steps=1)
    assert any("17x64x64" in w and "14.3% of rows" in w for w in left.warnings)


def test_text_json_and_plot(index, make_planner, tmp_path):
    report = plan_report(index, make_planner(index), num_steps=5)
    text = report.text()
    assert f"{report.fill:.4f}" in text and "17x64x64" in text and "online" in text
    assert json.loads(json.dumps(report.to_dict()))["fill"] == report.fill
    report.plot(tmp_path / "plan.svg")
    root = ET.parse(tmp_path / "plan.svg").getroot()
    lines = [element for element in root.iter() if element.tag.endswith("polyline")]
    assert len(lines) == 3 and all(len(line.get("points").split()) == len(report.per_step) for line in lines)


def test_without_text(make_index, make_planner):
    index = make_index(text_encoder="")
    report = plan_report(index, make_planner(index), num_steps=1)
    assert report.text_bytes == 0 and report.cached_text_bytes == 0 and "online" not in report.text()
