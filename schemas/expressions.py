"""Selection expressions: SQL over the tables joined by id, run by DuckDB. Null is false.

This module imports no database: callers pass their DuckDB connection. An expression is parsed by DuckDB itself
(`json_serialize_sql`), so that column names come from the parser and not from a regular expression.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from schemas.errors import UnknownColumn, UserError, nearest

ALL = "true"

_BESIDE_WHERE = ("modifiers", "group_expressions", "group_sets", "having", "qualify", "sample")
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")


def expression_hash(expression: str) -> str:
    """16 hex digits of the expression; white space does not count."""
    return hashlib.blake2b(" ".join(expression.split()).encode(), digest_size=8).hexdigest()


def _parse(con: Any, expression: str) -> tuple[str, dict[str, Any]]:
    if not expression.strip():
        raise UserError(f"expression is empty: expected a condition; {ALL!r} keeps everything")
    sql = f"SELECT 1 FROM t WHERE ({expression}\n)"
    tree = json.loads(con.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone()[0])
    if tree.get("error"):
        raise UserError(f"expression {expression!r}: {tree.get('error_message', 'not SQL')}")
    node = tree["statements"][0]["node"]
    if len(tree["statements"]) != 1 or node["type"] != "SELECT_NODE" or any(node.get(key) for key in _BESIDE_WHERE):
        raise UserError(f"expression {expression!r}: expected one condition, as in a WHERE clause")
    return sql, node["where_clause"]


def _canonical(con: Any, expression: str) -> str:
    """Write the expression as DuckDB prints it: two that say the same term by term come out alike."""
    sql, _ = _parse(con, expression)
    return con.execute("SELECT json_deserialize_sql(json_serialize_sql(?::VARCHAR))", [sql]).fetchone()[0]


def _walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from _walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from _walk(value)


def columns_of(con: Any, expression: str) -> list[str]:
    """Columns that an expression reads, sorted."""
    _, tree = _parse(con, expression)
    return sorted({n["column_names"][-1] for n in _walk(tree) if n.get("class") == "COLUMN_REF"})


def check(con: Any, expression: str, known: Iterable[str]) -> list[str]:
    """Return the expression's columns; raise UnknownColumn with the nearest known one, or UserError on bad SQL."""
    known = list(known)
    lower = {name.lower() for name in known}
    used = columns_of(con, expression)
    for name in used:
        if name.lower() not in lower:
            raise UnknownColumn(f"expression {expression!r}: unknown column {name!r}{nearest(name, known)}")
    return used


def terms(con: Any, expression: str) -> list[str]:
    """Split at the top-level ANDs, in order: a row passes when every term is true."""
    sql, tree = _parse(con, expression)
    if tree.get("type") != "CONJUNCTION_AND":
        return [expression.strip()]
    spans = []
    for child in tree["children"]:
        located = [n for n in _walk(child) if n.get("query_location", 2**64) < 2**63]
        if not located:
            return [expression.strip()]
        end = max(n["query_location"] + (n.get("query_location_length") or 0) for n in located)
        spans.append((min(n["query_location"] for n in located), end))
    raw = sql.encode()
    found = [_balance(raw, start, end) for start, end in spans]
    try:  # the parser's spans are a convenience: use them only where they say the same as the whole
        if _canonical(con, " AND ".join(f"({t})" for t in found)) == _canonical(con, expression):
            return found
    except UserError:
        pass
    return [expression.strip()]


def _balance(raw: bytes, start: int, end: int) -> str:
    """Widen a span until its parentheses close, since the parser leaves outer ones out."""

    def missing() -> int:
        text = _QUOTED.sub("", raw[start:end].decode(errors="replace"))
        return text.count("(") - text.count(")")

    while missing() < 0 and start > 0:
        start -= 1
    while missing() > 0 and end < len(raw):
        end += 1
    return raw[start:end].decode(errors="replace").strip()


def clip_view(available: Mapping[str, Iterable[str]], relation: str = '"{}"') -> tuple[str, list[str]]:
    """Write the SQL that joins what is known of a clip, a row a clip, and name its columns.

    Args:
        available: columns of each table that exists, by dataset-relative name; `clips` is needed. `videos`,
            `scores/*` and `tables/*` are joined where present. A name that an earlier table has wins over a later
            one's, clips first; `videos` comes last.
        relation: how to quote a table's name as a DuckDB relation.
    Returns:
        a SELECT statement, and its column names in order.
    """
    skipped = {"fingerprint", "unit_id"}
    order = ["clips", *sorted(n for n in available if n.startswith(("scores/", "tables/")))]
    if "videos" in available:
        order.append("videos")
    selected: dict[str, str] = {}
    joins = []
    for i, name in enumerate(order):
        key = "video_id" if name == "videos" else "clip_id"
        for column in available[name]:
            if column not in selected and (column not in skipped or name == "clips"):
                selected[column] = f't{i}."{column}"'
        source = f"{relation.format(name)} AS t{i}"
        joins.append(source if i == 0 else f'LEFT JOIN {source} ON t0."{key}" = t{i}."{key}"')
    columns = ", ".join(f'{expr} AS "{name}"' for name, expr in selected.items())
    return f"SELECT {columns} FROM {' '.join(joins)}", list(selected)
