"""A dataset: a folder or object store prefix of Lance tables, marked by `dataset.json`."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas import SCHEMA_VERSION
from schemas.columns import TableSpec, check_version
from schemas.errors import SchemaMismatch, UserError, nearest
from schemas.layout import table_uri
from vidpipe.store.files import Files, storage_errors

if TYPE_CHECKING:
    import duckdb
    import lance
    import pyarrow as pa

MARKER = "dataset.json"
SENTINEL = "unit_id != ''"
"""Filter that every reader of a table applies: each table starts with one row that only holds the fence."""
_CACHE_BYTES = 16 << 20
_FOLDERS = ("outcomes", "scores", "tables", "text")


class Dataset:
    """Tables of one dataset by name, such as `clips` or `latents/dct/17x64x96`. Picklable; opens nothing by itself.

    Args:
        root: folder or URI (`s3://`, `gs://`, ...).
        storage_options: Lance's, such as `aws_endpoint`; the environment's AWS_* complete them.
    """

    def __init__(self, root: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None):
        self.files = Files(os.fspath(root), storage_options)
        self.root = self.files.root
        self.storage_options = self.files.options

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self.root, self.storage_options)

    def __repr__(self) -> str:
        return f"Dataset({self.root!r})"

    @functools.cached_property
    def _session(self) -> lance.Session:
        import lance

        return lance.Session(index_cache_size_bytes=_CACHE_BYTES, metadata_cache_size_bytes=_CACHE_BYTES)

    def create(self) -> Dataset:
        """Make the dataset, or open the one that is there.

        Raises:
            UserError: the place cannot be written, or is a file or a folder with something else in it.
            SchemaMismatch: a dataset of another schema version.
        """
        self.check_place()
        if self._marker() is None:
            marker = {"format": "vidpipe", "schema_version": SCHEMA_VERSION}
            try:
                self.files.create(MARKER, json.dumps(marker).encode() + b"\n")
            except storage_errors() as error:
                raise UserError(f"output {self.root}: cannot be written: {error}") from None
        return self.open()

    def check_place(self) -> None:
        """Raise UserError where there is something that is no dataset: a file, or a folder with other things in it."""
        if not self.root:
            raise UserError("output '': expected a folder or an object store's URI, found nothing")
        if not self.files.local or self._marker() is not None:
            return
        path = Path(self.root)
        if path.exists() and not path.is_dir():
            raise UserError(f"output {self.root}: is a file; expected a folder")
        try:
            found = [name for name in self.files.list() if not name.startswith(".")]
        except OSError as error:
            raise UserError(f"output {self.root}: cannot be read: {error}") from None
        if found:
            raise UserError(
                f"output {self.root}: not a dataset ({MARKER} is missing) and not empty ({found[0]!r} is in it); "
                "choose a new or an empty folder"
            )

    def open(self) -> Dataset:
        """Check that this is a dataset that this release reads, and return it.

        Raises:
            UserError: no dataset here.
            SchemaMismatch: written by another schema version.
        """
        text = self._marker()
        if text is None:
            raise UserError(f"dataset {self.root}: no {MARKER} there; give the folder that `vidpipe run --output` made")
        try:
            version = json.loads(text)["schema_version"]
        except (ValueError, KeyError, TypeError):
            raise SchemaMismatch(f"dataset {self.root}: {MARKER} is not one of ours") from None
        if version != SCHEMA_VERSION:
            advice = "upgrade vidpipe" if version > SCHEMA_VERSION else "build the dataset again"
            raise SchemaMismatch(
                f"dataset {self.root}: schema version {version}, but this release reads {SCHEMA_VERSION}; {advice}"
            )
        return self

    def _marker(self) -> bytes | None:
        try:
            return self.files.read(MARKER)
        except storage_errors() as error:
            raise UserError(f"dataset {self.root}: cannot be read: {error}") from None

    def uri(self, name: str) -> str:
        """URI of a table."""
        return table_uri(self.root, name)

    def has(self, name: str) -> bool:
        """Whether a table exists."""
        return bool(self.files.list(f"{name}.lance/_versions"))

    def names(self) -> list[str]:
        """Names of all tables, sorted."""
        folders = ["", *_FOLDERS, *(f"latents/{space}" for space in self.files.list("latents"))]
        found = [f"{f}/{e}".lstrip("/") for f in folders for e in self.files.list(f) if e.endswith(".lance")]
        return sorted(name for name in (e.removesuffix(".lance") for e in found) if self.has(name))

    def table(self, name: str, version: int | str | None = None) -> lance.LanceDataset:
        """Open a table at its newest version, or at a version number or tag.

        Raises:
            UserError: no such table or version, with the nearest name.
            SchemaMismatch: written by another schema version.
        """
        import lance

        try:
            found = lance.dataset(
                self.uri(name), version=version, storage_options=self.storage_options or None, session=self._session
            )
        except ValueError as error:
            if self.has(name):
                raise UserError(f"table {name} of {self.root}, version {version}: {error}") from None
            raise UserError(f"dataset {self.root}: no table {name!r}{nearest(name, self.names())}") from None
        check_version(found.schema.metadata, f"table {name} of {self.root}")
        return found

    def ensure(self, name: str, spec: TableSpec, metadata: Mapping[bytes, bytes] | None = None) -> lance.LanceDataset:
        """Open a table, creating it if it is not there; nullable columns that it lacks are added.

        Safe against any number of processes doing the same, and against their death at any moment.

        Raises:
            SchemaMismatch: a table of this name exists and holds something else.
            LatentSpaceMismatch: it holds latents of another space.
        """
        from vidpipe.store import create

        return create.ensure(self, name, spec, metadata or {})

    def read(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        version: int | str | None = None,
    ) -> pa.Table:
        """Rows of a table without its sentinel; blob columns are left out unless named (then as bytes)."""
        from vidpipe.store.query import scan

        return scan(self.table(name, version), columns, filter).to_table()

    def connect(self, versions: Mapping[str, int | str] | None = None) -> duckdb.DuckDBPyConnection:
        """Open a DuckDB connection with one view a table, named as in the layout: `SELECT * FROM "captions"`.

        Args:
            versions: version or tag of tables that are to be pinned; the others are read at their newest.
        """
        from vidpipe.store.query import connect

        return connect(self, versions or {})
