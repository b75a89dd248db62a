"""Outcomes: what a stage did with each row it was given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["kept", "rejected", "failed"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One row of `outcomes/<stage>.lance`.

    Attributes:
        id: the input row's id (video_id, clip_id or text_id).
        item: what tells apart several outcomes of one row, such as the bucket; else empty.
        status: `kept`, `rejected` (a rule; asked again when the rule changes) or `failed` (done until redone).
        reason: a short code, such as `not_media` or `too_short`; empty when kept.
        rule: the term of the expression that was false; empty otherwise.
        value: the values of that term's columns, as `name=value, ...`.
        expression_hash: of the whole expression, for rejected rows.
        message: a sentence for a person: where, what was expected, what was found.
        seconds: wall time spent on this row.
    """

    id: bytes
    status: Status
    item: str = ""
    reason: str = ""
    rule: str = ""
    value: str = ""
    expression_hash: str = ""
    message: str = ""
    seconds: float = 0.0
