"""How frames are decoded: everything that shapes pixels, apart from size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schemas.errors import UserError


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """Rules of decoding.

    Attributes:
        hdr: what to do with PQ and HLG: map to SDR BT.709, or refuse (`hdr_rejected`).
        interlaced: deinterlace to one frame a field pair (bwdif), keep the fields woven, or refuse
            (`interlaced_rejected`).
        num_threads: decoder threads. 1, since workers are processes; more changes no pixel.
        cache_bytes: decoded frames of one clip that are kept between asking for its times and for its frames.
    """

    hdr: Literal["tonemap", "reject"] = "tonemap"
    interlaced: Literal["deinterlace", "keep", "reject"] = "deinterlace"
    num_threads: int = 1
    cache_bytes: int = 384 << 20

    def __post_init__(self) -> None:
        if self.hdr not in ("tonemap", "reject"):
            raise UserError(f"hdr: expected 'tonemap' or 'reject', found {self.hdr!r}")
        if self.interlaced not in ("deinterlace", "keep", "reject"):
            raise UserError(f"interlaced: expected 'deinterlace', 'keep' or 'reject', found {self.interlaced!r}")
        if self.num_threads < 1 or self.cache_bytes < 0:
            raise UserError("num_threads must be at least 1 and cache_bytes at least 0")
