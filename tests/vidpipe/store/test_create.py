"""Tables are made once, whole, whoever races or dies."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from schemas.columns import Column
from schemas.errors import LatentSpaceMismatch, SchemaMismatch
from schemas.latent_spaces import METADATA_KEY, LatentSpace
from schemas.layout import TEXT_ENCODER_KEY
from schemas.tables import CAPTIONS, CLIPS, LATENTS, OUTCOMES, SPLIT, TEXT, VIDEOS
from vidpipe.store import create, failpoints
from vidpipe.store.dataset import Dataset


@pytest.mark.parametrize("spec", [VIDEOS, CLIPS, CAPTIONS, TEXT, LATENTS, SPLIT, OUTCOMES], ids=lambda spec: spec.name)
def test_every_kind_of_table(dataset, spec):
    table = dataset.ensure("x", spec)
    assert table.count_rows() == 1
    assert table.has_stable_row_ids
    assert dataset.read("x").num_rows == 0
    assert table.schema.names == [c.name for c in spec.columns]
    assert table.schema.metadata[b"vidpipe.table"] == spec.name.encode()
    assert table.schema.field(0).metadata[b"meaning"] == spec.columns[0].meaning.encode()


def test_racing_creators_make_one_table(dataset, monkeypatch):
    barrier = threading.Barrier(8)
    write = create.lance_schema

    def together(schema):
        made = write(schema)
        barrier.wait()
        return made

    monkeypatch.setattr(create, "lance_schema", together)
    versions = []

    def make() -> None:
        versions.append(Dataset(dataset.root).ensure("clips", CLIPS).version)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert versions == [1] * 8
    table = dataset.table("clips")
    assert (table.version, table.count_rows()) == (1, 1)
    assert not list(Path(dataset.root).glob(f"{create.TEMPORARY}*"))


def test_a_creator_that_comes_late_changes_nothing(s3_root, rows, monkeypatch):
    dataset = Dataset(s3_root).create()
    publish = create._publish_objects
    others = Dataset(s3_root)

    def late(made, dataset, name):  # between our look and our publishing, another one creates the table and uses it
        monkeypatch.setattr(create, "_publish_objects", publish)
        others.ensure(name, LATENTS, rows.metadata).update_config({"used": "yes"})
        publish(made, dataset, name)

    monkeypatch.setattr(create, "_publish_objects", late)
    table = dataset.ensure(rows.table, LATENTS, rows.metadata)
    assert table.config()["used"] == "yes"
    assert table.count_rows() == 1


def test_a_dead_creator_is_in_nobodys_way(dataset, monkeypatch):
    monkeypatch.setattr(failpoints, "_plan", {"create:written": [(1, "raise")]})
    monkeypatch.setattr(failpoints, "_passes", {})
    monkeypatch.setattr(create.shutil, "rmtree", lambda *_, **__: None)  # dead: it clears nothing away
    with pytest.raises(OSError, match="failpoint"):
        dataset.ensure("clips", CLIPS)
    assert len(list(Path(dataset.root).glob(f"{create.TEMPORARY}*"))) == 1
    assert not dataset.has("clips")
    assert dataset.ensure("clips", CLIPS).count_rows() == 1
    assert dataset.names() == ["clips", "latents/toy/1x8x8"]


def test_new_nullable_columns_are_added(dataset):
    dataset.ensure("clips", CLIPS)
    blur = Column(name="blur", type=pa.float32(), unit="fraction", meaning="m")
    table = dataset.ensure("clips", CLIPS.with_columns([blur]))
    assert table.schema.field("blur").type == pa.float32()
    assert table.schema.field("blur").metadata[b"unit"] == b"fraction"
    assert dataset.ensure("clips", CLIPS).version == table.version  # wanting fewer changes nothing


def test_tables_that_hold_something_else_are_refused(dataset):
    dataset.ensure("clips", CLIPS)
    with pytest.raises(SchemaMismatch, match=r"expected vidpipe\.table 'videos', found 'clips'"):
        dataset.ensure("clips", VIDEOS)
    dataset.ensure("scored", CLIPS.with_columns([Column(name="x", type=pa.float32(), meaning="m")]))
    with pytest.raises(SchemaMismatch, match="column 'x' is float, expected int64"):
        dataset.ensure("scored", CLIPS.with_columns([Column(name="x", type=pa.int64(), meaning="m")]))
    with pytest.raises(SchemaMismatch, match="no column 'y', which may not be null"):
        dataset.ensure("scored", CLIPS.with_columns([Column(name="y", type=pa.int64(), meaning="m", nullable=False)]))
    dataset.ensure("text/a", TEXT, {TEXT_ENCODER_KEY: b"one"})
    with pytest.raises(SchemaMismatch, match="'two', found 'one'"):
        dataset.ensure("text/a", TEXT, {TEXT_ENCODER_KEY: b"two"})


def test_another_latent_space_is_refused(dataset, rows):
    space = LatentSpace.from_json(rows.metadata[METADATA_KEY])
    other = dataclasses.replace(space, revision="2")
    with pytest.raises(LatentSpaceMismatch, match="revision '1' instead of '2'"):
        dataset.ensure(rows.table, LATENTS, {METADATA_KEY: other.to_json().encode()})
    moved = dataclasses.replace(space, source="elsewhere")  # where the weights lay does not matter
    assert dataset.ensure(rows.table, LATENTS, {METADATA_KEY: moved.to_json().encode()}).count_rows() == 1
