"""Removing what nothing refers to: old versions, files of writers that died, leftovers of creators and coordinators."""

from __future__ import annotations

import contextlib
import datetime
import logging
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidpipe.store.create import TEMPORARY
from vidpipe.store.lease import Lease, LeaseConfig

if TYPE_CHECKING:
    from vidpipe.store.dataset import Dataset

KEEP = datetime.timedelta(days=14)
_HIDDEN_SECONDS = 3600.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """What was removed from a table, or would be.

    Attributes:
        name: table; empty for hidden files outside of tables.
        num_versions: old versions.
        num_files: data, deletion and transaction files.
        size_bytes: of all of it.
    """

    name: str
    num_versions: int
    num_files: int
    size_bytes: int


def clean(
    dataset: Dataset,
    *,
    older_than: datetime.timedelta = KEEP,
    abandoned: bool = False,
    dry_run: bool = False,
    lease: LeaseConfig | None = None,
) -> list[Cleaned]:
    """Remove versions older than `older_than`, unless tagged, and files that nothing refers to any more.

    Safe beside a running pipeline: files that no version refers to are kept for 7 days, since a worker may be about
    to hand them in.

    Args:
        abandoned: also remove such files at once, and hidden files of killed processes. Takes the lease of every
            stage, so that no coordinator runs; see to it that no worker of an earlier one is alive either.
        dry_run: only say what would be removed.
        lease: how long to wait for silent coordinators.
    Raises:
        LeaseHeld: `abandoned`, and a stage is running.
    """
    with contextlib.ExitStack() as held:
        if abandoned and not dry_run:
            for stage in _stages(dataset):
                held.enter_context(Lease.acquire(dataset, stage, lease))
        made = [_clean_table(dataset, name, older_than, abandoned, dry_run) for name in dataset.names()]
        if abandoned:
            made.append(_clean_hidden(dataset, dry_run))
    return made


def _stages(dataset: Dataset) -> list[str]:
    return [name.removeprefix("outcomes/") for name in dataset.names() if name.startswith("outcomes/")]


def _clean_table(dataset: Dataset, name: str, older_than: datetime.timedelta, abandoned: bool, dry: bool) -> Cleaned:
    table = dataset.table(name)
    options: Any = {"delete_unverified": abandoned, "error_if_tagged_old_versions": False}
    stats: Any
    if dry:
        stats = table.explain_cleanup_old_versions(older_than, **options).stats
    else:
        stats = table.cleanup_old_versions(older_than, **options)
    if stats.failed_deletes:
        _LOG.warning("table %s of %s: %d files could not be removed", name, dataset.root, stats.failed_deletes)
    num_files = stats.data_files_removed + stats.deletion_files_removed + stats.transaction_files_removed
    return Cleaned(name=name, num_versions=stats.old_versions, num_files=num_files, size_bytes=stats.bytes_removed)


def _clean_hidden(dataset: Dataset, dry: bool) -> Cleaned:
    """Temporary folders of dead creators, temporary files of killed writers, heartbeats of earlier coordinators."""
    num_files = size_bytes = 0
    if dataset.files.local:
        for path in _hidden(Path(dataset.root)):
            inside = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
            num_files += len(inside)
            size_bytes += sum(p.stat().st_size for p in inside)
            if not dry and path.is_dir():
                shutil.rmtree(path)
            elif not dry:
                path.unlink()
    return Cleaned(name="", num_versions=0, num_files=num_files, size_bytes=size_bytes)


def _hidden(root: Path) -> Iterable[Path]:
    """Old enough that nobody is about to publish them: creating a table needs no lease."""
    oldest = time.time() - _HIDDEN_SECONDS
    found = [*root.glob(f"{TEMPORARY}*"), *root.glob(".tmp-*"), *root.glob("**/.tmp*")]
    return sorted(path for path in set(found) if path.lstat().st_mtime < oldest)
