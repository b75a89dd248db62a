"""encode: clips of one bucket, from many files, to rows of a latent table."""

from __future__ import annotations

from vidpipe.encode_config import EncodeConfig

__all__ = ["EncodeConfig"]
