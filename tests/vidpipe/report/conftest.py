"""A small dataset of which every count is known: four files, six clips, three latents."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from schemas import tables
from schemas.columns import Column, TableSpec
from schemas.latent_spaces import METADATA_KEY, LatentSpace
from vidpipe.store.commit import Committer, StagedUnit
from vidpipe.store.dataset import Dataset
from vidpipe.store.lease import Lease

SPACE = LatentSpace(
    name="toy", vae="dct", revision="1", channels=4, stride_t=4, stride_h=8, stride_w=8, mean=(0.0,) * 4, std=(1.0,) * 4
)
CLIPS = tables.CLIPS.with_columns(
    [
        Column(name="motion_score", type=pa.float32(), unit="diagonals/s", meaning="how fast things move"),
        Column(name="blur_score", type=pa.float32(), meaning="0 is sharp"),
    ]
)
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def rows_of(spec: TableSpec, rows: Sequence[dict[str, Any]], fingerprint: str, unit: str) -> pa.Table:
    filled = [{**row, "fingerprint": fingerprint, "unit_id": unit} for row in rows]
    fields = [c.field() for c in spec.columns]
    return pa.table(
        {f.name: pa.array([r.get(f.name) for r in filled], f.type) for f in fields}, schema=pa.schema(fields)
    )


class Builder:
    """Commits rows of one stage at a time."""

    def __init__(self, root):
        self.dataset = Dataset(str(root)).create()

    def stage(self, name, spec, table, data, outcomes, *, fingerprint=None, minutes=0, metadata=None):
        """One unit of a stage, whose outcomes are (id, status, extra) and finished `minutes` after the start."""
        fingerprint = fingerprint or f"print-{name}"
        unit = f"unit-{name}-{fingerprint}-{minutes}"
        defaults = {
            "item": "", "reason": "", "rule": "", "value": "", "expression_hash": "", "message": "", "seconds": 0.5,
            "host": "h", "finished_at": START + datetime.timedelta(minutes=minutes),
        }  # fmt: skip
        found = [{**defaults, "id": i, "status": s, **extra} for i, s, extra in outcomes]
        rows = {f"outcomes/{name}": rows_of(tables.OUTCOMES, found, fingerprint, unit)}
        if table:
            self.dataset.ensure(table, spec, metadata or {})
            rows[table] = rows_of(spec, data, fingerprint, unit)
        with Lease.acquire(self.dataset, name) as lease:
            Committer(self.dataset, name, lease).commit([StagedUnit(unit_id=unit, rows=rows, fingerprint=fingerprint)])


def _video(
    number: int, name: str, status: str = "kept", reason: str = "", seconds: float | None = 30.0
) -> dict[str, Any]:
    message = f"/footage/{name}: {reason}" if reason else ""
    return {
        "video_id": key(number), "uris": [f"/footage/{name}"], "etags": ["e"], "size_bytes": 1000 * number,
        "kind": "video" if status == "kept" else "other", "status": status, "reason": reason, "message": message,
        "codec": "h264" if status == "kept" else None, "width": 192, "height": 128, "avg_fps": 24.0,
        "duration_seconds": seconds if status == "kept" else None,
    }  # fmt: skip


def _clip(number: int, motion: float) -> dict[str, Any]:
    return {
        "clip_id": key(100 + number), "video_id": key(1 + number % 2), "stream_index": 0, "start_pts": 240 * number,
        "end_pts": 240 * number + 120, "time_base_num": 1, "time_base_den": 24, "start_seconds": 10.0 * number,
        "end_seconds": 10.0 * number + 5, "duration_seconds": 5.0, "num_frames": 120, "fps": 24.0, "width": 192,
        "height": 128, "shot_index": number, "window_index": 0, "damaged_fraction": 0.0, "decoder": "pyav",
        "motion_score": motion, "blur_score": 0.25,
    }  # fmt: skip


@pytest.fixture(scope="session")
def toy_dataset(tmp_path_factory) -> Dataset:
    """Clips 0 to 5 move at 0.00 to 0.05: the rule turns 0 and 1 away, clip 5 fails, 2 to 4 become latents."""
    build = Builder(tmp_path_factory.mktemp("toy") / "dataset")
    videos = [
        _video(1, "a.mp4"), _video(2, "b<b>.mp4"), _video(3, "a.txt", "rejected", "sidecar"),
        _video(4, "broken.mp4", "failed", "truncated_header"),
    ]  # fmt: skip
    outcomes = [(v["video_id"], v["status"], {"reason": v["reason"], "message": v["message"]}) for v in videos]
    build.stage("ingest", tables.VIDEOS, "videos", videos, outcomes)
    clips = [_clip(n, n / 100) for n in range(6)]
    build.stage("analyze", CLIPS, "clips", clips, [(key(1), "kept", {}), (key(2), "kept", {"seconds": 9.5})], minutes=1)
    groups = [
        {"clip_id": c["clip_id"], "duplicate_group": clips[0 if n < 2 else n]["clip_id"], "is_duplicate": n == 1}
        for n, c in enumerate(clips)
    ]
    build.stage("near_duplicates", tables.NEAR_DUPLICATES, "tables/near_duplicates", groups, [(key(9), "kept", {})])
    splits = [{"clip_id": c["clip_id"], "split": "heldout" if n == 2 else "train"} for n, c in enumerate(clips)]
    build.stage("split", tables.SPLIT, "tables/split", splits, [(key(9), "kept", {})])
    captions = [
        {
            "caption_id": key(200 + n), "clip_id": key(100 + n), "text_id": key(300 + n // 2), "source": "sidecar",
            "text": f"words <{n // 2}>", "language": "en", "prompt_tokens": 10, "completion_tokens": 2,
        }
        for n in range(4)
    ]  # fmt: skip
    build.stage("caption", tables.CAPTIONS, "captions", captions, [(key(100 + n), "kept", {}) for n in range(4)])
    build.stage("embed", None, "", [], [(key(300), "kept", {})])
    rule = {"reason": "expression", "rule": "motion_score > 0.015", "expression_hash": "h"}
    latents = [
        {
            "latent_id": key(400 + n), "clip_id": key(100 + n), "fps": 8.0, "start_seconds": 10.0 * n,
            "crop": [0, 0, 192, 128], "frames_dropped": 2, "scale": 0.5, "cropped_fraction": 0.25, "latent_crc32": 1,
            "latent": b"\0",
        }
        for n in (2, 3, 4)
    ]  # fmt: skip
    encode = {
        "spec": tables.LATENTS,
        "table": "latents/toy/17x64x96",
        "metadata": {METADATA_KEY: SPACE.to_json().encode()},
    }
    build.stage("encode", data=latents[:1], outcomes=[(key(100), "kept", {})], fingerprint="old", minutes=0, **encode)
    build.stage(
        "encode",
        data=latents[:1],
        outcomes=[
            (key(100), "rejected", {**rule, "value": "motion_score=0.0", "message": "motion_score > 0.015 is false"}),
            (key(101), "rejected", {**rule, "value": "motion_score=0.01", "message": "motion_score > 0.015 is false"}),
            (key(102), "kept", {"item": "17x64x96"}),
        ],
        minutes=2,
        **encode,
    )
    build.stage(
        "encode",
        data=latents[1:],
        outcomes=[
            (key(103), "kept", {"item": "17x64x96"}),
            (key(104), "kept", {"item": "17x64x96"}),
            (key(105), "failed", {"reason": "crashed", "message": "b.mp4: the <decoder> died"}),
        ],
        minutes=3,
        **encode,
    )
    return build.dataset
