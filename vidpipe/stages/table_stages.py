"""near_duplicates and split: read whole tables, write one of their own, and run again when their input changed.

Their candidate is one row that stands for the input: its id is a hash over the rows read, whatever their order, so
that a resumed run and an uninterrupted one agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from schemas import layout, tables
from schemas.columns import TableSpec
from schemas.outcomes import Outcome
from vidpipe.sections import NearDuplicatesConfig, SplitConfig
from vidpipe.stages.base import Context, Result, Row, Stage, Unit
from vidpipe.stages.view import View
from vidpipe.store.reconcile import KeptRows


class TableStage(Stage):
    """Base of stages over whole tables: one unit, which replaces every row of the stage's table."""

    barrier: ClassVar[bool] = True
    replaces_table: ClassVar[bool] = True
    spec: ClassVar[TableSpec]

    @property
    def table_name(self) -> str:
        """`tables/<stage>`."""
        return layout.stage_table_name(self.name)

    def tables(self) -> dict[str, tuple[TableSpec, dict[bytes, bytes]]]:
        return {self.table_name: (self.spec, {})}

    def kept_rows(self) -> dict[str, KeptRows]:
        return {}  # the outcome's id is a hash of the input: if the crash cut it off, the stage runs again

    def source(self, view: View) -> str | None:
        """SQL of the rows that the stage reads."""
        raise NotImplementedError

    def compute(self, table: pa.Table) -> pa.Table:
        """The stage's table, without provenance."""
        raise NotImplementedError

    def candidates(self, view: View) -> str | None:
        source = self.source(view)
        if source is None:
            return None
        row = f"bit_xor(md5_number(CAST(r AS VARCHAR))) AS x, count(*) AS n FROM ({source}) r"
        return f"SELECT unhex(md5(concat(x, '/', n))) AS id, n AS num_rows FROM (SELECT {row}) WHERE n > 0"

    def units(self, rows: Iterable[Row], view: View, final: bool) -> Iterator[Unit | Result]:
        if not final:
            return
        source = self.source(view) or ""
        for row in rows:
            table = self.compute(view.table(source))
            yield Result(
                rows={self.table_name: table},
                outcomes=[Outcome(id=row["id"], status="kept", message=f"{row['num_rows']} rows read")],
            )

    def process(self, unit: Unit, context: Context) -> Result:
        raise AssertionError("a table stage runs in the coordinator")


@dataclass(frozen=True, kw_only=True)
class NearDuplicates(TableStage):
    """Groups clips whose perceptual hashes are near each other."""

    name = "near_duplicates"
    version = 1
    upstream = ("analyze",)
    computes_from = ("analyze",)
    spec = tables.NEAR_DUPLICATES
    config: NearDuplicatesConfig

    def params(self) -> Mapping[str, Any]:
        return {"radius": self.config.radius}

    def source(self, view: View) -> str | None:
        from vidpipe.near_duplicates import INPUT_COLUMNS

        if not set(INPUT_COLUMNS) <= set(view.columns.get("clips", ())):
            return None
        return f'SELECT {", ".join(INPUT_COLUMNS)} FROM "cur/clips"'

    def compute(self, table: pa.Table) -> pa.Table:
        from vidpipe.near_duplicates import group

        return group(table, radius=self.config.radius)


@dataclass(frozen=True, kw_only=True)
class Split(TableStage):
    """Holds out a share of the near-duplicate groups."""

    name = "split"
    version = 1
    upstream = ("near_duplicates",)
    computes_from = ("near_duplicates",)
    spec = tables.SPLIT
    config: SplitConfig

    def params(self) -> Mapping[str, Any]:
        return {"heldout": self.config.heldout, "seed": self.config.seed}

    def source(self, view: View) -> str | None:
        name = layout.stage_table_name("near_duplicates")
        return f'SELECT clip_id, duplicate_group FROM "cur/{name}"' if view.has(name) else None

    def compute(self, table: pa.Table) -> pa.Table:
        from vidpipe.split import assign

        return assign(table, share=self.config.heldout, seed=self.config.seed)
