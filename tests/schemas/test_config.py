"""Recipes: TOML onto dataclasses, refusals with the nearest key, overrides, and the way back to TOML."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import config
from schemas.errors import UnknownKey, UserError


@dataclass(frozen=True, kw_only=True)
class Inner:
    name: str
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outer:
    rate: float = 1.0
    count: int = 2
    kind: Literal["a", "b"] = "a"
    size: tuple[int, int] | None = None
    either: int | str = "x"
    flag: bool = False
    inner: Inner = field(default_factory=lambda: Inner(name="default"))
    list_of: tuple[Inner, ...] = ()
    weights: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise UserError(f"count must be at least 0, found {self.count}")


def test_defaults_and_nested_sections():
    made = config.build(Outer, {"rate": 3, "inner": {"name": "n", "params": {"k": 1}}, "list_of": [{"name": "m"}]})
    assert made == Outer(rate=3.0, inner=Inner(name="n", params={"k": 1}), list_of=(Inner(name="m"),))
    assert isinstance(made.rate, float)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rte": 1}, r"^unknown key 'rte'; did you mean 'rate'\?$"),
        ({"inner": {"name": "n", "parms": {}}}, r"^unknown key 'inner\.parms'; did you mean 'params'\?$"),
        ({"list_of": [{"name": "n"}, {"nmae": "n"}]}, r"^unknown key 'list_of\[1\]\.nmae'; did you mean 'name'\?$"),
        ({"zzzz": 1}, "^unknown key 'zzzz'; known: count, either"),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest(values, message):
    with pytest.raises(UnknownKey, match=message):
        config.build(Outer, values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"inner": {}}, "^missing key 'inner.name'$"),
        ({"inner": 3}, "^inner: expected a section, found 3$"),
        ({"list_of": {"name": "n"}}, "^list_of: expected a list"),
        ({"count": "2"}, "^count: expected int, found '2'$"),
        ({"count": 2.0}, "^count: expected int, found 2.0$"),
        ({"count": True}, "^count: expected int, found True$"),
        ({"rate": True}, "^rate: expected float, found True$"),
        ({"flag": 1}, "^flag: expected bool, found 1$"),
        ({"kind": "c"}, "^kind: expected one of 'a', 'b', found 'c'$"),
        ({"size": [1]}, r"^size: expected 2 values, found 1: \[1\]$"),
        ({"size": [1, "x"]}, r"^size\[1\]: expected int, found 'x'$"),
        ({"either": 1.5}, "^either: expected str, found 1.5$"),
        ({"weights": {"k": "x"}}, "^weights.k: expected float, found 'x'$"),
        ({"count": -1}, "^count must be at least 0, found -1$"),
    ],
)
def test_wrong_values_say_where(values, message):
    with pytest.raises(UserError, match=message):
        config.build(Outer, values)


def test_either_option_of_a_union():
    assert config.build(Outer, {"either": 3, "size": [1, 2]}) == Outer(either=3, size=(1, 2))
    assert config.build(Outer, {"either": "y"}).either == "y"


def write(tmp_path, text: str):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


def test_overrides_take_toml_values_and_bare_words(tmp_path):
    path = write(tmp_path, 'count = 1\n[inner]\nname = "n"\n[[list_of]]\nname = "m"\n')
    sets = ["count=5", "inner.name=a word", "inner.params.k=[1, 2]", "rate=2.5", "list_of.0.name='q'", "kind=b=c"]
    assert config.load_recipe(path, sets) == {
        "count": 5, "rate": 2.5, "kind": "b=c", "inner": {"name": "a word", "params": {"k": [1, 2]}},
        "list_of": [{"name": "q"}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("count", "expected a.b=value"),
        ("=3", "expected a.b=value"),
        ("count.x=3", "what is before 'x' is a value, not a section"),
        ("count.x.y=3", "what is before 'x' is a value, not a section"),
        ("list_of.1.name=3", "expected an index of a list of 1, found '1'"),
        ("list_of.first=3", "expected an index of a list of 1, found 'first'"),
    ],
)
def test_overrides_that_fit_nowhere(tmp_path, override, message):
    with pytest.raises(UserError, match=f"--set .*{message}"):
        config.load_recipe(write(tmp_path, 'count = 1\n[[list_of]]\nname = "m"\n'), [override])


def test_unreadable_recipes_are_one_line(tmp_path):
    with pytest.raises(UserError, match=r"recipe .*none\.toml: no such file"):
        config.load_recipe(tmp_path / "none.toml")
    with pytest.raises(UserError, match=r"recipe .*: not TOML"):
        config.load_recipe(write(tmp_path, "a = = 1"))
    with pytest.raises(UserError, match="recipe"):
        config.load_recipe(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="recipe"):
        config.load_recipe(tmp_path / "binary")


def test_config_round_trips_through_toml():
    made = Outer(
        rate=1e-05, size=(3, 4), either='quote " and \\ back\n', list_of=(Inner(name="m", params={"a b": {"c": [1]}}),),
        weights={"x.y": 1e16},
    )  # fmt: skip
    text = config.to_toml(config.to_mapping(made))
    assert config.build(Outer, tomllib.loads(text)) == made
    assert "size = [3, 4]" in text and "[[list_of]]" in text


def test_none_is_left_out():
    assert "size" not in config.to_mapping(Outer())


KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_to_toml_is_read_back_to_the_same_values(values):
    assert tomllib.loads(config.to_toml(values)) == values


def test_to_toml_refuses_what_toml_lacks():
    with pytest.raises(TypeError, match="NoneType has no TOML form"):
        config.to_toml({"a": [None]})
