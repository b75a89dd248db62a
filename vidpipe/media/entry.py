"""Whether decoding may start at a packet: read from the bitstream, since containers' keyframe flags lie.

`clean`: nothing after it in decoding order refers to anything before it, and nothing before it is shown after it (IDR,
CRA with its leading pictures left out, a shown key frame of VP8, VP9 or AV1).
`open`: an intra picture of an open GOP (H.264 recovery point with no recovery frames, MPEG-2 I picture). Pictures shown
after it do not refer to anything before it, but decoders need their buffers warm: start one such entry earlier.
Anything else is no entry. Codecs that are not listed in `SEEKABLE` are always decoded from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

Entry = Literal["clean", "open"]

_INTRA_ONLY = """
    ayuv bmp cfhd dnxhd dpx dvvideo exr ffvhuff huffyuv jpeg2000 jpegls jpegxl magicyuv mjpeg png prores qoi r210
    rawvideo sgi targa tiff utvideo v210 v308 v408 v410 y41p yuv4
"""
INTRA_ONLY = frozenset(_INTRA_ONLY.split())
"""Codecs whose every packet is a picture of its own."""
SEEKABLE = INTRA_ONLY | {"h264", "hevc", "vp8", "vp9", "av1", "mpeg1video", "mpeg2video"}
SEEKABLE_CONTAINERS = frozenset(("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"))
"""Containers whose packets keep their times after a seek. In others (transport and program streams, FLV, AVI
without an index) FFmpeg infers some times from what it read before, so a seek could shift frames: these are read from
the start."""


def entry_kind(codec: str, data: bytes, extradata: bytes | None) -> Entry | None:
    """Kind of entry that a packet is, or None.

    Args:
        data: the packet's bytes.
        extradata: the stream's, which tells how H.264 and HEVC separate their NAL units.
    """
    if codec in INTRA_ONLY:
        return "clean"
    parser = {"h264": _h264, "hevc": _hevc}.get(codec)
    if parser:
        return parser(list(nal_units(data, nal_length_size(codec, extradata))))
    return {"vp8": _vp8, "vp9": _vp9, "av1": _av1, "mpeg1video": _mpeg2, "mpeg2video": _mpeg2}.get(codec, _none)(data)


def _none(data: bytes) -> Entry | None:
    return None


def nal_length_size(codec: str, extradata: bytes | None) -> int:
    """Bytes of the length before each NAL unit (avcC, hvcC); 0 for start codes (Annex B)."""
    if not extradata or extradata[0] != 1:
        return 0
    if codec == "h264" and len(extradata) > 4:
        return (extradata[4] & 3) + 1
    if codec == "hevc" and len(extradata) > 21:
        return (extradata[21] & 3) + 1
    return 0


def nal_units(data: bytes | memoryview, length_size: int) -> Iterator[Any]:
    """NAL units of a packet, as slices of it; stops at the first that does not fit."""
    if length_size:
        position = 0
        while position + length_size <= len(data):
            length = int.from_bytes(data[position : position + length_size], "big")
            position += length_size
            if not 0 < length <= len(data) - position:
                return
            yield data[position : position + length]
            position += length
        return
    data = bytes(data)
    start = data.find(b"\x00\x00\x01")
    while start >= 0:
        following = data.find(b"\x00\x00\x01", start + 3)
        unit = data[start + 3 : following if following >= 0 else len(data)]
        if unit:
            yield unit
        start = following


class _Bits:
    """Reads bits and Exp-Golomb codes of a NAL unit's first bytes, emulation prevention removed."""

    def __init__(self, data: bytes) -> None:
        data = data[:64].replace(b"\x00\x00\x03", b"\x00\x00")
        self._bits = "".join(f"{byte:08b}" for byte in data)
        self._at = 0

    def read(self, count: int) -> int:
        bits = self._bits[self._at : self._at + count]
        self._at += count
        return int(bits, 2) if bits else 0

    def golomb(self) -> int:
        zeros = 0
        while zeros < 32 and self._at < len(self._bits) and self._bits[self._at] == "0":
            zeros += 1
            self._at += 1
        return self.read(zeros + 1) - 1


def _h264(units: list[bytes]) -> Entry | None:
    types = [unit[0] & 31 for unit in units]
    if 5 in types:
        return "clean"
    slices = [unit for unit, kind in zip(units, types) if kind in (1, 2)]
    intra = bool(slices) and all(_h264_slice_type(unit) in (2, 4) for unit in slices)
    recovers = any(_recovery_frames(unit) == 0 for unit, kind in zip(units, types) if kind == 6)
    return "open" if intra and recovers else None


def _h264_slice_type(unit: bytes) -> int:
    bits = _Bits(unit[1:])
    bits.golomb()  # first_mb_in_slice
    return bits.golomb() % 5


def _recovery_frames(sei: bytes) -> int | None:
    """recovery_frame_cnt of a recovery point message; None if the unit holds none."""
    position = 1
    while position + 2 <= len(sei):
        values = []
        for _ in range(2):  # payload type, payload size
            value = 0
            while position < len(sei) and sei[position] == 255:
                value += 255
                position += 1
            if position >= len(sei):
                return None
            values.append(value + sei[position])
            position += 1
        if values[0] == 6:
            return _Bits(sei[position : position + values[1]]).golomb()
        position += values[1]
    return None


