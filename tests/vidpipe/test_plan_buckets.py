"""A proposal over clips of known sizes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest

from schemas import tables
from schemas.buckets import Bucket
from schemas.errors import UnknownColumn, UserError
from vidpipe.bucketing import Limits
from vidpipe.plan_buckets import GEOMETRY, RARE, area_of, plan_buckets, print_plan, propose
from vidpipe.store.dataset import Dataset
from vidpipe.store.write import write_fragments


def clip(name: int, width: int, height: int, seconds: float) -> dict[str, Any]:
    return {
        "clip_id": name.to_bytes(16, "little"), "video_id": bytes(16), "stream_index": 0,
        "width": width, "height": height, "start_pts": 0, "end_pts": round(seconds * 1000), "time_base_num": 1,
        "time_base_den": 1000,
        "start_seconds": 0.0, "end_seconds": seconds, "num_frames": round(seconds * 30), "user_crop": None,
    }  # fmt: skip


WIDE, TALL = Bucket(17, 480, 832), Bucket(17, 832, 480)


def test_shares_fill_and_bytes_are_counted():
    rows = [clip(i, 1664, 960, 2.0) for i in range(60)] + [clip(i, 960, 1664, 17 / 16) for i in range(60, 100)]
    plan = propose(rows, [WIDE, TALL], Fraction(16), Limits(), GEOMETRY)
    wide, tall = plan.uses
    assert (wide.bucket, wide.clips, wide.share) == (WIDE, 60, 0.6)
    assert (tall.bucket, tall.clips, tall.share) == (TALL, 40, 0.4)
    assert wide.fill == pytest.approx(17 / 32) and tall.fill == 1
    assert wide.cropped == tall.cropped == 0 and wide.scale == tall.scale == 0.5
    assert wide.kept == pytest.approx(17 / 32 / 2)
    assert wide.tokens == 5 * 30 * 52
    assert wide.latent_bytes == 60 * 16 * 5 * 60 * 104 * 2
    assert not wide.warning and not plan.misfits and not plan.left_out


def test_a_bucket_that_hardly_anyone_needs_is_left_out():
    near = Bucket(17, 496, 816)
    rows = [clip(i, 1664, 960, 2.0) for i in range(999)] + [clip(999, 1632, 992, 2.0)]
    plan = propose(rows, [WIDE, near, TALL], Fraction(16), Limits(), GEOMETRY)
    assert [u.bucket for u in plan.uses] == [WIDE]
    assert plan.left_out == (near, TALL)
    assert plan.uses[0].clips == 1000


def test_a_rare_bucket_stays_where_its_clips_have_no_other_place_and_is_warned_of():
    rows = [clip(i, 1664, 960, 2.0) for i in range(500)] + [clip(500, 480, 832, 2.0)]
    plan = propose(rows, [WIDE, TALL], Fraction(16), Limits(), GEOMETRY)
    assert [u.bucket for u in plan.uses] == [WIDE, TALL]
    assert plan.uses[1].share < RARE and plan.uses[1].warning == "under 1% of the clips"
    assert plan.uses[0].warning == ""


def test_clips_without_a_bucket_are_counted_by_reason():
    rows = [clip(0, 1664, 960, 2.0), clip(1, 1664, 960, 0.5), clip(2, 320, 180, 2.0), clip(3, 320, 180, 2.0)]
    plan = propose(rows, [WIDE], Fraction(16), Limits(), GEOMETRY)
    assert plan.misfits == {"too_short": 1, "too_small": 2}


@pytest.fixture
def dataset(tmp_path) -> str:
    found = Dataset(str(tmp_path / "data")).create()
    found.ensure("clips", tables.CLIPS)
    rows = [clip(i, 1664, 960, 5.2) for i in range(150)] + [clip(i, 960, 1664, 1.1) for i in range(150, 200)]
    fields = {f.name: f for f in tables.CLIPS.schema()}
    columns = {k: pa.array([r[k] for r in rows], fields[k].type) for k in rows[0]}
    columns |= {k: pa.array(["u"] * len(rows)) for k in ("fingerprint", "unit_id")}
    fragments = write_fragments(found.root, "clips", pa.table(columns))
    import json

    import lance
    from lance.fragment import FragmentMetadata

    table = found.table("clips")
    made = [FragmentMetadata.from_json(json.dumps(json.loads(f))) for f in fragments]
    lance.LanceDataset.commit(table.uri, lance.LanceOperation.Append(made), read_version=table.version)
    return found.root


def test_plan_of_a_dataset(dataset, capsys):
    plan = plan_buckets(dataset, areas=("480x832",), frames=(17, 81))
    assert plan.num_clips == plan.num_selected == 200 and not plan.misfits
    assert sum(u.clips for u in plan.uses) == 200
    assert {u.bucket.num_frames: u.clips for u in plan.uses if u.clips} == {17: 50, 81: 150}
    assert [u.bucket for u in plan.uses] == [Bucket(17, 832, 480), Bucket(81, 480, 832)]
    assert all(u.cropped == 0 for u in plan.uses)
    print_plan(plan)
    text = capsys.readouterr().out
    assert "buckets = [" in text and "200 clips" in text


def test_only_selected_clips(dataset):
    plan = plan_buckets(dataset, frames=(17,), where="width > height")
    assert plan.num_clips == 150
    with pytest.raises(UnknownColumn, match="did you mean 'width'"):
        plan_buckets(dataset, where="widht > 3")
    with pytest.raises(UserError, match="no clip passes"):
        plan_buckets(dataset, where="width > 99999")


def test_a_large_dataset_is_sampled(dataset, monkeypatch):
    from vidpipe import plan_buckets as module

    monkeypatch.setattr(module, "MAX_CLIPS", 100)
    plan = plan_buckets(dataset, frames=(17,))
    assert (plan.num_clips, plan.num_selected) == (100, 200)
    assert sum(u.latent_bytes for u in plan.uses) == pytest.approx(
        sum(2 * u.clips * 2 * 16 * 5 * (u.bucket.height // 8) * (u.bucket.width // 8) for u in plan.uses)
    )


def test_areas():
    assert area_of("480x832") == 480 * 832 == area_of(480 * 832)
    for bad in ("480x", "wide", "0x5", "1x2x3"):
        with pytest.raises(UserError, match="expected HEIGHTxWIDTH"):
            area_of(bad)


def test_no_clips_yet(tmp_path):
    Dataset(str(tmp_path / "empty")).create()
    with pytest.raises(UserError, match="run analyze first"):
        plan_buckets(str(tmp_path / "empty"))
