"""TOML recipes onto frozen dataclasses, one to one: an unknown key is refused with the nearest known one."""

from __future__ import annotations

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from schemas.errors import UnknownKey, UserError, nearest

T = TypeVar("T")


def load_recipe(path: str | Path, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Read a TOML file and apply `--set a.b=value` overrides (values are TOML; a bare word is a string)."""
    try:
        values = tomllib.loads(Path(path).read_text())
    except FileNotFoundError:
        raise UserError(f"recipe {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"recipe {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"recipe {path}: not TOML: {error}") from None
    for override in overrides:
        _override(values, override)
    return values


def _override(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise UserError(f"--set {override!r}: expected a.b=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *path, last = key.strip().split(".")
    place: Any = values
    for part in path:
        step = _key_in(place, part, override)
        place = place.setdefault(step, {}) if isinstance(place, dict) else place[step]
    place[_key_in(place, last, override)] = value


def _key_in(place: Any, part: str, override: str) -> str | int:
    """Check that `part` can name something in `place`: a key of a section, or an index of a list."""
    if isinstance(place, dict):
        return part
    if not isinstance(place, list):
        raise UserError(f"--set {override!r}: what is before {part!r} is a value, not a section")
    if not part.isdecimal() or int(part) >= len(place):
        raise UserError(f"--set {override!r}: expected an index of a list of {len(place)}, found {part!r}")
    return int(part)


def build(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Make dataclass `cls` from TOML values, nested dataclasses included.

    Raises:
        UnknownKey: a key that `cls` does not have, with the nearest that it has.
        UserError: a value of the wrong type, a missing key, or what `__post_init__` refuses.
    """
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            raise UnknownKey(f"unknown key {_join(where, key)!r}{nearest(key, fields)}")
    missing = [
        name
        for name, f in fields.items()
        if name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UserError(f"missing key {_join(where, missing[0])!r}")
    made = {key: _convert(hints[key], value, _join(where, key)) for key, value in values.items()}
    try:
        return cls(**made)
    except UserError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from None


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        return _convert_union(args, value, where)
    if origin is typing.Literal:
        if value not in args:
            raise UserError(f"{where}: expected one of {', '.join(map(repr, args))}, found {value!r}")
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: expected a section, found {value!r}")
        return build(hint, value, where)
    if origin is tuple or origin is list:
        if not isinstance(value, (list, tuple)):
            raise UserError(f"{where}: expected a list, found {value!r}")
        fixed = origin is tuple and args[-1] is not Ellipsis
        if fixed and len(value) != len(args):
            raise UserError(f"{where}: expected {len(args)} values, found {len(value)}: {value!r}")
        hints = args if fixed else [args[0]] * len(value)
        items = [_convert(h, item, f"{where}[{i}]") for i, (h, item) in enumerate(zip(hints, value))]
        return tuple(items) if origin is tuple else items
    if origin is dict:
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: expected a section, found {value!r}")
        return {k: _convert(args[1], v, _join(where, k)) for k, v in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise UserError(f"{where}: expected {hint.__name__}, found {value!r}")
    if isinstance(value, float) and math.isnan(value):  # every comparison with it is false, so no check sees it
        raise UserError(f"{where}: expected a number, found nan")
    return value


def _convert_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    """First option that takes the value; the error is the last one's."""
    if value is None and type(None) in options:
        return None
    *others, last = [option for option in options if option is not type(None)]
    for option in others:
        try:
            return _convert(option, value, where)
        except UserError:
            continue
    return _convert(last, value, where)


def to_mapping(config: Any) -> dict[str, Any]:
    """Turn a config dataclass into TOML values; None is left out, since TOML has no null."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: plain(v) for f in dataclasses.fields(value) if (v := getattr(value, f.name)) is not None}
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        if isinstance(value, Mapping):
            return {k: plain(v) for k, v in value.items() if v is not None}
        return value

    return plain(config)


def to_toml(values: Mapping[str, Any]) -> str:
    """Write TOML that `tomllib` reads back to the same values."""
    return "\n".join(_lines(values, "")).strip() + "\n"


def _lines(values: Mapping[str, Any], prefix: str) -> Iterable[str]:
    tables = {k: v for k, v in values.items() if isinstance(v, Mapping)}
    arrays = {k: v for k, v in values.items() if isinstance(v, list) and v and all(isinstance(i, Mapping) for i in v)}
    for key, value in values.items():
        if key not in tables and key not in arrays:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in tables.items():
        name = prefix + _key(key)
        yield f"\n[{name}]"
        yield from _lines(value, f"{name}.")
    for key, items in arrays.items():
        name = prefix + _key(key)
        for item in items:
            yield f"\n[[{name}]]"
            yield from _lines(item, f"{name}.")


def _key(key: str) -> str:
    return key if key and all(c.isascii() and (c.isalnum() or c in "_-") for c in key) else _string(key)


def _string(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}
    body = "".join(escapes.get(c) or (f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else c) for c in text)
    return f'"{body}"'


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (int, float)):
        return repr(value)
    raise TypeError(f"{type(value).__name__} has no TOML form")
