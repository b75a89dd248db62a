"""A text encoder without weights: words as signed hashes of their character n-grams.

One row a word (at most `max_words`), so that cross-attention has something to attend to. A row is the unit-length sum
of pseudo-random directions of the word, its character 3- to 5-grams (as fastText's subwords) and a weaker one of its
position. What to expect of it: equal words are equal, and words that share stems are near (`run`, `running`); synonyms
are not, grammar is not seen, and nothing was learned. It lets a pipeline run, and a toy model tell captions apart; for
a real model use T5 or UMT5.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from schemas.errors import UserError
from vidpipe.text_encoders.base import TextEncoder

if TYPE_CHECKING:
    import numpy as np
    import torch

_WORD = re.compile(r"\w+|[^\w\s]")
NGRAMS = (3, 4, 5)
POSITION_WEIGHT = 0.25


class HashedNgrams(TextEncoder):
    """See the module's docstring.

    Args:
        source: must be empty: there are no weights.
        dim: D, a multiple of 64.
        max_words: rows at most; further words are dropped.
    """

    registry_name = "hashed-ngrams"
    revision = "1"

    def __init__(self, source: str = "", device: str = "cpu", dim: int = 64, max_words: int = 128) -> None:
        if source:
            raise UserError(f"text encoder hashed-ngrams has no weights: source must be empty, found {source!r}")
        if dim < 64 or dim % 64:
            raise UserError(f"text encoder hashed-ngrams: dim must be a multiple of 64, found {dim}")
        self.source, self.dim, self.max_words = source, dim, max_words
        self.name = f"hashed-ngrams-{dim}"

    def options(self) -> dict[str, Any]:
        return {"dim": self.dim, "max_words": self.max_words}

    def encode(self, texts: Sequence[str]) -> list[torch.Tensor]:
        import numpy as np
        import torch

        found = []
        for text in texts:
            words = _WORD.findall(text.lower())[: self.max_words] or [""]
            rows = [
                word_vector(word, self.dim) + POSITION_WEIGHT * _position(i, self.dim) for i, word in enumerate(words)
            ]
            matrix = np.stack(rows)
            matrix /= np.linalg.norm(matrix, axis=1, keepdims=True) / np.sqrt(self.dim)  # elements of variance 1
            found.append(torch.from_numpy(matrix.astype(np.float32)).to(torch.bfloat16))
        return found


@functools.lru_cache(maxsize=100_000)
def word_vector(word: str, dim: int) -> np.ndarray:
    """Unit vector [dim] of a word, float64."""
    import numpy as np

    marked = f"<{word}>"
    grams = [marked] + [marked[i : i + n] for n in NGRAMS for i in range(len(marked) - n + 1)]
    vector = np.stack([_signs(gram, dim) for gram in grams]).sum(axis=0)
    return vector / np.linalg.norm(vector)


@functools.lru_cache(maxsize=1024)
def _position(index: int, dim: int) -> np.ndarray:
    import numpy as np

    return _signs(f"position {index}", dim) / np.sqrt(dim)


def _signs(key: str, dim: int) -> np.ndarray:
    """Pseudo-random signs [dim] from a hash of the key: integers, so the same on every machine."""
    import numpy as np

    blocks = [hashlib.blake2b(f"{i}:{key}".encode(), digest_size=8).digest() for i in range(dim // 64)]
    bits = np.unpackbits(np.frombuffer(b"".join(blocks), np.uint8))
    return bits.astype(np.float64) * 2 - 1
