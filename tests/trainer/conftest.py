"""Packs without a dataset; one thread, since tensors this small are slower with two."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def packs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("trainer_test_packs", Path(__file__).with_name("packs.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny_config():
    from trainer.models.wan import WanConfig

    return WanConfig(
        num_attention_heads=3, attention_head_dim=16, in_channels=4, out_channels=4, text_dim=24, freq_dim=32,
        ffn_dim=64, num_layers=2, rope_max_seq_len=32,
    )  # fmt: skip
