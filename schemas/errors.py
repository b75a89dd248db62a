"""Errors that speak to users. A CLI prints their text as one line and exits with status 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A wrong input or configuration: the message says where, what was expected, what was found, what to do."""


class UnknownKey(UserError):
    """A configuration key that no dataclass field has."""


class UnknownColumn(UserError):
    """An expression names a column that the joined tables do not have."""


class SchemaMismatch(UserError):
    """A table was written by a newer schema version, or is not the table that was expected."""


class BucketMismatch(UserError):
    """A bucket does not obey a latent space's rule, or frames do not have the bucket's shape."""


class LatentSpaceMismatch(UserError):
    """Tables hold latents of another space than the model's."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known name most like `name`, or the list of known names."""
    known = sorted(set(known))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""
