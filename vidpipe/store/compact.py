"""Keeping small tables in few fragments: every commit adds one or more, and opening, committing and scanning cost a
little for each (5,000 fragments: 87 ms a commit, 1.1 s a scan).

Merging in tiers, small fragments into middling ones and those into large ones, rewrites a row about once a tier
instead of once a merge. Tables with blob columns are left alone: that would copy all payload; their units are large.
The sentinel's fragment is left out, so it stays the first, and the fence of a stale coordinator still meets it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from vidpipe.store import failpoints

if TYPE_CHECKING:
    import lance

TIERS_ROWS = (1 << 12, 1 << 15, 1 << 18)
"""Rows of a merged fragment. The last bounds what a merge holds in memory: 8 MiB a column and more at 2**20 rows."""
MOST_PER_TIER = 64


def has_blobs(table: lance.LanceDataset) -> bool:
    """Whether a column is payload."""
    return any(isinstance(field.type, pa.ExtensionType) for field in table.schema)


def compact(table: lance.LanceDataset) -> bool:
    """Merge fragments where a tier has too many; `table` is then at the newest version. Call it under the lease.

    Returns:
        whether anything was merged.
    """
    if has_blobs(table) or len(table.fragment_ids()) <= MOST_PER_TIER:
        return False
    merged = False
    for target in TIERS_ROWS:
        first = next(iter(table.fragment_ids()))
        if sum(f.physical_rows < target for f in table.get_fragments() if f.fragment_id != first) <= MOST_PER_TIER:
            continue
        failpoints.reach("compact:planned")
        table.optimize.compact_files(target_rows_per_fragment=target, num_threads=1, excluded_fragment_ids=[first])
        failpoints.reach("compact:committed")
        merged = True
    return merged
