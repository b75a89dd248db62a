"""What a stage sees of the dataset: DuckDB relations restricted to the fingerprints of this run.

`"cur/<table>"` holds a table's rows under the current (or adopted) fingerprints; `clip` is a row a clip with all that
is known of it; `done` and `ruled` are the outcomes of the stage that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from schemas import expressions, layout
from vidpipe.media.facts import facts_columns
from vidpipe.store.dataset import SENTINEL, Dataset
from vidpipe.store.query import plain_columns

BATCH_ROWS = 4096


def quoted(value: str) -> str:
    """SQL string literal."""
    return "'" + value.replace("'", "''") + "'"


def of_a_clip(columns: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Of all tables those that say something of a clip, a row a clip: what `expressions.clip_view` joins."""
    other = ("latents/", "text/", "captions", "outcomes/", "tables/checksum")
    return {name: found for name, found in columns.items() if not name.startswith(other)}


def clips_sql(where: str = "true") -> str:
    """Query of clips, file by file, each with the facts of its video, which save a worker probing the file again."""
    facts = ", ".join(f"'{n}': v.\"{n}\"" for n in facts_columns())
    return (
        f"SELECT c.*, {{{facts}}} AS video_facts, c.clip_id AS id FROM clip c "
        f'JOIN "cur/videos" v ON v.video_id = c.video_id WHERE {where} ORDER BY c.video_id, c.start_pts'
    )


class View:
    """A snapshot of the dataset for one query pass of one stage.

    Args:
        accepted: for each stage, the fingerprints whose rows count: its own first, then adopted ones.
        writers: which stage writes each table, by table name.

    Attributes:
        slots: units of the stage that can run at once; set by the engine.
    """

    def __init__(self, dataset: Dataset, accepted: Mapping[str, list[str]], writers: Mapping[str, str]) -> None:
        import duckdb

        self.dataset = dataset
        self.accepted = accepted
        self.slots: Callable[[], int] = lambda: 1
        self.con: Any = duckdb.connect()
        self.columns: dict[str, list[str]] = {}
        self._tables: dict[str, Any] = {}  # opened once, so that all queries of this view read one version
        for name in dataset.names():
            stage = writers.get(name)
            if stage is None or stage not in accepted:
                continue
            self._tables[name] = dataset.table(name)
            self.columns[name] = plain_columns(self._tables[name])
        self._register(self.con)
        for name, columns in self.columns.items():
            prints = ", ".join(map(quoted, accepted[writers[name]]))
            selected = ", ".join(f'"{c}"' for c in columns)
            self.con.execute(
                f'CREATE VIEW "cur/{name}" AS SELECT {selected} FROM "lance/{name}" '
                f"WHERE {SENTINEL} AND fingerprint IN ({prints})"
            )
        self.clip_columns: list[str] = []
        if "clips" in self.columns:
            sql, self.clip_columns = expressions.clip_view(of_a_clip(self.columns), '"cur/{}"')
            self.con.execute(f"CREATE VIEW clip AS {sql}")

    def _register(self, con: Any) -> None:
        """Lance tables are known to one connection; cursors share the views over them only."""
        for name, table in self._tables.items():
            con.register(f"lance/{name}", table)

    def _cursor(self) -> Any:
        cursor = self.con.cursor()  # a connection holds one unfinished result
        self._register(cursor)
        return cursor

    def has(self, name: str) -> bool:
        """Whether a table exists (it may be empty)."""
        return name in self.columns

    def rows(self, sql: str) -> Iterator[dict[str, Any]]:
        """Stream a query's rows as dicts, a bounded number at a time."""
        for batch in self._cursor().sql(sql).to_arrow_reader(BATCH_ROWS):
            yield from batch.to_pylist()

    def table(self, sql: str) -> Any:
        """A query's rows as one Arrow table."""
        return self._cursor().sql(sql).to_arrow_table()

    def value(self, sql: str) -> Any:
        """First value of the first row."""
        return self._cursor().execute(sql).fetchall()[0][0]

    def use_outcomes(self, stage: str, retried_reasons: Sequence[str] = ()) -> None:
        """Define `done` (id, items) and `ruled` (id, hash, unit): rejected by an expression, asked again if they pass.

        Failures with one of `retried_reasons` count as if an older expression had rejected them.
        """
        name = layout.outcomes_name(stage)
        source = (
            f'"cur/{name}"'
            if self.has(name)
            else "(SELECT NULL::BLOB id, '' item, '' status, '' reason, '' expression_hash, '' unit_id LIMIT 0)"
        )
        ruled = "(status = 'rejected' AND expression_hash <> '')"
        if retried_reasons:
            ruled += f" OR (status = 'failed' AND reason IN ({', '.join(map(quoted, retried_reasons))}))"
        self.con.execute(
            "CREATE OR REPLACE VIEW done AS "
            f"SELECT id, list(item) AS items FROM {source} WHERE NOT ({ruled}) GROUP BY id"
        )
        self.con.execute(
            "CREATE OR REPLACE VIEW ruled AS "
            f"SELECT id, min(expression_hash) AS hash, max(unit_id) AS unit FROM {source} WHERE {ruled} GROUP BY id"
        )

    def passing_sql(self, candidates: str, expression: str, single_item: bool) -> str:
        """Candidates that pass the expression and are not done; adds `done_items`, and `stale` if rejected before, by
        `stale_unit`."""
        undone = "d.id IS NULL" if single_item else "true"
        return (
            f"SELECT c.*, d.items AS done_items, r.id IS NOT NULL AS stale, r.unit AS stale_unit FROM "
            f"(SELECT * FROM ({candidates}) WHERE coalesce(({expression}\n), false)) c "
            f"LEFT JOIN done d ON c.id = d.id LEFT JOIN ruled r ON c.id = r.id WHERE {undone}"
        )

    def failing_sql(self, candidates: str, expression: str) -> str:
        """Candidates that fail the expression and have no outcome yet, or one of another expression (`stale`).

        Adds `rule`, the first false term, and `value`, what that term's columns hold.
        """
        rules, values = [], []
        for term in expressions.terms(self.con, expression):
            shown = [
                f"'{c}=' || coalesce(CAST(\"{c}\" AS VARCHAR), 'null')" for c in expressions.columns_of(self.con, term)
            ]
            false = f"NOT coalesce(({term}\n), false)"
            rules.append(f"WHEN {false} THEN {quoted(term)}")
            values.append(f"WHEN {false} THEN {' || chr(44) || chr(32) || '.join(shown) or quoted('')}")
        return (
            "SELECT c.id, c.rule, c.value, r.id IS NOT NULL AS stale FROM "
            f"(SELECT id, CASE {' '.join(rules)} ELSE '' END AS rule, CASE {' '.join(values)} ELSE '' END AS value "
            f"FROM ({candidates}) WHERE NOT coalesce(({expression}\n), false)) c "
            "LEFT JOIN done d ON c.id = d.id LEFT JOIN ruled r ON c.id = r.id "
            f"WHERE d.id IS NULL AND (r.id IS NULL OR r.hash <> {quoted(expressions.expression_hash(expression))})"
        )

    def close(self) -> None:
        """Release the snapshot."""
        self.con.close()
