"""Shared by the store's tests: a small dataset, and rows of which everything is known."""

from __future__ import annotations

import datetime
import zlib
from typing import ClassVar

import pyarrow as pa
import pytest

from schemas.latent_spaces import METADATA_KEY, LatentSpace
from schemas.tables import LATENTS, OUTCOMES
from vidpipe.store.dataset import Dataset

TABLE = "latents/toy/1x8x8"
SPACE = LatentSpace(
    name="toy", vae="dct", revision="1", channels=1, stride_t=1, stride_h=8, stride_w=8, mean=(0.0,), std=(1.0,)
)


class Rows:
    """Makes latents and outcomes whose ids are numbers."""

    table = TABLE
    metadata: ClassVar = {METADATA_KEY: SPACE.to_json().encode()}

    @staticmethod
    def id(number: int) -> bytes:
        return number.to_bytes(16, "big")

    @classmethod
    def latents(cls, unit: str, numbers, fingerprint: str = "f1") -> pa.Table:
        payloads = [f"latent {n}".encode() for n in numbers]
        num = len(payloads)
        return pa.table(
            {
                "latent_id": pa.array([cls.id(n) for n in numbers], pa.binary(16)),
                "clip_id": pa.array([cls.id(n) for n in numbers], pa.binary(16)),
                "latent_crc32": pa.array([zlib.crc32(p) for p in payloads], pa.uint32()),
                "latent": pa.array(payloads, pa.large_binary()),
                "fingerprint": [fingerprint] * num,
                "unit_id": [unit] * num,
            }
        )

    @classmethod
    def outcomes(cls, unit: str, numbers, status: str = "kept", item: str = "", fingerprint: str = "f1") -> pa.Table:
        num = len(numbers)
        texts = {n: [""] * num for n in ("reason", "rule", "value", "expression_hash", "message")}
        columns = {
            **texts,
            "id": [cls.id(n) for n in numbers],
            "item": [item] * num,
            "status": [status] * num,
            "seconds": [0.5] * num,
            "host": ["h"] * num,
            "finished_at": [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)] * num,
            "fingerprint": [fingerprint] * num,
            "unit_id": [unit] * num,
        }
        schema = OUTCOMES.schema()
        return pa.table({f.name: columns[f.name] for f in schema}, schema=schema)


@pytest.fixture
def rows() -> type[Rows]:
    return Rows


@pytest.fixture
def dataset(tmp_path) -> Dataset:
    """An empty dataset with one latent table."""
    made = Dataset(tmp_path / "data").create()
    made.ensure(TABLE, LATENTS, Rows.metadata)
    return made


@pytest.fixture(scope="session")
def s3_environment():
    from tests.chaos.s3_server import s3_server

    with s3_server() as environment:
        yield environment


@pytest.fixture
def s3_root(s3_environment, monkeypatch, request) -> str:
    """A place of its own on an S3 server on loopback, with the environment that leads there."""
    from tests.chaos.s3_server import BUCKET

    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{abs(hash(request.node.nodeid)):x}"
