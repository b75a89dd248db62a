"""Encoders of transformers models, from a path or hub id: T5 and UMT5 here, CLIP's text tower and LLMs beside.

Texts are batched by length and padded only within a batch; padding is cut off before an embedding is returned.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from schemas.errors import UserError
from vidpipe.text_encoders.base import TextEncoder, by_length, weights_hash

if TYPE_CHECKING:
    import torch


class TransformersEncoder(TextEncoder):
    """An encoder whose last hidden state is the embedding.

    Args:
        source: path or hub id of model and tokenizer.
        max_tokens: longer texts are cut there; 512 for T5 and UMT5, as Wan does.
        batch_tokens: padded tokens a batch.
        dtype: of the computation: `bfloat16` or `float32`; the result is bfloat16.
        subfolder, tokenizer_subfolder: inside `source`, such as `text_encoder` and `tokenizer` of a diffusers model.
    """

    model_class: ClassVar[str]

    def __init__(
        self,
        source: str = "",
        device: str = "cpu",
        max_tokens: int = 512,
        batch_tokens: int = 16384,
        dtype: str = "bfloat16",
        subfolder: str = "",
        tokenizer_subfolder: str = "",
    ) -> None:
        if not source:
            raise UserError(f"text encoder {self.registry_name}: source must name its weights: a path or hub id")
        if dtype not in ("bfloat16", "float32"):
            raise UserError(f"text encoder {self.registry_name}: dtype must be bfloat16 or float32, found {dtype!r}")
        self.source, self.device, self.max_tokens, self.batch_tokens = source, device, max_tokens, batch_tokens
        self.dtype, self.subfolder, self.tokenizer_subfolder = dtype, subfolder, tokenizer_subfolder
        self.name = re.sub(r"[^a-z0-9._-]+", "-", f"{self.registry_name}-{Path(source).name}".lower())

    def options(self) -> dict[str, Any]:
        return {
            "max_tokens": self.max_tokens,
            "dtype": self.dtype,
            "subfolder": self.subfolder,
            "tokenizer_subfolder": self.tokenizer_subfolder,
        }

    @functools.cached_property
    def revision(self) -> str:  # type: ignore[override]
        """Hash of the weights of a local folder; the commit of a hub model."""
        if Path(self.source).is_dir():
            return weights_hash(Path(self.source) / self.subfolder)
        return getattr(self._config, "_commit_hash", None) or "unknown"

    @functools.cached_property
    def _config(self) -> Any:
        import transformers

        try:
            return transformers.AutoConfig.from_pretrained(self.source, subfolder=self.subfolder)
        except (OSError, ValueError) as error:
            text = str(error).splitlines()[0]
            raise UserError(f"text encoder {self.registry_name}: cannot load {self.source!r}: {text}") from None

    @property
    def dim(self) -> int:  # type: ignore[override]
        """Width of the hidden state."""
        config = getattr(self._config, "text_config", None) or self._config
        return int(getattr(config, "d_model", None) or config.hidden_size)

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer; pads on the right."""
        import transformers

        folder = self.tokenizer_subfolder or self.subfolder
        try:
            found = transformers.AutoTokenizer.from_pretrained(self.source, subfolder=folder, padding_side="right")
        except (OSError, ValueError) as error:
            text = str(error).splitlines()[0]
            raise UserError(f"text encoder {self.registry_name}: no tokenizer in {self.source!r}: {text}") from None
        if found.pad_token is None:
            found.pad_token = found.eos_token
        return found

    @functools.cached_property
    def model(self) -> Any:
        """The model, in evaluation mode on its device."""
        import torch
        import transformers

        cls = getattr(transformers, self.model_class)
        dtype = getattr(torch, self.dtype)
        model = cls.from_pretrained(self.source, subfolder=self.subfolder, dtype=dtype)
        return model.eval().requires_grad_(False).to(self.device)

    def encode(self, texts: Sequence[str]) -> list[torch.Tensor]:
        import torch

        tokens = self.tokenizer(list(texts), truncation=True, max_length=self.max_tokens)["input_ids"]
        tokens = [ids or [self.tokenizer.pad_token_id] for ids in tokens]  # a tokenizer without special tokens: ""
        found: list[torch.Tensor | None] = [None] * len(tokens)
        for batch in by_length([len(ids) for ids in tokens], self.batch_tokens):
            hidden = self._forward([tokens[i] for i in batch])
            for row, index in enumerate(batch):
                found[index] = hidden[row, : len(tokens[index])].to(torch.bfloat16).cpu()
        return [embedding for embedding in found if embedding is not None]

    def _forward(self, tokens: list[list[int]]) -> torch.Tensor:
        import torch

        length = max(map(len, tokens))
        ids = torch.full((len(tokens), length), self.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, found in enumerate(tokens):
            ids[row, : len(found)] = torch.tensor(found)
            mask[row, : len(found)] = 1
        with torch.inference_mode():
            return self.hidden(ids.to(self.device), mask.to(self.device))

    def hidden(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Hidden states [B, L, D] of token ids and mask [B, L]."""
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state


class T5Encoder(TransformersEncoder):
    """T5 (`google/t5-v1_1-xxl`, ...), as PixArt, CogVideoX, LTX-Video and FLUX use it."""

    registry_name = "t5"
    model_class = "T5EncoderModel"


class UMT5Encoder(TransformersEncoder):
    """UMT5 (`google/umt5-xxl`), as Wan uses it."""

    registry_name = "umt5"
    model_class = "UMT5EncoderModel"


class ClipTextEncoder(TransformersEncoder):
    """CLIP's text tower (`openai/clip-vit-large-patch14`): hidden states of at most 77 tokens."""

    registry_name = "clip-text"
    model_class = "CLIPTextModel"

    def __init__(self, source: str = "", device: str = "cpu", max_tokens: int = 77, **options: Any) -> None:
        super().__init__(source, device, max_tokens, **options)


class LLMEncoder(TransformersEncoder):
    """A causal language model's hidden states, as HunyuanVideo takes LLaMA's.

    Args:
        skip_layers: layers left out at the end; HunyuanVideo leaves out 2.
    """

    registry_name = "llm"
    model_class = "AutoModel"

    def __init__(self, source: str = "", device: str = "cpu", skip_layers: int = 2, **options: Any) -> None:
        super().__init__(source, device, **options)
        self.skip_layers = skip_layers

    def options(self) -> dict[str, Any]:
        return {**super().options(), "skip_layers": self.skip_layers}

    def hidden(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found = self.model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
        return found[-1 - self.skip_layers]
