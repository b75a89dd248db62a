"""Footage and dataset in an object store, as a user types it: cached, cached again with nothing to do, trained on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from tests.trainer.recipes import TINY

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = """
stages = ["ingest", "analyze", "caption", "embed", "encode"]
[analyze]
min_seconds = 0.4
max_seconds = 0.5
window = "fixed"
scorers = ["motion"]
[caption]
captioners = [{ name = "sidecar" }]
[embed]
encoder = "hashed-ngrams"
[encode]
where = "duration_seconds > 0.3"
vae = "dct"
fps = "12"
buckets = ["5x64x96"]
"""
TRAIN = f"""
steps = 2
{TINY}
[data]
latents = "dct"
text_encoder = "hashed-ngrams-64"
captionless = "empty"
"""


def write_video(path: Path, seed: int) -> None:
    """Two seconds of a bright square that moves over a texture of its own."""
    texture = np.random.default_rng(seed).integers(0, 90, (96, 144, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=16)
        stream.width, stream.height, stream.pix_fmt = 144, 96, "yuv420p"
        for k in range(32):
            frame = texture.copy()
            frame[20:60, 3 * k : 3 * k + 40] = 230
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A place on disk with recipes, and the environment of a server that holds `s3://bucket/raw`."""
    import s3fs

    from tests.chaos.s3_server import s3_server

    place = tmp_path_factory.mktemp("s3")
    (place / "raw").mkdir()
    for seed in range(3):
        write_video(place / "raw" / f"film {seed}.mp4", seed)
    (place / "raw" / "film 0.txt").write_text("a square crosses")
    (place / "data.toml").write_text(DATA)
    (place / "train.toml").write_text(TRAIN)
    with s3_server() as environment:
        url = environment["AWS_ENDPOINT_URL"]
        store = s3fs.S3FileSystem(key="test", secret="test", endpoint_url=url, skip_instance_cache=True)
        store.put(str(place / "raw"), "bucket/raw", recursive=True)
        yield place, {**os.environ, **environment, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}


def typed(shop, module: str, *arguments: str) -> str:
    place, environment = shop
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=place, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(180)
def test_footage_and_dataset_in_a_store(shop):
    """The dataset lies below the source's prefix: its own files are no sources."""
    dataset = "s3://bucket/raw/set"
    command = ["run", "data.toml", "--source", "s3://bucket/raw", "--output", dataset]
    command += ["--scheduler", "sync", "--no-report"]
    first = typed(shop, "vidpipe.cli", *command)
    assert "ingest           3 kept, 1 rejected" in first and "encode           9 kept" in first, first
    assert typed(shop, "vidpipe.cli", *command) == "nothing to do: every row has its outcome\n"
    sql = "SELECT list_sort(list(uris[1])) AS uris, count(*) FROM videos WHERE status = 'kept'"
    found = typed(shop, "vidpipe.cli", "query", dataset, sql)
    assert found.splitlines()[1].split("\t")[1] == "3" and "s3://bucket/raw/film 0.mp4" in found
    said = typed(shop, "trainer.cli", "train", "train.toml", "--data", dataset, "--output", "run")
    assert "step:      2/2" in said
