"""The packet index of one stream: every time and every proven entry, read once without decoding.

It holds 17 bytes a packet and no packet data, so ten hours at 60 frames/s are 37 MB. The pass of analyze makes it on
the way, and keeps with each clip the part that its frames are decoded from: who wants them reads no more of the file.
"""

from __future__ import annotations

import functools
import struct
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vidpipe.media.entry import (
    SEEKABLE,
    SEEKABLE_CONTAINERS,
    NalSets,
    entry_kind,
    is_hidden,
)
from vidpipe.media.facts import VideoFacts

NO_TIME = -(1 << 63)
CLEAN, OPEN, NOT_KEPT, HIDDEN, FLAGGED, CUT_SHORT = 1, 2, 4, 8, 16, 32
SEEK_MARGIN_SECONDS = 8
"""What filters of interlaced footage may look back on: an entry lies this far before what is asked for."""
FORMAT = 1
_HEAD = struct.Struct("<BBqq")
_REGULAR, _PLAIN, _PROVEN = 1, 2, 4


@dataclass(frozen=True, eq=False)
class PacketIndex:
    """Packets in decoding order: all of a stream, or those that spans of it are decoded from.

    Attributes:
        pts, dts: int64 [N]; NO_TIME where missing.
        flags: uint8 [N], of CLEAN, OPEN, NOT_KEPT (marked to be decoded but not shown), HIDDEN (shows no picture),
            FLAGGED (the container calls it a keyframe), CUT_SHORT (it marks it as damaged).
        regular: every time is there and no two are equal, in a container and codec where a seek changes no time.
        plain: besides, each packet that is neither NOT_KEPT nor HIDDEN shows one picture at its pts.
        keyframes_proven: each packet of the stream that the container calls a keyframe is a CLEAN entry.
        places: int64 [N], each packet's place in the stream, ascending; None for a whole stream.
        spans: what a part covers: [start, end) in pts. Of a stream that is not regular, which is decoded from its
            start, a part holds no packets.
    """

    pts: np.ndarray
    dts: np.ndarray
    flags: np.ndarray
    regular: bool
    plain: bool
    keyframes_proven: bool
    places: np.ndarray | None = None
    spans: tuple[tuple[int, int], ...] = ()

    def __repr__(self) -> str:
        entries = int(((self.flags & (CLEAN | OPEN)) > 0).sum())
        part = "" if self.places is None else f" for {len(self.spans)} spans"
        counted = f"{len(self.pts)} packets{part}, {entries} entries"
        return f"PacketIndex({counted}, regular={self.regular}, plain={self.plain})"

    @property
    def whole(self) -> bool:
        """Whether it holds all packets of the stream."""
        return self.places is None

    def covers(self, start: int, end: int) -> bool:
        """Whether it tells all about a span."""
        return self.whole or any(first <= start and end <= last for first, last in self.spans)

    def shown(self) -> np.ndarray:
        """Times of the pictures that packets promise, ascending."""
        return self._shown[0]

    @functools.cached_property
    def _shown(self) -> tuple[np.ndarray, np.ndarray]:
        kept = (self.flags & (NOT_KEPT | HIDDEN)) == 0
        times, keys = self.pts[kept], (self.flags[kept] & FLAGGED) > 0
        order = np.argsort(times, kind="stable")
        return times[order], keys[order]

    def flagged(self) -> np.ndarray:
        """Which of `shown()` the container calls keyframes: bool [N]."""
        return self._shown[1]

    def between(self, start: int, end: int) -> np.ndarray:
        """Promised times in [start, end)."""
        times = self.shown()
        return times[np.searchsorted(times, start) : np.searchsorted(times, end)]

    def times(self, packet: int) -> tuple[int, int | None]:
        """pts, and dts if it has one, of a packet."""
        dts = int(self.dts[packet])
        return int(self.pts[packet]), None if dts == NO_TIME else dts

    def entry_before(self, pts: int, margin: int = 0) -> int | None:
        """Packet to start decoding at for exact pictures from `pts` on; None for the start of the stream.

        Args:
            margin: pts units that must lie between the entry and `pts`, for filters that look back.
        """
        entries = self._entries_until(pts - margin)
        if not len(entries):
            return None
        last = entries[-1]
        if not self.flags[last] & CLEAN:
            if len(entries) < 2:
                return None
            last = entries[-2]
        place = last if self.places is None else self.places[last]
        return int(last) if place else None

    def _entries_until(self, pts: int) -> np.ndarray:
        """Entries up to a time, in the order of their times."""
        return self._entries[: np.searchsorted(self.pts[self._entries], pts, side="right")]

    @functools.cached_property
    def _entries(self) -> np.ndarray:
        where = np.flatnonzero(self.flags & (CLEAN | OPEN))
        return where[np.argsort(self.pts[where], kind="stable")]

    @functools.cached_property
    def _by_time(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self.pts, kind="stable")
        return order, self.pts[order]

    def part(self, start: int, end: int, margin: int = 0) -> PacketIndex:
        """What decoding of the span [start, end) needs of a whole index: its packets, and the entries before it.

        Args:
            margin: as for `entry_before`.
        """
        kept = np.empty(0, np.int64)
        if self.regular:
            order, times = self._by_time
            inside = order[np.searchsorted(times, start) : np.searchsorted(times, end)]
            entries = [self._entries_until(start - back)[-2:] for back in {0, margin}]
            kept = np.unique(np.concatenate([inside, *entries])).astype(np.int64)
        return replace(
            self, pts=self.pts[kept], dts=self.dts[kept], flags=self.flags[kept], places=kept, spans=((start, end),)
        )

    def to_bytes(self) -> bytes:
        """A part of one span, packed: a few hundred bytes for a clip of some seconds."""
        assert self.places is not None and len(self.spans) == 1, self
        bits = self.regular * _REGULAR | self.plain * _PLAIN | self.keyframes_proven * _PROVEN
        zero = np.int64(0)
        steps = [np.diff(self.places, prepend=zero), np.diff(self.dts, prepend=zero), self.pts - self.dts]
        columns = [*(s.astype("<i8").tobytes() for s in steps), self.flags.tobytes()]
        return _HEAD.pack(FORMAT, bits, *self.spans[0]) + zlib.compress(b"".join(columns), 9)

    @classmethod
    def from_bytes(cls, data: bytes) -> PacketIndex:
        """What `to_bytes` packed; ValueError for anything else."""
        try:
            version, bits, start, end = _HEAD.unpack_from(data)
            raw = zlib.decompress(data[_HEAD.size :])
        except (struct.error, zlib.error) as error:
            raise ValueError(f"not a packet index: {error}") from None
        count = len(raw) // 25
        if version != FORMAT or len(raw) != 25 * count:
            raise ValueError(f"not a packet index of format {FORMAT}")
        places, dts, after = (np.frombuffer(raw, "<i8", count, 8 * count * i).astype(np.int64) for i in range(3))
        dts = np.cumsum(dts, dtype=np.int64)
        return cls(
            pts=dts + after,
            dts=dts,
            flags=np.frombuffer(raw, np.uint8, count, 24 * count),
            regular=bool(bits & _REGULAR),
            plain=bool(bits & _PLAIN),
            keyframes_proven=bool(bits & _PROVEN),
            places=np.cumsum(places, dtype=np.int64),
            spans=((start, end),),
        )

    @classmethod
    def union(cls, parts: Sequence[PacketIndex]) -> PacketIndex:
        """Parts of one stream as one."""
        places, where = np.unique(np.concatenate([p.places for p in parts if p.places is not None]), return_index=True)
        return replace(
            parts[0],
            pts=np.concatenate([p.pts for p in parts])[where],
            dts=np.concatenate([p.dts for p in parts])[where],
            flags=np.concatenate([p.flags for p in parts])[where],
            places=places,
            spans=tuple(span for p in parts for span in p.spans),
        )


