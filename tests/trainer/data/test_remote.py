"""Reading from an object store: the same packs as from a disk, retries, and the local cache."""

import importlib.util
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.data.blobs import BlobTable
from trainer.data.cache import RowCache
from trainer.data.index import DatasetConfig
from trainer.data.loader import LoaderConfig, PackLoader


def _module(name):
    path = Path(__file__).parents[2] / "bench" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server(tmp_path):
    (tmp_path / "s3" / "bucket").mkdir(parents=True)
    made = _module("s3_server").Server(tmp_path / "s3", median=0.002, p99=0.01).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def remote(server, dataset, make_index):
    shutil.copytree(dataset, server.folder / "bucket" / "d")
    options = {
        "aws_endpoint": server.url,
        "aws_access_key_id": "a",
        "aws_secret_access_key": "b",
        "aws_region": "us-east-1",
        "allow_http": "true",
    }
    return make_index(datasets=(DatasetConfig(path="s3://bucket/d", storage_options=options),))


def same(a, b):
    return all(
        torch.equal(x.tokens_LD.view(torch.int16), y.tokens_LD.view(torch.int16))
        and torch.equal(x.text_LD.view(torch.int16), y.text_LD.view(torch.int16))
        and x.latent_ids == y.latent_ids
        for x, y in zip(a, b)
    )


def test_packs_equal_those_of_a_disk(remote, make_index, make_planner):
    local = make_index()
    assert [(s.bucket, s.num_rows) for s in remote.streams] == [(s.bucket, s.num_rows) for s in local.streams]
    expected = PackLoader(local, make_planner(local))
    alone = PackLoader(remote, make_planner(remote))
    with PackLoader(remote, make_planner(remote), num_readers=2) as readers:
        for _ in range(3):
            step = next(expected)
            assert same(step, next(alone)) and same(step, next(readers))


def test_credentials_stay_out_of_what_is_saved(remote):
    text = (remote.folder / "index.json").read_text()
    assert "aws_secret_access_key" not in text


def test_the_second_epoch_comes_from_the_cache(remote, server, make_planner, tmp_path):
    config = LoaderConfig(cache_dir=str(tmp_path / "rows"), cache_bytes=1 << 24)
    planner = make_planner(remote)
    first = [next(loader) for loader in [PackLoader(remote, planner, config=config)] for _ in range(3)]
    before = server.requests["GET"]
    again = PackLoader(remote, planner, config=config)
    assert all(same(a, next(again)) for a in first)
    assert server.requests["GET"] == before


def test_a_store_that_fails_for_a_while_is_asked_again(remote, make_planner, monkeypatch):
    monkeypatch.setattr("trainer.data.blobs.RETRY_SECONDS", (0.01, 0.01))
    loader = PackLoader(remote, make_planner(remote))
    expected = next(loader)
    fails = iter([True, True, False])

    class Flaky:
        def __init__(self, table):
            self.table = table

        def read_blobs(self, *args, **kwargs):
            if next(fails, False):
                raise OSError("503 slow down")
            return self.table.read_blobs(*args, **kwargs)

    real = BlobTable.table.fget
    monkeypatch.setattr(BlobTable, "table", property(lambda self: Flaky(real(self))))
    assert same(expected, next(PackLoader(remote, make_planner(remote))))


def test_cache_keeps_under_its_limit_and_forgets_the_oldest(tmp_path):
    cache = RowCache(tmp_path / "rows", 64_000)
    data = {f"row-{i}": np.full(2000, i, np.uint8).tobytes() for i in range(60)}
    for i, (key, value) in enumerate(data.items()):
        cache.put(key, value)
        os.utime(cache._path(key), (i, i))
    cache.trim()
    held = [key for key, value in data.items() if cache.get(key, memoryview(bytearray(len(value))))]
    assert 2000 * len(held) <= 64_000 and held == list(data)[-len(held) :] and len(held) > 20
    out = memoryview(bytearray(2000))
    assert cache.get("row-59", out) and bytes(out) == data["row-59"]
    assert not cache.get("row-59", memoryview(bytearray(1999)))  # another size is another row


def test_cache_of_several_processes_is_one(tmp_path):
    RowCache(tmp_path, 1 << 20).put("a", b"xyz")
    out = memoryview(bytearray(3))
    assert RowCache(tmp_path, 1 << 20).get("a", out) and bytes(out) == b"xyz"
