"""A clip is a reference, not a file: a span of a stream in exact stream units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from schemas.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ClipReference:
    """A span of one video stream.

    Attributes:
        uri: path, URI, or `archive.tar::member`.
        stream_index: the stream in its container.
        start_pts: first frame's pts, inclusive, in units of `time_base`.
        end_pts: exclusive.
        time_base: seconds a unit.
        crop_xywh: x, y, width, height in displayed pixels, if a user gave one.
        intact: whether a pass over the stream saw no damage in the span (`clips.damaged_fraction` is 0); None if none
            was made. torchcodec hides decode errors: on a CPU it is used for spans known to be intact, on a GPU for
            all but those known to be damaged.
    """

    uri: str
    stream_index: int
    start_pts: int
    end_pts: int
    time_base: Fraction
    crop_xywh: tuple[int, int, int, int] | None = None
    intact: bool | None = None

    def __post_init__(self) -> None:
        if self.end_pts <= self.start_pts:
            raise UserError(f"clip of {self.uri}: end_pts {self.end_pts} must be after start_pts {self.start_pts}")
        if self.time_base <= 0:
            raise UserError(f"clip of {self.uri}: time base {self.time_base} must be positive")
        if self.crop_xywh is not None and (min(self.crop_xywh) < 0 or min(self.crop_xywh[2:]) < 1):
            raise UserError(f"clip of {self.uri}: crop {self.crop_xywh} must be x, y >= 0 and width, height >= 1")

    @classmethod
    def of(cls, row: Mapping[str, Any], uri: str = "") -> ClipReference:
        """The clip of a row of the `clip` view, with its user's crop, in `uri`: by default its first location."""
        damaged = row.get("damaged_fraction")
        return cls(
            uri=uri or row["uris"][0],
            stream_index=row["stream_index"],
            start_pts=row["start_pts"],
            end_pts=row["end_pts"],
            time_base=Fraction(row["time_base_num"], row["time_base_den"]),
            crop_xywh=tuple(row["user_crop"]) if row.get("user_crop") else None,
            intact=None if damaged is None else damaged == 0,
        )

    @property
    def start_seconds(self) -> float:
        """start_pts in seconds."""
        return float(self.start_pts * self.time_base)

    @property
    def end_seconds(self) -> float:
        """end_pts in seconds."""
        return float(self.end_pts * self.time_base)

    @property
    def duration_seconds(self) -> float:
        """Length of the span in seconds."""
        return float((self.end_pts - self.start_pts) * self.time_base)
