"""Held-out latents as a fixed list of packs, and some of their captions kept with the run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.data.collate import Pack
from trainer.data.index import NO_TEXT, Index, Stream, TextTable
from trainer.data.loader import PackLoader
from trainer.data.read import choose_texts
from trainer.data.tables import Source

NUM_CAPTIONS = 16


def heldout_packs(loader: PackLoader, max_samples: int) -> list[Pack]:
    """Packs of distinct latents, each once, in the loader's fixed order, until `max_samples` or all are there."""
    wanted = min(max_samples, len(loader.index))
    seen: set[bytes] = set()
    packs: list[Pack] = []
    for step in loader:
        for pack in step:
            fresh = []
            for i, name in enumerate(pack.latent_ids):
                if name not in seen and len(seen) < wanted:
                    seen.add(name)
                    fresh.append(i)
            if fresh:
                packs.append(take_samples(pack, fresh))
        if len(seen) >= wanted:
            return packs
    return packs


def take_samples(pack: Pack, chosen: Iterable[int]) -> Pack:
    """A pack of some of another's samples; its length stays, so that what they leave becomes padding."""
    chosen = list(chosen)
    if chosen == list(range(pack.num_samples)):
        return pack
    tokens = [pack.tokens_LD[pack.cu_seqlens[i] : pack.cu_seqlens[i + 1]] for i in chosen]
    texts = [pack.text_LD[pack.text_cu_seqlens[i] : pack.text_cu_seqlens[i + 1]] for i in chosen]
    tokens_LD = torch.zeros_like(pack.tokens_LD)
    used = sum(len(t) for t in tokens)
    tokens_LD[:used] = torch.cat(tokens)
    return dataclasses.replace(
        pack,
        tokens_LD=tokens_LD,
        cu_seqlens=_bounds(tokens),
        grid_thw=pack.grid_thw[chosen],
        text_LD=torch.cat(texts),
        text_cu_seqlens=_bounds(texts),
        latent_ids=[pack.latent_ids[i] for i in chosen],
        visits=pack.visits[chosen],
        rows=pack.rows[chosen],
        num_padding_tokens=len(tokens_LD) - used,
    )


def _bounds(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([0, *(len(p) for p in parts)], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def save_captions(path: Path, loader: PackLoader, packs: Sequence[Pack], null_text_ME: torch.Tensor) -> None:
    """Keep embeddings and words of up to NUM_CAPTIONS distinct captions of `packs`, and the empty one's embedding."""
    from safetensors.torch import save_file

    index, seed = loader.index, loader.planner.config.seed
    found: dict[int, torch.Tensor] = {}
    for pack in packs if index.texts else []:
        bounds = pack.text_cu_seqlens.tolist()
        for i, number in enumerate(choose_texts(index, pack.rows.numpy(), pack.visits.numpy(), seed).tolist()):
            if len(found) < NUM_CAPTIONS and number != NO_TEXT:
                found.setdefault(number, pack.text_LD[bounds[i] : bounds[i + 1]].contiguous())
    tensors = {f"text_{i:02d}": text_LE for i, text_LE in enumerate(found.values())}
    words = json.dumps([caption_words(index, number) for number in found])
    save_file({"null": null_text_ME.contiguous(), **tensors}, path, {"captions": words})


def caption_words(index: Index, number: int) -> str:
    """Words of a text row."""
    table = next(t for t in index.texts if t.start <= number < t.stop)
    scan = _open(index, table).scanner(columns=["text"], filter=f"_rowid = {int(index.text_row_ids[number])}")
    return scan.to_table()["text"][0].as_py()


def typical_fps(index: Index, default: float = 16.0) -> float:
    """Frames/s of the first stream's first rows; `default` where the table does not say."""
    listed = _open(index, index.streams[0]).scanner(columns=["fps"], filter="fps > 0", limit=16).to_table()
    values = sorted(listed["fps"].to_pylist())
    return float(values[len(values) // 2]) if values else default


def _open(index: Index, place: Stream | TextTable) -> Any:
    dataset = index.config.datasets[place.dataset]
    return Source(root=dataset.path, storage_options=dataset.storage_options).open(place.table, place.version)
