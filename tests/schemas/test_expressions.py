"""Expressions: columns and terms as DuckDB's parser sees them, and refusals that a person understands."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import expressions
from schemas.errors import UnknownColumn, UserError


@pytest.fixture(scope="module")
def con():
    with duckdb.connect() as connection:
        yield connection


def test_hash_ignores_white_space_only():
    assert expressions.expression_hash("a  >\n1") == expressions.expression_hash(" a > 1 ")
    assert expressions.expression_hash("a > 1") != expressions.expression_hash("a > 2")
    assert len(expressions.expression_hash("a")) == 16


@pytest.mark.parametrize(
    ("expression", "terms"),
    [
        ("a > 0.02", ["a > 0.02"]),
        ("a > 0.02 and b < 0.3", ["a > 0.02", "b < 0.3"]),
        ("a between 1 and 2 AND b > 3", ["a between 1 and 2", "b > 3"]),
        ("((a > 1) and (b > 2)) and c", ["a > 1", "b > 2", "c"]),
        ("a > 5 and (b + 1) * 2 < 3", ["a > 5", "(b + 1) * 2 < 3"]),
        ("a or b and c", ["a or b and c"]),
        ("(a or b) and (c or (d and a))", ["a or b", "c or (d and a)"]),
        ("not a and b", ["not a", "b"]),
        ("n = 'é) and (∂' and b > 2", ["n = 'é) and (∂'", "b > 2"]),
        ("a > 1 -- sharp\n and b > 2 -- end", ["a > 1", "b > 2"]),
        ("case when a then b else c end and d", ["case when a then b else c end", "d"]),
        ("coalesce(a, 0) > 0.1 and c in (1, 2)", ["coalesce(a, 0) > 0.1", "c in (1, 2)"]),
        ('"odd (name" > 1 and b', ['"odd (name" > 1', "b"]),
        ("true", ["true"]),
    ],
)
def test_terms(con, expression, terms):
    assert expressions.terms(con, expression) == terms


def test_columns_come_sorted_and_once(con):
    assert expressions.columns_of(con, "b > 1 and a > b and t.c = 'd'") == ["a", "b", "c"]
    assert expressions.columns_of(con, expressions.ALL) == []


def test_check_names_the_nearest_column(con):
    known = ["motion_score", "blur_score", "width"]
    assert expressions.check(con, "Motion_Score > 0.02", known) == ["Motion_Score"]
    with pytest.raises(UnknownColumn, match=r"unknown column 'motoin_score'; did you mean 'motion_score'\?"):
        expressions.check(con, "motoin_score > 0.02", known)
    with pytest.raises(UnknownColumn, match="known: blur_score, motion_score, width"):
        expressions.check(con, "zzz > 0.02", known)


@pytest.mark.parametrize(
    "expression",
    ["", "  ", "a >", "a > 1; b", "a > 1 /*", "1); drop table x; select (1", "true) union select (1",
     "true) order by (a", "true) limit (1", "true) group by (a", "select"],
)  # fmt: skip
def test_refuses_what_is_no_condition(con, expression):
    with pytest.raises(UserError, match=r"^expression"):
        expressions.check(con, expression, ["a", "b"])


ATOM = st.sampled_from(["a > 0", "b < 1", "c = 'x'", "a + b > 1", "c like '%)%'", "a is null", "b between 0 and 1"])
TREE = st.recursive(
    ATOM,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or", "AND"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        st.tuples(inner, inner).map(lambda t: f"{t[0]} and {t[1]}"),
        inner.map(lambda t: f"not ({t})"),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(TREE)
def test_a_row_passes_when_every_term_is_true(expression):
    rows = "(VALUES (1, 0, 'x'), (0, 2, ')'), (NULL, 1, 'x'), (2, NULL, NULL), (-1, 0.5, 'y')) t(a, b, c)"
    with duckdb.connect() as con:
        terms = expressions.terms(con, expression)
        whole = con.execute(f"SELECT coalesce(({expression}), false) FROM {rows}").fetchall()
        parts = con.execute(f"SELECT {' AND '.join(f'coalesce(({t}), false)' for t in terms)} FROM {rows}").fetchall()
    assert parts == whole


def test_clip_view_joins_what_is_there(con):
    con.execute("CREATE TABLE \"clips\" AS SELECT 1 clip_id, 9 video_id, 640 width, 'f' fingerprint, 'u' unit_id")
    con.execute("CREATE TABLE \"scores/blur\" AS SELECT 1 clip_id, 0.5 blur_score, 'g' fingerprint, 'u' unit_id")
    con.execute("CREATE TABLE \"videos\" AS SELECT 9 video_id, 1920 width, 'h264' codec, 'v' fingerprint")
    con.execute('CREATE TABLE "captions" AS SELECT 1 clip_id, 2 other')
    available = {
        name: [row[0] for row in con.execute(f'DESCRIBE "{name}"').fetchall()]
        for name in ("clips", "scores/blur", "videos", "captions")
    }
    sql, names = expressions.clip_view(available)
    assert names == ["clip_id", "video_id", "width", "fingerprint", "unit_id", "blur_score", "codec"]
    assert con.execute(sql).fetchall() == [(1, 9, 640, "f", "u", pytest.approx(0.5), "h264")]


def test_clip_view_keeps_clips_that_other_tables_lack(con):
    con.execute('CREATE OR REPLACE TABLE "clips" AS SELECT unnest([1, 2]) clip_id, 9 video_id')
    con.execute("CREATE OR REPLACE TABLE \"tables/split\" AS SELECT 1 clip_id, 'heldout' split")
    sql, _ = expressions.clip_view({"clips": ["clip_id", "video_id"], "tables/split": ["clip_id", "split"]})
    assert sorted(con.execute(f"SELECT clip_id, split FROM ({sql})").fetchall()) == [(1, "heldout"), (2, None)]
