"""Small Wan models shared by the model tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def tiny_config():
    from trainer.models.wan import WanConfig

    return WanConfig(
        num_attention_heads=3, attention_head_dim=16, in_channels=4, out_channels=4, text_dim=24, freq_dim=32,
        ffn_dim=64, num_layers=2, rope_max_seq_len=32,
    )  # fmt: skip
