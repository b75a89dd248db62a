"""What a text encoder is: texts to embeddings [L, D] in bfloat16, each as long as its text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class TextEncoder:
    """Base of text encoders.

    Attributes:
        name: of the table `text/<name>`: [a-z0-9._-].
        registry_name: to load the same encoder again.
        source: path or hub id of the weights; empty for encoders without.
        revision: hash of the weights, or the algorithm's version.
        dim: D.
    """

    name: str
    registry_name: str
    source: str
    revision: str
    dim: int

    def encode(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """Embed texts.

        Returns:
            for each text, in order, bfloat16 [L, D] on the CPU without padding, L >= 1 (the empty text included).
        """
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Constructor arguments beside source and device, so that `for_metadata` makes an equal encoder."""
        return {}

    def metadata(self) -> str:
        """JSON for the `text/<name>` table; what shapes an embedding is all in it."""
        fields = {
            "encoder": self.registry_name,
            "name": self.name,
            "source": self.source,
            "revision": self.revision,
            "dim": self.dim,
            "dtype": "bfloat16",
            "options": self.options(),
        }
        return json.dumps(fields, sort_keys=True)

    @classmethod
    def for_metadata(cls, text: str | bytes, device: str = "cpu") -> TextEncoder:
        """The encoder that a table's metadata names."""
        fields = json.loads(text)
        return cls(source=fields["source"], device=device, **fields["options"])  # type: ignore[call-arg]


def by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices in batches of like length, longest first, each at most `batch_tokens` tokens when padded."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batch: list[int] = []
    for index in order:
        if batch and max(1, lengths[batch[0]]) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def weights_hash(folder: str | Path) -> str:
    """16 hex digits over names and bytes of a model folder's weights and tokenizer files."""
    digest = hashlib.blake2b(digest_size=8)
    suffixes = (".safetensors", ".bin", ".json", ".model", ".txt")
    for path in sorted(p for p in Path(folder).rglob("*") if p.suffix in suffixes and p.is_file()):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
