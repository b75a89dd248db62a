"""What a probe learns of one video stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any

from vidpipe.media.colour_names import HDR_TRANSFERS
from vidpipe.media.geometry import Geometry


@dataclass(frozen=True, kw_only=True)
class VideoFacts:
    """Columns of `schemas.tables.VIDEOS` that probing fills; units and meaning are there.

    A field is None where the header does not say and counting would mean reading the whole of a large file.
    """

    uri: str
    kind: str
    size_bytes: int
    container: str
    stream_index: int
    num_video_streams: int
    codec: str
    profile: str | None
    pix_fmt: str | None
    coded_width: int
    coded_height: int
    width: int
    height: int
    sar_num: int
    sar_den: int
    rotation: int
    hflip: bool
    time_base_num: int
    time_base_den: int
    start_pts: int
    end_pts: int
    duration_seconds: float
    header_seconds: float | None
    num_packets: int | None
    num_keyframes: int | None
    avg_fps: float | None
    vfr: bool | None
    interlaced: bool | None
    color_range: str | None
    color_space: str | None
    color_transfer: str | None
    color_primaries: str | None
    has_audio: bool

    @property
    def time_base(self) -> Fraction:
        """Seconds a pts unit."""
        return Fraction(self.time_base_num, self.time_base_den)

    @property
    def geometry(self) -> Geometry:
        """How stored pixels are shown."""
        return Geometry(
            coded_hw=(self.coded_height, self.coded_width),
            sar=(self.sar_num, self.sar_den),
            rotation=self.rotation,
            hflip=self.hflip,
        )

    @property
    def hdr(self) -> bool:
        """PQ or HLG transfer."""
        return self.color_transfer in HDR_TRANSFERS

    @classmethod
    def of(cls, uri: str, row: Mapping[str, Any]) -> VideoFacts | None:
        """Facts that a row of `videos` holds; None where it lacks one of them."""
        names = facts_columns()
        return cls(uri=uri, **{n: row[n] for n in names}) if all(n in row for n in names) else None

    def to_row(self) -> dict[str, Any]:
        """The columns of `videos`, without ids, uris and provenance."""
        row = asdict(self)
        del row["uri"]
        return row


def facts_columns() -> list[str]:
    """Columns of `videos` that make up a stream's facts."""
    return [field.name for field in fields(VideoFacts) if field.name != "uri"]