def seek_margin(facts: VideoFacts) -> int:
    """`margin` of `entry_before` for a stream, in its pts units."""
    return int(SEEK_MARGIN_SECONDS / facts.time_base) if facts.interlaced else 0


def index_of(rows: Sequence[Mapping[str, Any]]) -> PacketIndex | None:
    """The packets that clips of one file are decoded from, as `clips.packets` holds them; None if one lacks them."""
    found: list[Any] = [row.get("packets") for row in rows]
    if not found or None in found:
        return None
    try:
        return PacketIndex.union([PacketIndex.from_bytes(data) for data in found])
    except ValueError:  # of another release: it is read again
        return None


class IndexBuilder:
    """Gathers the index of a stream from its packets, in decoding order."""

    def __init__(self, facts: VideoFacts, extradata: bytes | None) -> None:
        self._facts, self._extradata = facts, extradata
        self._pts, self._dts, self._flags = array("q"), array("q"), array("B")
        self._sets = NalSets(facts.codec, extradata)

    def add(self, packet: Any) -> None:
        """Take the next packet."""
        if not packet.size:
            return
        self._pts.append(NO_TIME if packet.pts is None else packet.pts)
        self._dts.append(NO_TIME if packet.dts is None else packet.dts)
        self._flags.append(_flags(packet, self._facts.codec, self._extradata, self._sets))

    def finish(self) -> PacketIndex:
        """The index of what was added."""
        pts, dts = np.array(self._pts, np.int64), np.array(self._dts, np.int64)
        return _checked(pts, dts, np.array(self._flags, np.uint8), self._facts)


def read_index(container: Any, stream: Any, facts: VideoFacts) -> PacketIndex:
    """Demux the stream from where the container stands to its end."""
    import av

    builder = IndexBuilder(facts, stream.codec_context.extradata)
    try:
        for packet in container.demux(stream):
            builder.add(packet)
    except av.error.FFmpegError:
        pass  # a damaged tail: what was read stands
    return builder.finish()


def _flags(packet: Any, codec: str, extradata: bytes | None, sets: NalSets) -> int:
    flag = NOT_KEPT if packet.is_discard else 0
    known = sets.follow(packet)
    if codec in ("vp8", "vp9") and is_hidden(codec, bytes(packet)):
        flag |= HIDDEN
    if packet.is_keyframe and known and not flag and not packet.is_corrupt:
        kind = entry_kind(codec, bytes(packet), extradata)
        flag |= {"clean": CLEAN, "open": OPEN, None: 0}[kind]
    return flag | (FLAGGED if packet.is_keyframe else 0) | (CUT_SHORT if packet.is_corrupt else 0)


def _checked(pts: np.ndarray, dts: np.ndarray, flags: np.ndarray, facts: VideoFacts) -> PacketIndex:
    shown = pts[(flags & (NOT_KEPT | HIDDEN)) == 0]
    timed = len(pts) > 0 and not (pts == NO_TIME).any() and len(np.unique(shown)) == len(shown)
    regular = timed and facts.container in SEEKABLE_CONTAINERS and facts.codec in SEEKABLE
    if len(pts) > 1:  # an entry after which an earlier packet is still shown is none
        before = np.maximum.accumulate(pts)[:-1]
        late = np.concatenate([[False], pts[1:] <= before])
        flags = np.where(late, flags & ~np.uint8(CLEAN | OPEN), flags)
    flagged = flags[(flags & FLAGGED) > 0]
    proven = len(flagged) > 0 and bool(((flagged & CLEAN) > 0).all())
    return PacketIndex(pts, dts, flags, regular, regular and not facts.interlaced, proven)
