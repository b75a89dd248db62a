"""Which frames are damaged: what a decoder concealed, refused or complained of, and what was predicted from it.

Signs: a packet that the decoder refuses or the container marks as cut short; a frame that FFmpeg flags (concealment,
missing references); and what FFmpeg logs as an error while it reads or decodes, since demuxers resynchronise and some
decoders conceal without a flag. No whole file among the real ones logs anything. Codecs without redundancy (VP8, VP9,
AV1, MJPEG) decode most flipped bits to some picture, and give no sign.

One more: a run of zeroes that the codec cannot write, which is what a lost sector or an unfinished download leaves.
H.264, HEVC and VVC escape a third zero byte; VP8, VP9 and AV1 code arithmetically, where 64 zero bytes come by chance
once in 2^512. Decoders turn such a run into some picture without a word.

Damage spreads: every frame decoded from the bad packet on is damaged, until a key frame that was decoded after it is
shown. A picture that nothing refers to spreads nothing.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from vidpipe.media.entry import is_disposable

_REMEMBERED = 256
_REORDER = 4
"""Packets that a decoder may hold back, for frames whose packet cannot be told by its pts."""
_ZEROES = {"h264": 8, "hevc": 8, "vvc": 8, "vp8": 64, "vp9": 64, "av1": 64}
"""Zero bytes in a row, before the last that is not zero, that no packet of the codec holds."""
_TELLING = ("concealing", "Skipping invalid undecodable NALU")
"""Milder messages that tell of wrong pixels."""


class Damage:
    """Follows one decoding pass. Feed packets in decoding order and frames in presentation order.

    Attributes:
        num_errors: packets refused or complained of, and frames flagged.
    """

    def __init__(self, codec: str, extradata: bytes | None) -> None:
        self._codec, self._extradata = codec, extradata
        escaped = codec not in ("h264", "hevc", "vvc") or bool((extradata and extradata[0] == 1) or codec == "vvc")
        # Annex B allows zeroes between units, so only streams with lengths (MP4, Matroska) are judged
        self._impossible = bytes(_ZEROES[codec]) if codec in _ZEROES and escaped else None
        self._numbers: dict[int, int] = {}
        self._packet = -1
        self._spreads_from: int | None = None
        self._latest = -1
        self._alone: set[int] = set()
        self.num_errors = 0

    def decoding(self, packet: Any) -> None:
        """The next packet is about to be decoded."""
        self._packet += 1
        if packet.pts is not None:
            self._numbers[packet.pts] = self._packet
            if len(self._numbers) > _REMEMBERED:
                del self._numbers[next(iter(self._numbers))]

    def is_impossible(self, packet: Any) -> bool:
        """Whether a packet holds a run of zeroes that its codec cannot write."""
        if self._impossible is None:
            return False
        whole = packet.size // 4  # such a run holds an aligned word of zeroes: a hundred times as fast to look for
        if np.count_nonzero(np.frombuffer(packet, np.uint32, whole)) == whole:
            return False
        return self._impossible in bytes(packet).rstrip(b"\0")

    def error(self, packet: Any = None) -> None:
        """That packet was refused or complained of."""
        data = b"" if packet is None else bytes(packet)
        if data and is_disposable(self._codec, data, self._extradata):
            self._alone.add(self._packet)
            self.num_errors += 1
        else:
            self._spread(self._packet)

    def lost(self) -> None:
        """The container had to skip bytes before the next packet."""
        self._spread(self._packet + 1)

    def _spread(self, number: int) -> None:
        self.num_errors += 1
        self._latest = max(self._latest, number)
        if self._spreads_from is None or number < self._spreads_from:
            self._spreads_from = number

    def of(self, frame: Any) -> bool:
        """Whether this frame, the next in presentation order, is damaged."""
        known = self._numbers.get(frame.pts) if frame.pts is not None else None
        first, last = (self._packet - _REORDER, self._packet) if known is None else (known, known)
        alone = known is not None and known in self._alone
        if frame.is_corrupt and not alone:
            self._spread(last)
        elif frame.key_frame and first > self._latest:
            self._spreads_from = None
        spread = self._spreads_from is not None and last >= self._spreads_from
        return spread or alone or frame.is_corrupt


def listen() -> None:
    """Have FFmpeg's messages come to `complaints`, and nowhere else. Once a process is enough."""
    import av

    if av.logging.get_level() != av.logging.INFO:
        av.logging.set_level(av.logging.INFO)
        av.logging.set_skip_repeated(False)
        logger = logging.getLogger("libav")
        logger.propagate = False
        logger.addHandler(logging.NullHandler())


def complaints() -> Any:
    """Context manager that collects what FFmpeg logs in this thread; `are_errors` judges it afterwards."""
    import av

    return av.logging.Capture()


def are_errors(messages: list[Any]) -> bool:
    """Whether any message says that pixels are wrong: an error other than of supplemental data, or a concealment."""
    return any((level <= 16 and "SEI" not in text) or text.startswith(_TELLING) for level, _, text in messages)
