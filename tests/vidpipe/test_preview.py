"""A dataset of one clip, previewed: the left half is the source, the right half what the latent still shows."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import av
import lance
import numpy as np
import pyarrow as pa
import pytest
import torch
from lance.fragment import FragmentMetadata
from PIL import Image

from schemas import tables
from schemas.buckets import Bucket
from schemas.errors import UserError
from vidpipe.encode import encode_clips, table_metadata
from vidpipe.encode_config import EncodeConfig
from vidpipe.media.identity import local_etag
from vidpipe.preview import find_clip, preview
from vidpipe.report.pictures import STRIP_HEIGHT, strip
from vidpipe.store.dataset import Dataset
from vidpipe.store.write import write_fragments
from vidpipe.vaes.base import psnr_db
from vidpipe.vaes.dct import DctVae

BUCKET = Bucket(9, 32, 48)


def append(dataset: Dataset, name: str, rows: pa.Table) -> None:
    for column in ("fingerprint", "unit_id"):
        rows = rows.append_column(column, [["u"] * rows.num_rows])
    table = dataset.table(name)
    made = [FragmentMetadata.from_json(json.dumps(json.loads(f))) for f in write_fragments(dataset.root, name, rows)]
    lance.LanceDataset.commit(table.uri, lance.LanceOperation.Append(made), read_version=table.version)


def rows_of(spec: Any, row: dict[str, Any]) -> pa.Table:
    fields = {f.name: f for f in spec.schema()}
    return pa.table({k: pa.array([v], fields[k].type) for k, v in row.items() if k in fields})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> tuple[str, torch.Tensor]:
    """The dataset's folder, and the frames of its clip, [3, 9, 32, 48]; the first place of its file is empty."""
    folder = tmp_path_factory.mktemp("preview")
    y, x = np.mgrid[:32, :48]
    frames = np.stack([120 + 60 * np.sin((x + 3 * t) / 9) + 20 * np.cos(y / 7) for t in range(12)]).astype(np.uint8)
    frames = np.repeat(frames[..., None], 3, 3)
    path = folder / "waves.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "bgr0"
        for picture in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24").reformat(format="bgr0")))
        container.mux(stream.encode())
    row = {
        "clip_id": bytes.fromhex("ab" * 16), "video_id": b"\x01" * 16, "uris": [str(folder / "gone.mkv"), str(path)],
        "etags": [local_etag(path.stat())] * 2, "stream_index": 0, "start_pts": 200, "end_pts": 1200,
        "time_base_num": 1, "time_base_den": 1000, "start_seconds": 0.2, "end_seconds": 1.2,
        "num_frames": 10, "fps": 12.0, "width": 48, "height": 32, "user_crop": None,
    }  # fmt: skip
    found = Dataset(str(folder / "data")).create()
    found.ensure("videos", tables.VIDEOS)
    found.ensure("clips", tables.CLIPS)
    found.ensure("latents/dct/9x32x48", tables.LATENTS, table_metadata(DctVae(), BUCKET))
    append(found, "videos", rows_of(tables.VIDEOS, row))
    append(found, "clips", rows_of(tables.CLIPS, row))
    table, outcomes = encode_clips([row], BUCKET, DctVae(), EncodeConfig(fps="10"), fingerprint="f")
    assert outcomes[0].status == "kept"
    append(found, "latents/dct/9x32x48", table)
    other = rows_of(tables.CLIPS, row | {"clip_id": bytes.fromhex("ac" * 16)})
    append(found, "clips", other)
    return found.root, torch.from_numpy(frames[2:11]).permute(3, 0, 1, 2)


def test_source_and_latent_side_by_side(dataset, tmp_path):
    root, frames = dataset
    output = tmp_path / "p.mp4"
    (line,) = preview(root, "abab", str(output))
    with av.open(str(output)) as container:
        assert container.streams.video[0].average_rate == 10
        shown = np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])
    assert shown.shape == (9, 32, 96, 3)
    decoded = DctVae().decode(DctVae().encode(frames[None]))[0]
    both = torch.from_numpy(shown).permute(3, 0, 1, 2)
    assert psnr_db(both[..., :48], frames) > 35 and psnr_db(both[..., 48:], decoded) > 35
    assert line == f"{output}: latents/dct/9x32x48, source left, latent right, PSNR {psnr_db(frames, decoded):.1f} dB"


def test_pictures_come_from_where_the_file_still_is(dataset):
    root, frames = dataset
    clip = find_clip(Dataset(root), "abab")
    _, _, encoded = strip(clip).partition("base64,")
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))
    assert shown.shape[0] == STRIP_HEIGHT
    assert abs(shown.mean() - frames.float().mean().item()) < 5


def test_what_cannot_be_previewed(dataset, tmp_path):
    root, _ = dataset
    for clip, says in (
        ("zz", "expected hex"),
        ("ff", "no such clip"),
        ("a", "several clips begin so"),
        ("ac", "no latent"),
    ):
        with pytest.raises(UserError, match=says):
            list(preview(root, clip, str(tmp_path / "x.mp4")))
    with pytest.raises(UserError, match="cannot be written"):
        list(preview(root, "ab", str(Path("/no/such/folder/x.mp4"))))
    with pytest.raises(UserError, match="no clips yet"):
        list(preview(str(Dataset(str(tmp_path / "new")).create().root), "ab", str(tmp_path / "x.mp4")))


def test_any_name_holds_an_mp4_and_a_folder_is_refused(tmp_path):
    from vidpipe.preview import write_mp4

    frames_THWC = torch.zeros(2, 32, 32, 3, dtype=torch.uint8)
    write_mp4(tmp_path / "p.out", frames_THWC, 16.0)
    assert (tmp_path / "p.out").read_bytes()[4:8] == b"ftyp"
    with pytest.raises(UserError, match="cannot be written: Is a directory"):
        write_mp4(tmp_path, frames_THWC, 16.0)