def _hevc(units: list[bytes]) -> Entry | None:
    pictures = [kind for unit in units if (kind := (unit[0] >> 1) & 63) < 32]
    return "clean" if pictures and all(16 <= kind <= 21 for kind in pictures) else None


def _vp8(data: bytes) -> Entry | None:
    key = len(data) > 6 and not data[0] & 1 and data[3:6] == b"\x9d\x01\x2a"
    return "clean" if key and data[0] & 16 else None


def _vp9(data: bytes) -> Entry | None:
    bits = _Bits(data)
    if bits.read(2) != 2:
        return None
    profile = bits.read(1) | bits.read(1) << 1
    if profile == 3:
        bits.read(1)
    show_existing, frame_type, show = bits.read(1), bits.read(1), bits.read(1)
    return "clean" if not show_existing and not frame_type and show else None


def _mpeg2(data: bytes) -> Entry | None:
    start = data.find(b"\x00\x00\x01\x00")
    if data.find(b"\x00\x00\x01\xb3") < 0 or start < 0 or len(data) < start + 6:
        return None
    return "open" if (data[start + 5] >> 3) & 7 == 1 else None


def _av1(data: bytes) -> Entry | None:
    """A temporal unit with a sequence header whose first frame is a shown key frame."""
    position, sequence = 0, None
    while position < len(data):
        kind, has_extension, has_size = (data[position] >> 3) & 15, data[position] & 4, data[position] & 2
        position += 2 if has_extension else 1
        size = len(data) - position
        if has_size:
            size, used = _leb128(data, position)
            position += used
        if kind == 1 and position < len(data):
            sequence = data[position]
        elif kind in (3, 6):
            if sequence is None or position >= len(data):
                return None
            if sequence & 0x08:  # reduced_still_picture_header
                return "clean"
            first = data[position]
            return "clean" if not first & 0x80 and not first & 0x60 and first & 0x10 else None
        position += size
    return None


def _leb128(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for used in range(8):
        if position + used >= len(data):
            return len(data), used
        byte = data[position + used]
        value |= (byte & 127) << (7 * used)
        if not byte & 128:
            return value, used + 1
    return len(data), 8


def is_disposable(codec: str, data: bytes, extradata: bytes | None) -> bool:
    """Whether no other picture refers to this packet's: by H.264's nal_ref_idc, HEVC's sub-layer non-reference types,
    MPEG-1 and 2's B pictures; always where each packet is a picture of its own."""
    if codec in INTRA_ONLY:
        return True
    if codec in ("h264", "hevc"):
        units = list(nal_units(data, nal_length_size(codec, extradata)))
        if codec == "h264":
            slices = [unit[0] >> 5 for unit in units if 1 <= unit[0] & 31 <= 5]
            return bool(slices) and not any(slices)
        kinds = [kind for unit in units if (kind := (unit[0] >> 1) & 63) < 32]
        return bool(kinds) and all(kind < 16 and kind % 2 == 0 for kind in kinds)
    if codec in ("mpeg1video", "mpeg2video"):
        start = data.find(b"\x00\x00\x01\x00")
        return start >= 0 and len(data) > start + 5 and (data[start + 5] >> 3) & 7 == 3
    return False


def is_hidden(codec: str, data: bytes) -> bool:
    """Whether a VP8 or VP9 packet shows no picture (an alternate reference on its own; a superframe shows its last)."""
    if codec == "vp8":
        return bool(data) and not data[0] & 16
    if data[-1] & 0xE0 == 0xC0:
        return False
    bits = _Bits(data)
    if bits.read(2) != 2:
        return False
    profile = bits.read(1) | bits.read(1) << 1
    if profile == 3:
        bits.read(1)
    show_existing, _, show = bits.read(1), bits.read(1), bits.read(1)
    return not show_existing and not show


class NalSets:
    """Follows H.264 and HEVC parameter sets that travel in the packets.

    A seek is safe to an entry that brings its own sets, or while every set met so far is one of the stream's first
    (extradata and first packet), which the decoder is given before it seeks.
    """

    _KINDS: ClassVar[dict[str, frozenset[int]]] = {"h264": frozenset((7, 8)), "hevc": frozenset((32, 33, 34))}

    def __init__(self, codec: str, extradata: bytes | None) -> None:
        self._kinds = self._KINDS.get(codec, frozenset())
        self._hevc = codec == "hevc"
        self._length_size = nal_length_size(codec, extradata)
        self._extradata = extradata or b""
        self._known: set[bytes] | None = None
        self._changed = False

    def follow(self, packet: Any) -> bool:
        """Take the next packet in decoding order; returns whether decoding could start at it, as far as sets go."""
        if not self._kinds:
            return True
        found = {unit for unit in self._sets(packet) if unit not in self._extradata}
        if self._known is None:
            self._known = found
            return True
        if not found <= self._known:
            self._changed = True
            self._known = self._known | found
        return not self._changed or len({self._kind(unit) for unit in found}) == len(self._kinds)

    def _kind(self, unit: bytes) -> int:
        return (unit[0] >> 1) & 63 if self._hevc else unit[0] & 31

    def _sets(self, packet: Any) -> Iterator[bytes]:
        """Parameter sets of a packet. They precede its slices, so the walk ends at the first slice."""
        data = memoryview(packet)
        for unit in nal_units(data, self._length_size):
            kind = self._kind(unit)
            if kind in self._kinds:
                yield bytes(unit)
            elif (kind < 32) if self._hevc else 1 <= kind <= 5:
                return
