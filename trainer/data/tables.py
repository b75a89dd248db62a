"""Open the tables of a dataset to read them: which exist, at which version, which fingerprint, where each blob lies."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from schemas import layout
from schemas.columns import check_version
from schemas.errors import UserError, nearest
from schemas.storage import complete_options

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A dataset to read: its root and the credentials that reach it.

    Attributes:
        root: a folder or an object store URI.
        storage_options: as Lance names them (`aws_endpoint`, ...); the environment adds what lacks.
    """

    root: str
    storage_options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "storage_options", complete_options(self.root, self.storage_options))

    @property
    def is_local(self) -> bool:
        """Whether the tables are files that this process can open."""
        return "://" not in self.root or self.root.startswith("file://")

    @property
    def path(self) -> Path:
        """The folder of a local dataset."""
        return Path(self.root.removeprefix("file://"))

    def names(self) -> list[str]:
        """Tables by name relative to the root, such as `clips` or `latents/dct/17x64x96`, sorted."""
        if self.is_local:
            if not self.path.is_dir():
                raise UserError(f"dataset {self.root}: no such folder; expected what `vidpipe run --output` wrote")
            found = [str(p.relative_to(self.path)) for p in _walk(self.path)]
        else:
            found = list(self._remote_names())
        if "clips.lance" not in found:
            raise UserError(f"dataset {self.root}: no clips.lance in it; expected what `vidpipe run --output` wrote")
        return sorted(name.removesuffix(".lance") for name in found)

    def read_file(self, name: str) -> bytes | None:
        """A small file of the dataset; None where there is none."""
        try:
            if self.is_local:
                return (self.path / name).read_bytes()
            files, root = self._remote()
            return files.cat_file(f"{root.rstrip('/')}/{name}")
        except FileNotFoundError:
            return None

    def _remote(self) -> tuple[Any, str]:
        """The object store's file system, and the root in it."""
        import fsspec

        options: dict[str, Any] = {}
        given = self.storage_options
        if self.root.startswith("s3://") and given:
            endpoint = given.get("aws_endpoint") or given.get("endpoint")
            options = {
                "key": given.get("aws_access_key_id"),
                "secret": given.get("aws_secret_access_key"),
                "client_kwargs": {"endpoint_url": endpoint, "region_name": given.get("aws_region")},
            }
        files, root = fsspec.core.url_to_fs(self.root.rstrip("/"), **options)
        return files, root

    def _remote_names(self) -> Iterator[str]:
        files, root = self._remote()
        pending = [root]
        while pending:
            for entry in files.ls(pending.pop(), detail=True):
                name = entry["name"].rstrip("/")
                if name.rsplit("/", 1)[-1].startswith("."):
                    continue
                if entry["type"] == "directory" and name.endswith(".lance"):
                    yield name[len(root.rstrip("/")) + 1 :]
                elif entry["type"] == "directory" and name.count("/") - root.count("/") < 3:
                    pending.append(name)

    def open(self, name: str, version: int | str | None = None) -> Any:
        """Open a table at a version (the newest unless given) as a `lance.LanceDataset`; checks its schema."""
        import lance

        uri = layout.table_uri(self.root, name)
        try:
            table = lance.dataset(uri, version=version, storage_options=dict(self.storage_options) or None)
        except ValueError as error:
            raise UserError(f"table {uri}: cannot be opened at version {version or 'newest'}: {error}") from None
        check_version(table.schema.metadata, uri)
        return table


def _walk(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):  # a table that is being made is hidden
            if entry.suffix == ".lance":
                yield entry
            else:
                yield from _walk(entry)


def choose_fingerprint(con: Any, table: Any, where: str, wanted: str | None) -> tuple[str | None, dict[str, int]]:
    """Fingerprint to read from a table: `wanted`, else the one written last; and the rows of each."""
    reader = table.scanner(columns=["fingerprint"], filter="unit_id != ''", with_row_id=True).to_reader()
    con.register("_fingerprints", reader)
    rows = con.execute('SELECT fingerprint, max("_rowid"), count(*) FROM _fingerprints GROUP BY 1').fetchall()
    con.unregister("_fingerprints")
    counts = {name: count for name, _, count in rows}
    if wanted is not None and wanted not in counts:
        raise UserError(f"{where}: no rows of fingerprint {wanted!r}{nearest(wanted, counts)}")
    chosen = wanted if wanted is not None else max(rows, key=lambda row: row[1])[0] if rows else None
    others = {name: count for name, count in counts.items() if name != chosen}
    if others:
        listed = ", ".join(f"{name} ({count:,} rows)" for name, count in sorted(others.items()))
        log.info("%s: reading fingerprint %s (%d rows); not read: %s", where, chosen, counts.get(chosen, 0), listed)
    return chosen, counts


class BlobFiles:
    """Numbers the payload files of one table, so that an index names a blob by (file, position).

    The layout of blob v2 is not a public interface of Lance: readers compare a row with `read_blobs` before they
    trust it.
    """

    def __init__(self, table: Any, column: str) -> None:
        field_id = next(f.id() for f in table.lance_schema.fields() if f.name() == column)
        self._stems = {}
        for fragment in table.get_fragments():
            for data_file in fragment.metadata.files:
                if field_id in data_file.fields:
                    self._stems[fragment.fragment_id] = data_file.path.removesuffix(".lance")
        self._numbers: dict[tuple[int, int, int], int] = {}
        self.paths: list[str] = []

    def number(self, addresses: np.ndarray, kinds: np.ndarray, blob_ids: np.ndarray) -> np.ndarray:
        """File number of each row, uint32; the path is empty for a kind whose file we do not know."""
        keys = np.stack([addresses >> np.uint64(32), kinds.astype(np.uint64), blob_ids.astype(np.uint64)])
        changed = np.flatnonzero(np.any(keys[:, 1:] != keys[:, :-1], axis=0)) + 1
        starts = np.concatenate([[0], changed]) if keys.shape[1] else np.empty(0, np.int64)
        runs = [self._number(*map(int, keys[:, start])) for start in starts]
        lengths = np.diff(np.append(starts, keys.shape[1]))
        return np.repeat(np.array(runs, np.uint32), lengths)

    def _number(self, fragment: int, kind: int, blob_id: int) -> int:
        if kind == 0:
            blob_id = 0
        key = (fragment, kind, blob_id)
        if key not in self._numbers:
            self._numbers[key] = len(self.paths)
            stem = self._stems[fragment]
            file = f"data/{stem}/{format(blob_id, '032b')[::-1]}.blob"
            self.paths.append({0: f"data/{stem}.lance", 1: file, 2: file}.get(kind, ""))
        return self._numbers[key]
