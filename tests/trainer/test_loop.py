"""The loop: a small model learns, packs are accumulated as one batch, figures are those of the packs."""

from __future__ import annotations

import math

import pytest
import torch

from schemas.errors import UserError
from trainer.checkpoint import CheckpointConfig
from trainer.flow import FlowConfig
from trainer.heldout import Heldout, HeldoutConfig
from trainer.loop import LoopConfig, Trainer
from trainer.metrics import LogConfig, read_metrics
from trainer.models.wan import Wan
from trainer.optim import OptimizerConfig
from trainer.parallel.world import ParallelConfig, World

NULL = torch.zeros(1, 24)


def make(packs, tiny_config, layout, *, run=None, held=None, steps=3, length=0, source=None, **values):
    torch.manual_seed(0)
    config = LoopConfig(
        steps=steps,
        optimizer=values.pop("optimizer", OptimizerConfig(lr=3e-3, warmup_steps=2)),
        checkpoint=CheckpointConfig(every=0),
        log=LogConfig(every=1, tensorboard=False),
        **values,
    )
    source = source or packs.Source(layout, length=length)
    return Trainer(Wan(tiny_config, "sdpa"), config, World(), source, null_text_ME=NULL, run=run, held=held)


def gradients(packs, tiny_config, lists, **values):
    """Gradients of one step without clipping or decay, through the weights after plain steps being too indirect."""
    trainer = make(packs, tiny_config, lambda step: lists, **values)
    found = {}
    trainer.optimizer.step = lambda: found.update({n: p.grad.clone() for n, p in trainer.model.named_parameters()})
    trainer.train()
    return found


@pytest.mark.parametrize("norm", ["token", "sample"])
def test_layouts_of_the_same_samples_give_the_same_gradients(packs, tiny_config, norm):
    """One pack, one sample a pack, another order, padding, a missing pack: one loss."""
    quiet = {"steps": 1, "flow": FlowConfig(loss_norm=norm), "optimizer": OptimizerConfig(clip_grad_norm=0.0)}
    expected = gradients(packs, tiny_config, [[0, 1, 2, 3]], **quiet)
    others = {
        "one a pack": [[0], [1], [2], [3]],
        "order": [[3, 1], [2, 0]],
        "missing": [[0, 1, 2, 3], None],
    }
    for name, lists in others.items():
        found = gradients(packs, tiny_config, lists, **quiet)
        for key, value in expected.items():
            scale = value.abs().max().clamp(min=1e-6)
            assert (found[key] - value).abs().max() <= 1e-5 * scale, (name, key)
    padded = gradients(packs, tiny_config, [[0, 1, 2, 3]], length=64, **quiet)
    compiled_layout = gradients(packs, tiny_config, [[0, 1, 2, 3]], length=64, **quiet)
    assert all(torch.equal(padded[k], compiled_layout[k]) for k in padded)


def test_padding_kept_in_the_pack_changes_nothing(packs, tiny_config):
    quiet = {"steps": 1, "optimizer": OptimizerConfig(clip_grad_norm=0.0)}
    expected = gradients(packs, tiny_config, [[0, 1]], **quiet)
    trainer = make(packs, tiny_config, lambda step: [[0, 1]], length=40, **quiet)
    prepare = trainer._prepare
    kept = []

    def keep_padding(pack):
        from trainer import flow, heldout

        draws = flow.draw(trainer.config.flow, 0, pack.latent_ids, list(pack.visits), heldout.pack_lengths(pack))
        kept.append(flow.prepare(pack, draws, null_text_ME=NULL, keep_padding=True))
        return kept[-1]

    trainer._prepare = keep_padding
    found = {}
    trainer.optimizer.step = lambda: found.update({n: p.grad.clone() for n, p in trainer.model.named_parameters()})
    trainer.train()
    assert prepare is not keep_padding and len(kept[0].noisy_LP) == 40
    for key, value in expected.items():
        assert (found[key] - value).abs().max() <= 1e-5 * value.abs().max().clamp(min=1e-6), key


def test_activation_checkpointing_changes_nothing(packs, tiny_config):
    plain = gradients(packs, tiny_config, [[0, 1], [2]], steps=1)
    parallel = ParallelConfig(activation_checkpointing=True)
    again = gradients(packs, tiny_config, [[0, 1], [2]], steps=1, parallel=parallel)
    assert plain.keys() == again.keys()
    assert all(torch.equal(plain[k], again[k]) for k in plain)


