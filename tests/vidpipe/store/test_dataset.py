"""Opening and creating datasets: what a user sees when it is not one."""

from __future__ import annotations

import json
import pickle

import lance
import pytest

from schemas import SCHEMA_VERSION
from schemas.columns import VERSION_KEY
from schemas.errors import SchemaMismatch, UserError
from schemas.tables import CLIPS, OUTCOMES
from vidpipe.store import files
from vidpipe.store.dataset import MARKER, Dataset


def test_create_then_open(tmp_path):
    made = Dataset(tmp_path / "new" / "data").create()
    assert json.loads((tmp_path / "new" / "data" / MARKER).read_text())["schema_version"] == SCHEMA_VERSION
    assert Dataset(made.root).open().names() == []
    assert Dataset(made.root).create().root == made.root


def test_what_is_no_dataset_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no dataset\.json there"):
        Dataset(tmp_path).open()
    with pytest.raises(UserError, match=r"no dataset\.json there"):
        Dataset(tmp_path / "nothing").open()


def test_places_that_cannot_hold_one(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        Dataset(tmp_path / "file").create()
    with pytest.raises(UserError, match="cannot be written"):
        Dataset(tmp_path / "file" / "below").create()
    with pytest.raises(UserError, match=r"not empty \('file' is in it"):
        Dataset(tmp_path).create()
    with pytest.raises(UserError, match="cannot be written"):
        Dataset("/proc/here").create()


def test_other_schema_versions_are_refused(tmp_path):
    made = Dataset(tmp_path / "d").create()
    marker = tmp_path / "d" / MARKER
    marker.write_text(json.dumps({"schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(SchemaMismatch, match="upgrade vidpipe"):
        made.open()
    with pytest.raises(SchemaMismatch, match="upgrade vidpipe"):
        made.create()
    marker.write_text(json.dumps({"schema_version": SCHEMA_VERSION - 1}))
    with pytest.raises(SchemaMismatch, match="build the dataset again"):
        made.open()
    marker.write_text("{}")
    with pytest.raises(SchemaMismatch, match="not one of ours"):
        made.open()


def test_a_table_of_a_newer_version_is_refused(dataset):
    table = dataset.ensure("clips", CLIPS)
    table.update_schema_metadata({VERSION_KEY.decode(): str(SCHEMA_VERSION + 1)})
    with pytest.raises(SchemaMismatch, match=f"schema version {SCHEMA_VERSION + 1}.*upgrade"):
        dataset.table("clips")


def test_names_and_tables(dataset, rows):
    dataset.ensure("clips", CLIPS)
    dataset.ensure("outcomes/encode", OUTCOMES)
    dataset.ensure("latents/wan2.1/1x8x8", CLIPS)  # a dot in a space's name
    assert dataset.names() == ["clips", "latents/toy/1x8x8", "latents/wan2.1/1x8x8", "outcomes/encode"]
    assert dataset.has("clips")
    assert not dataset.has("videos")
    with pytest.raises(UserError, match=r"no table 'clip'; did you mean 'clips'\?"):
        dataset.table("clip")
    with pytest.raises(UserError, match="version missing"):
        dataset.table("clips", "missing")


def test_a_tag_pins_a_version(dataset, rows):
    table = dataset.table(rows.table)
    table.tags.create("run-1", table.version)
    lance.write_dataset(table.to_table(blob_handling="all_binary").slice(0, 0), str(dataset.uri("other")))
    assert dataset.table(rows.table, "run-1").version == table.version


def test_it_pickles_small(dataset):
    dataset.table("latents/toy/1x8x8")  # a session is open
    data = pickle.dumps(dataset)
    assert len(data) < 500
    assert pickle.loads(data).names() == dataset.names()


def test_object_stores_that_cannot_be_reached(monkeypatch):
    with pytest.raises(UserError, match="nowhere://bucket/x: Protocol not known"):
        Dataset("nowhere://bucket/x").open()
    botocore = pytest.importorskip("botocore.exceptions")

    def read(*_):
        raise botocore.NoCredentialsError

    monkeypatch.setattr(files.Files, "read", read)
    for method in (Dataset.open, Dataset.create):
        with pytest.raises(UserError, match="cannot be read: Unable to locate credentials"):
            method(Dataset("s3://bucket/x"))


def test_a_bucket_that_is_not_there(s3_root):
    with pytest.raises(UserError, match="cannot be written"):
        Dataset("s3://no-such-bucket/x").create()


def test_on_an_object_store(s3_root):
    with pytest.raises(UserError, match=r"no dataset\.json there"):
        Dataset(s3_root).open()
    made = Dataset(s3_root).create()
    made.ensure("clips", CLIPS)
    made.ensure("outcomes/encode", OUTCOMES)
    assert Dataset(s3_root).open().names() == ["clips", "outcomes/encode"]
    assert made.read("clips").num_rows == 0
    with pytest.raises(UserError, match="did you mean 'clips'"):
        made.table("clip")
