"""Make a plugin object from recipe parameters: an unknown one is refused with the nearest known one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from schemas.errors import UnknownKey, UserError, nearest


def construct(cls: Any, params: Mapping[str, Any], where: str, **given: Any) -> Any:
    """Call `cls(**given, **params)`.

    Args:
        params: from a recipe; TOML arrays arrive as lists.
        where: the recipe's section, for messages.
    Raises:
        UnknownKey: a parameter that the constructor does not have.
        UserError: one that the caller gives itself, a missing one, or what the constructor refuses.
    """
    known = inspect.signature(cls).parameters
    for key in params:
        if key in given:
            raise UserError(f"{where}: {key!r} is set by its own key of the recipe, not among the parameters")
        if key not in known:
            raise UnknownKey(f"{where}: unknown key {key!r}{nearest(key, [k for k in known if k not in given])}")
    missing = [
        name
        for name, p in known.items()
        if p.default is p.empty and p.kind is p.KEYWORD_ONLY and name not in {**params, **given}
    ]
    if missing:
        raise UserError(f"{where}: missing key {missing[0]!r}")
    return cls(**given, **params)
