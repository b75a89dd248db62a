"""Making tables: exclusive, atomic, and nothing to heal when the creator dies.

Lance's own creation is not atomic: racing creators can each be told "ok" and rows get lost. So a table is made whole
in a private temporary folder and then published in one step that only one caller can win: on a local disk by renaming
the folder (which fails if the name exists), on an object store by uploading the data file and then the first manifest
with `If-None-Match: *`. A creator that died left a hidden folder, or files that no manifest names: `clean` takes both.
A lock file was turned down: a creator paused past its lock wakes up and creates over a table that has rows.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from schemas.columns import BLOB_KEY, Column, TableSpec
from schemas.errors import SchemaMismatch
from schemas.latent_spaces import METADATA_KEY, LatentSpace
from vidpipe.store import failpoints

if TYPE_CHECKING:
    import lance

    from vidpipe.store.dataset import Dataset

STORAGE_VERSION: Literal["2.2"] = "2.2"
KEY_KEY = b"vidpipe.key"
TEMPORARY = ".creating-"
_ALWAYS_PACKED = 1 << 40


def ensure(dataset: Dataset, name: str, spec: TableSpec, metadata: Mapping[bytes, bytes]) -> lance.LanceDataset:
    """Implement `Dataset.ensure`."""
    metadata = {**metadata, KEY_KEY: spec.key.encode()}
    if not dataset.has(name):
        _create(dataset, name, lance_schema(spec.schema(metadata)))
    table = dataset.table(name)
    where = f"table {name} of {dataset.root}"
    _check_metadata(table.schema.metadata or {}, spec.schema(metadata).metadata or {}, where)
    return _add_columns(dataset, name, table, spec, where)


def lance_schema(schema: pa.Schema) -> pa.Schema:
    """Turn columns marked as blobs into Lance blob v2 fields: many rows packed in a file at any size."""
    import lance

    fields: list[pa.Field] = []
    for field in schema:
        if (field.metadata or {}).get(BLOB_KEY):
            blob = lance.blob_field(
                field.name, nullable=False, inline_size_threshold=0, dedicated_size_threshold=_ALWAYS_PACKED
            )
            metadata: dict[Any, Any] = {**dict(blob.metadata or {}), **dict(field.metadata or {})}
            field = blob.with_metadata(metadata)
        fields.append(field)
    return pa.schema(fields).with_metadata(schema.metadata or {})


def sentinel(schema: pa.Schema) -> pa.Table:
    """The one row that a table starts with: `unit_id` empty, nulls where allowed, else zero."""
    return pa.Table.from_arrays([_zero(field) for field in schema], schema=schema)


def _zero(field: pa.Field) -> pa.Array:
    import lance

    if field.nullable:
        return pa.nulls(1, field.type)
    if isinstance(field.type, pa.ExtensionType):
        return lance.blob_array([b"\0"])
    if pa.types.is_fixed_size_binary(field.type):
        return pa.array([bytes(field.type.byte_width)], field.type)
    if pa.types.is_string(field.type):
        return pa.array([""], field.type)
    if pa.types.is_list(field.type):
        return pa.array([[]], field.type)
    return pa.array([0], pa.int64()).cast(field.type)


def _create(dataset: Dataset, name: str, schema: pa.Schema) -> None:
    import lance

    def write(path: Path) -> None:
        rows = sentinel(schema)
        lance.write_dataset(
            rows, str(path), schema=schema, data_storage_version=STORAGE_VERSION, enable_stable_row_ids=True
        )
        failpoints.reach("create:written")

    if dataset.files.local:
        temporary = Path(dataset.root) / f"{TEMPORARY}{uuid.uuid4().hex}"
        try:
            write(temporary / "table.lance")
            _publish_folder(temporary / "table.lance", Path(dataset.uri(name)))
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    else:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / "table.lance")
            _publish_objects(Path(folder) / "table.lance", dataset, name)
    failpoints.reach("create:published")


def _publish_folder(made: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        made.rename(target)
    except OSError:
        if not (target / "_versions").is_dir():
            raise
        # Another process was first: its table is as good as ours.


def _publish_objects(made: Path, dataset: Dataset, name: str) -> None:
    files = sorted(p.relative_to(made).as_posix() for p in made.rglob("*") if p.is_file())
    manifests = [f for f in files if f.endswith(".manifest")]
    assert len(manifests) == 1, files
    for file in files:
        if not file.startswith("_versions/"):  # unique names: no two creators meet
            dataset.files.write(f"{name}.lance/{file}", (made / file).read_bytes())
    failpoints.reach("create:uploaded")
    dataset.files.create(f"{name}.lance/{manifests[0]}", (made / manifests[0]).read_bytes())


def _check_metadata(found: Mapping[bytes, bytes], wanted: Mapping[bytes, bytes], where: str) -> None:
    for key, value in wanted.items():
        if found.get(key) == value:
            continue
        if key == METADATA_KEY and key in found:
            LatentSpace.from_json(value).require(LatentSpace.from_json(found[key]), where)
            continue
        shown = found.get(key, b"nothing").decode(errors="replace")
        raise SchemaMismatch(
            f"{where}: expected {key.decode()} {value.decode(errors='replace')!r}, found {shown!r}; "
            "use another output or remove that table"
        )


def _add_columns(
    dataset: Dataset, name: str, table: lance.LanceDataset, spec: TableSpec, where: str
) -> lance.LanceDataset:
    missing: list[Column] = []
    for column in spec.columns:
        index = table.schema.get_field_index(column.name)
        if index < 0:
            missing.append(column)
            continue
        held: Any = table.schema.field(index).type
        if not column.blob and held != column.type:
            raise SchemaMismatch(
                f"{where}: column {column.name!r} is {held}, expected {column.type}; use another output"
            )
    if not missing:
        return table
    required = [c.name for c in missing if not c.nullable]
    if required:
        raise SchemaMismatch(f"{where}: no column {required[0]!r}, which may not be null; use another output")
    table.add_columns(pa.schema([c.field() for c in missing]))
    return dataset.table(name)
