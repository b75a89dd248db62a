"""Flow matching draws, noising and loss normalisation."""

from __future__ import annotations

import math

import pytest
import torch

from schemas.errors import UserError
from trainer import flow
from trainer.flow import FlowConfig

NULL = torch.full((2, 24), 7.0).bfloat16()


def draw(config, numbers, packs, visit=0, seed=0):
    lengths = [math.prod(packs.SHAPES[n % 4]) // 4 for n in numbers]
    return flow.draw(config, seed, [packs.name(n) for n in numbers], [visit] * len(numbers), lengths)


def test_shift_and_time():
    assert flow.shift_time(0.5, 3.0) == 0.75
    assert FlowConfig(shift=3.0, shift_tokens=100).shift_of(400) == 6.0
    assert FlowConfig(shift=3.0).shift_of(400) == 3.0
    assert FlowConfig(timesteps="uniform").time_at(0.25, 1) == 0.25
    assert FlowConfig().time_at(0.5, 1) == 0.5
    assert FlowConfig(logit_mean=1.0).time_at(0.5, 1) == pytest.approx(1 / (1 + math.exp(-1)))
    # one standard deviation up
    assert FlowConfig(logit_std=2.0).time_at(0.8413447460685429, 1) == pytest.approx(1 / (1 + math.exp(-2)))
    assert FlowConfig(timesteps="uniform", shift=3.0).time_at(0.5, 1) == 0.75


def test_draws_follow_the_distribution(packs):
    names = [i.to_bytes(16, "big") for i in range(4000)]
    draws = flow.draw(FlowConfig(), 3, names, [0] * 4000, [1] * 4000)
    logits = torch.tensor(draws.times, dtype=torch.float64).logit()
    assert abs(logits.mean()) < 0.07 and abs(logits.std() - 1) < 0.05
    assert abs(sum(draws.dropped) / 4000 - 0.1) < 0.02
    assert len(set(draws.noise_keys)) == 4000


def test_draws_depend_on_seed_id_and_visit_alone(packs):
    config = FlowConfig(text_dropout=0.5)
    both, second = draw(config, [1, 2], packs), draw(config, [2], packs)
    of_two = (both.times[1], both.dropped[1], both.noise_keys[1])
    assert of_two == (second.times[0], second.dropped[0], second.noise_keys[0])
    assert draw(config, [2], packs, visit=1).times != second.times
    assert draw(config, [2], packs, seed=1).times != second.times


def test_strata_share_the_distribution(packs):
    """Uniform timesteps in four strata: each visit of a sample is in its own quarter."""
    config = FlowConfig(timesteps="uniform")
    for number in range(5):
        names, visits = [packs.name(number)] * 4, [0, 1, 2, 3]
        times = flow.draw(config, 1, names, visits, [4] * 4, num_strata=4).times
        assert [int(4 * t) for t in times] == visits


def test_prepare_noises_every_sample_with_its_own_time(packs):
    numbers = [0, 1, 2]
    pack = packs.make(numbers)
    draws = draw(FlowConfig(text_dropout=0.0), numbers, packs)
    batch = flow.prepare(pack, draws, null_text_ME=NULL)
    assert batch.lengths == (4, 12, 12) and batch.num_tokens == len(batch.noisy_LP) == 28
    t = torch.tensor(draws.times).repeat_interleave(torch.tensor(batch.lengths))[:, None]
    x0, v = pack.tokens_LD, batch.target_LP
    noise = v + x0
    torch.testing.assert_close(batch.noisy_LP, (1 - t) * x0 + t * noise)
    assert abs(noise.mean()) < 0.15 and abs(noise.std() - 1) < 0.1
    assert torch.allclose(batch.timestep_N, torch.tensor(draws.times) * 1000)
    assert batch.layout.text_segments.lengths == (1, 2, 3)
    assert batch.layout.grid_N3.tolist() == [[1, 2, 2], [2, 2, 3], [3, 2, 2]]
    assert torch.equal(batch.text_SE, pack.text_LD)


def test_a_sample_is_the_same_in_any_pack(packs):
    config = FlowConfig()
    alone = flow.prepare(packs.make([2]), draw(config, [2], packs), null_text_ME=NULL)
    among = flow.prepare(packs.make([0, 2, 1], length=64), draw(config, [0, 2, 1], packs), null_text_ME=NULL)
    assert torch.equal(among.noisy_LP[4:16], alone.noisy_LP)
    assert torch.equal(among.target_LP[4:16], alone.target_LP)


def test_dropped_text_becomes_the_empty_caption(packs):
    draws = flow.Draws(times=(0.5, 0.5), dropped=(True, False), noise_keys=(1, 2))
    batch = flow.prepare(packs.make([4, 3]), draws, null_text_ME=NULL)
    assert batch.layout.text_segments.lengths == (2, 4)
    assert torch.equal(batch.text_SE[:2], NULL) and torch.equal(batch.text_SE[2:], packs.text(3))
    padded = flow.prepare(packs.make([4, 3]), draws, null_text_ME=NULL, text_length=6)
    assert padded.layout.text_segments.lengths == (6, 6)
    assert torch.equal(padded.text_SE[2:6], torch.zeros(4, 24).bfloat16())


def test_padding_is_a_segment_of_its_own_or_cut_off(packs):
    pack = packs.make([0, 1], length=20)
    draws = draw(FlowConfig(), [0, 1], packs)
    kept = flow.prepare(pack, draws, null_text_ME=NULL, keep_padding=True)
    assert kept.layout.segments.lengths == (4, 12, 4) and kept.num_tokens == 16
    assert len(kept.layout.text_segments) == 3 and kept.layout.text_segments.lengths[2] == 1
    assert len(flow.squared_error(torch.zeros(20, 16), kept)) == 16
    assert flow.prepare(pack, draws, null_text_ME=NULL).layout.segments.lengths == (4, 12)


def test_missing_pack_adds_nothing(packs):
    for keep in (False, True):
        batch = flow.prepare(packs.missing(8), draw(FlowConfig(), [0], packs), null_text_ME=NULL, keep_padding=keep)
        output = torch.randn(len(batch.noisy_LP), 16, requires_grad=True)
        error = flow.squared_error(output, batch)
        for norm in ("token", "sample"):
            assert flow.loss_count(batch, norm) == 0
            loss = flow.loss_sum(error, batch, norm)
            assert loss.item() == 0
        assert len(batch.noisy_LP) == (8 if keep else 1)


def test_loss_is_one_mean_over_packs(packs):
    """Per token and per sample, from errors known beforehand: sample 0 has 4 tokens, sample 1 has 12."""
    batch = flow.prepare(packs.make([0, 1]), draw(FlowConfig(), [0, 1], packs), null_text_ME=NULL)
    output = batch.target_LP.clone()
    output[:4] += 2.0  # squared error 4 in the first sample, 0 in the second
    error = flow.squared_error(output, batch)
    assert flow.loss_sum(error, batch, "token") / flow.loss_count(batch, "token") == pytest.approx(4 * 4 / 16)
    assert flow.loss_sum(error, batch, "sample") / flow.loss_count(batch, "sample") == pytest.approx(4 / 2)


def test_training_without_text(packs):
    import dataclasses

    bare = dataclasses.replace(
        packs.make([0, 1]), text_LD=torch.zeros(0, 0).bfloat16(), text_cu_seqlens=torch.zeros(3, dtype=torch.int32)
    )
    batch = flow.prepare(bare, draw(FlowConfig(), [0, 1], packs), null_text_ME=torch.zeros(1, 24))
    assert batch.layout.text_segments.lengths == (1, 1) and torch.equal(batch.text_SE, torch.zeros(2, 24))


@pytest.mark.parametrize("values", [{"shift": 0.0}, {"text_dropout": 1.5}, {"logit_std": -1.0}, {"shift_tokens": -1}])
def test_config_is_checked(values):
    with pytest.raises(UserError):
        FlowConfig(**values)