def test_it_learns_and_says_so(packs, tiny_config, tmp_path, caplog):
    """Smooth latents: far below the linear predictor, and worse when positions are shuffled."""
    caplog.set_level("INFO", "trainer")
    held_packs = [packs.make([20 * i + 4 for i in range(8)])]
    flow = FlowConfig(logit_std=1.5)
    held = Heldout(held_packs, HeldoutConfig(repeats=8), flow, World(), channels=4, null_text_ME=NULL)

    def layout(step):
        return [[20 * ((7 * step + i) % 100) for i in range(16)]]

    optimizer = OptimizerConfig(lr=1e-2, warmup_steps=10, ema_decay=0.95)
    trainer = make(packs, tiny_config, layout, run=tmp_path, held=held, steps=100, flow=flow, optimizer=optimizer)
    trainer.train()
    found = trainer.last_heldout
    assert found.ratio < 0.75, found
    assert found.shuffled > 1.03 * found.loss
    rows = read_metrics(tmp_path / "metrics.jsonl")
    first, last = (r["loss"] for r in (rows[1], rows[-2]))
    assert last < 0.8 * first
    assert rows[-1]["heldout/ratio"] == pytest.approx(found.ratio)
    assert "best per-channel linear predictor" in caplog.text
    assert (tmp_path / "loss.svg").read_text().count("<polyline") == 3


def test_a_step_counts_its_packs(packs, tiny_config, tmp_path, caplog):
    caplog.set_level("INFO", "trainer")
    trainer = make(packs, tiny_config, lambda step: [[0, 1], [2]], run=tmp_path, steps=2, length=20)
    trainer.train()
    row = read_metrics(tmp_path / "metrics.jsonl")[-1]
    assert row["tokens"] == 28 and row["padding"] == pytest.approx(12 / 40) and row["imbalance"] == 1
    assert row["step"] == 2 and 0 <= row["data_share"] < 1
    c = tiny_config
    linear = c.num_layers * (6 * 48 * 48 + 2 * 48 * c.ffn_dim) + 2 * 48 * 16
    text = c.num_layers * 2 * 48 * 48 + 48 * 24 + 48 * 48
    tokens, texts = [4, 12, 12], [1, 2, 3]
    flops = sum(6 * (n * linear + m * text) + 12 * c.num_layers * 48 * n * (n + m) for n, m in zip(tokens, texts))
    assert row["tflops"] == pytest.approx(flops / row["seconds"] / 1e12)


def test_a_slow_loader_is_named(packs, tiny_config, caplog):
    import time

    caplog.set_level("INFO", "trainer")

    class Slow(packs.Source):
        wait_cause = "reader processes are behind"

        def __next__(self):
            time.sleep(0.3)
            return super().__next__()

    make(packs, tiny_config, None, source=Slow(lambda step: [[0]])).train()
    assert "the loader is the bottleneck: steps wait" in caplog.text and "reader processes are behind" in caplog.text


def test_not_finite_stops_with_what_to_do(packs, tiny_config, tmp_path):
    optimizer = OptimizerConfig(lr=1e30, warmup_steps=0, clip_grad_norm=0.0)
    trainer = make(packs, tiny_config, lambda step: [[0, 1]], run=tmp_path, steps=20, optimizer=optimizer)
    with pytest.raises(UserError, match=r"step \d+: loss .* not finite; there is no checkpoint yet; lower"):
        trainer.train()


def test_data_that_ends(packs, tiny_config):
    class Ends(packs.Source):
        def __next__(self):
            if self.step == 2:
                raise StopIteration
            return super().__next__()

    with pytest.raises(UserError, match="data ended at step 2, before steps = 5"):
        make(packs, tiny_config, None, source=Ends(lambda step: [[0]]), steps=5).train()


def test_learning_rate_follows_the_schedule(packs, tiny_config, tmp_path):
    optimizer = OptimizerConfig(lr=1e-3, warmup_steps=2, min_lr_ratio=0.0)
    make(packs, tiny_config, lambda step: [[0]], run=tmp_path, steps=4, optimizer=optimizer).train()
    rates = [row["lr"] for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert rates == pytest.approx([5e-4, 1e-3, 1e-3, 1e-3 * 0.5 * (1 + math.cos(math.pi / 2))])
