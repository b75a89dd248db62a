"""One view of a dataset for status and report: each stage's rows under the parameters that it last ran with.

`"now/<table>"` are DuckDB views over the rows whose fingerprint is a stage's newest, or one that it adopted. A stage's
newest fingerprint is that of its last committed outcome.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from schemas import expressions, layout
from schemas.latent_spaces import LatentSpace
from vidpipe.store.dataset import Dataset

PIPELINE = ("ingest", "checksum", "analyze", "score", "near_duplicates", "split", "caption", "embed", "encode")
"""Order in which stages are shown; others come after, by name."""


def pipeline_order(stage: str) -> tuple[int, str]:
    """Sort key of a stage's name; `score-blur` sorts where `score` does."""
    for i, name in enumerate(PIPELINE):
        if stage == name or stage.startswith((f"{name}-", f"{name}:", f"{name}.")):
            return i, stage
    return len(PIPELINE), stage


class Snapshot:
    """Reads a dataset as it is now; close it with `close`, or use it as a context manager.

    Attributes:
        con: DuckDB connection with the views `"now/<table>"` and `clip`, a row a clip with all that is known of it.

    Raises:
        UserError: no dataset there.
    """

    def __init__(self, dataset: Dataset | str) -> None:
        self.dataset = Dataset(dataset).open() if isinstance(dataset, str) else dataset
        self.con: Any = self.dataset.connect()
        self.names = self.dataset.names()
        self.stages = sorted(
            (n.removeprefix("outcomes/") for n in self.names if n.startswith("outcomes/")), key=pipeline_order
        )
        self.fingerprints = {stage: self._fingerprints(stage) for stage in self.stages}
        accepted = sorted({f for prints in self.fingerprints.values() for f in prints})
        listed = ", ".join(f"'{f}'" for f in accepted) or "''"
        for name in self.names:
            self.con.execute(f'CREATE VIEW "now/{name}" AS SELECT * FROM "{name}" WHERE fingerprint IN ({listed})')
        self.clip_columns: list[str] = []
        if "clips" in self.names:
            sql, self.clip_columns = expressions.clip_view(self._columns_of_clips(), '"now/{}"')
            self.con.execute(f"CREATE VIEW clip AS {sql}")

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the connection."""
        self.con.close()

    def _fingerprints(self, stage: str) -> list[str]:
        """The newest, then those that it adopted; empty for a stage that has done nothing."""
        table = layout.outcomes_name(stage)
        row = self.con.execute(f'SELECT arg_max(fingerprint, finished_at) FROM "{table}"').fetchone()
        if row[0] is None:
            return []
        adopted = self.dataset.files.read(f"recipes/{row[0]}.adopts.json")
        return [row[0], *(json.loads(adopted) if adopted else [])]

    def _columns_of_clips(self) -> dict[str, list[str]]:
        wanted = [n for n in self.names if n in ("clips", "videos") or n.startswith(("scores/", "tables/"))]
        return {n: [r[0] for r in self.con.execute(f'DESCRIBE "now/{n}"').fetchall()] for n in wanted}

    def has(self, *names: str) -> bool:
        """Whether all these tables exist."""
        return set(names) <= set(self.names)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """A query's rows as dicts; for results that fit a page."""
        result = self.con.execute(sql, parameters)
        names = [d[0] for d in result.description]
        return [dict(zip(names, row)) for row in result.fetchall()]

    def value(self, sql: str) -> Any:
        """First value of the first row."""
        return self.con.execute(sql).fetchone()[0]

    @cached_property
    def latent_tables(self) -> list[str]:
        """Names of the latent tables."""
        return [n for n in self.names if n.startswith("latents/")]

    def latent_space(self, name: str) -> LatentSpace:
        """Space of a latent table."""
        return LatentSpace.from_metadata(self.dataset.table(name).schema.metadata, f"table {name}")

    def table_bytes(self, name: str) -> int:
        """Bytes that a table takes on disk, old versions included."""
        files = self.dataset.files
        path = files.path(f"{name}.lance")
        if files.local:
            return sum(f.stat().st_size for f in Path(path).rglob("*") if f.is_file())
        return int(files._fs.du(path))
