"""Encoders of transformers models, on small random checkpoints that the tests save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from schemas import registry
from schemas.errors import UserError

WORDS = ["<pad>", "</s>", "<unk>", *["a", "red", "ball", "rolls", "down", "the", "hill", "and", "stops", "by", "water"]]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(WORDS))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=64
    )


def save(folder: Path, tokenizer: Any, name: str) -> Path:
    import transformers

    torch.manual_seed(0)
    if name in ("t5", "umt5"):
        config_class = transformers.T5Config if name == "t5" else transformers.UMT5Config
        model_class = transformers.T5EncoderModel if name == "t5" else transformers.UMT5EncoderModel
        config = config_class(
            vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, pad_token_id=0, eos_token_id=1
        )
    elif name == "clip-text":
        config_class, model_class = transformers.CLIPTextConfig, transformers.CLIPTextModel
        config = config_class(
            vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=77, pad_token_id=0, eos_token_id=1, bos_token_id=2,
        )  # fmt: skip
    else:
        config_class, model_class = transformers.LlamaConfig, transformers.LlamaModel
        config = config_class(
            vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2
        )
    model_class(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def by_hand(name: str, folder: Path, text: str) -> torch.Tensor:
    import transformers

    tokens = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"]
    classes = {"t5": "T5EncoderModel", "umt5": "UMT5EncoderModel", "clip-text": "CLIPTextModel", "llm": "AutoModel"}
    model = getattr(transformers, classes[name]).from_pretrained(folder).eval()
    with torch.no_grad():
        if name == "llm":
            return model(tokens, output_hidden_states=True).hidden_states[-3][0]
        return model(tokens).last_hidden_state[0]


@pytest.mark.parametrize("name", ["t5", "umt5", "clip-text", "llm"])
def test_equals_the_model_called_by_hand_without_padding(tmp_path: Path, tokenizer: Any, name: str) -> None:
    folder = save(tmp_path / name, tokenizer, name)
    texts = ["a red ball rolls down the hill", "", "water"]
    encoder = registry.load_text_encoder(name)(source=str(folder), dtype="float32", batch_tokens=24)
    found = encoder.encode(texts)
    assert encoder.dim == 16
    for text, embedding in zip(texts, found):
        expected = by_hand(name, folder, text)
        assert embedding.shape == expected.shape and embedding.dtype == torch.bfloat16
        assert torch.allclose(embedding.float(), expected.to(torch.bfloat16).float(), atol=0.02)


def test_metadata_names_weights_and_makes_an_equal_encoder(tmp_path: Path, tokenizer: Any) -> None:
    folder = save(tmp_path / "Tiny T5", tokenizer, "t5")
    cls = registry.load_text_encoder("t5")
    encoder = cls(source=str(folder), dtype="float32", max_tokens=3)
    assert encoder.name == "t5-tiny-t5" and len(encoder.revision) == 16
    again = cls.for_metadata(encoder.metadata())
    assert torch.equal(encoder.encode(["a red ball rolls"])[0], again.encode(["a red ball rolls"])[0])
    assert len(again.encode(["a red ball rolls"])[0]) == 3
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert cls(source=str(folder)).revision != encoder.revision


def test_missing_weights_are_one_clear_line(tmp_path: Path) -> None:
    cls = registry.load_text_encoder("umt5")
    with pytest.raises(UserError, match="source must name"):
        cls()
    with pytest.raises(UserError, match="cannot load"):
        _ = cls(source=str(tmp_path / "nothing")).dim
