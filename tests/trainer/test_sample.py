"""Integration of the flow's ODE with velocities whose solution is known, the sheet, and the MP4."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from schemas.errors import UserError
from trainer.models.wan import WanConfig
from trainer.sample import SampleConfig, check_output, sample_latents, tile, write_mp4

FACTS = {"shift": 1.0, "shift_tokens": 0}
SHAPE = (4, 2, 4, 6)
NULL = torch.zeros(1, 24)


class Toward(nn.Module):
    """The exact velocity when all data is one point: v = (x - target) / t, the target being the text's mean."""

    config = WanConfig(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, text_dim=24, num_layers=1
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[float, int]] = []

    def forward(self, tokens_LP, timestep_N, text_SE, layout):
        t = timestep_N[layout.segments.ids][:, None] / 1000
        self.calls.append((float(t[0, 0]), len(layout.segments)))
        means = torch.stack([part.mean() for part in text_SE.split(layout.text_segments.lengths)])
        return (tokens_LP - means[layout.segments.ids][:, None]) / t


def texts(*values):
    return [torch.full((3, 24), float(value)) for value in values]


def config(**values):
    return SampleConfig(**{"num_steps": 5, "cfg": 1.0, "device": "cpu", **values})


def test_it_arrives_at_the_point():
    """Euler's last step of that velocity lands on the target whatever came before."""
    model = Toward()
    found = sample_latents(model, texts(0.5, -2.0), NULL, SHAPE, config(), FACTS)
    assert [x.shape for x in found] == [SHAPE, SHAPE]
    torch.testing.assert_close(found[0], torch.full(SHAPE, 0.5))
    torch.testing.assert_close(found[1], torch.full(SHAPE, -2.0))
    assert [round(t, 6) for t, _ in model.calls] == [1.0, 0.8, 0.6, 0.4, 0.2]


def test_guidance_extrapolates_from_the_empty_caption():
    """At the last step x goes to empty + cfg * (text - empty): 0 + 3 * 0.5."""
    model = Toward()
    (found,) = sample_latents(model, texts(0.5), NULL, SHAPE, config(cfg=3.0), FACTS)
    torch.testing.assert_close(found, torch.full(SHAPE, 1.5))
    assert {n for _, n in model.calls} == {2}  # both in one pack


def test_shift_moves_the_timesteps():
    model = Toward()
    sample_latents(model, texts(1), NULL, SHAPE, config(num_steps=2, shift=3.0), FACTS)
    assert [round(t, 6) for t, _ in model.calls] == [1.0, 0.75]
    trained = Toward()  # 12 tokens of a shift that is 1.5 at 3 tokens: 1.5 * sqrt(12 / 3) = 3
    sample_latents(trained, texts(1), NULL, SHAPE, config(num_steps=2), {"shift": 1.5, "shift_tokens": 3})
    assert trained.calls == model.calls


def test_batches_do_not_change_samples():
    class Noise(Toward):
        def forward(self, tokens_LP, timestep_N, text_SE, layout):
            self.calls.append((0.0, len(layout.segments)))
            return torch.zeros_like(tokens_LP)  # x stays the noise that it began as

    together, apart = Noise(), Noise()
    first = sample_latents(together, texts(1, 2, 3), NULL, SHAPE, config(), FACTS)
    second = sample_latents(apart, texts(1, 2, 3), NULL, SHAPE, config(max_tokens=13), FACTS)
    assert {n for _, n in together.calls} == {3} and {n for _, n in apart.calls} == {1}
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert not torch.equal(first[0], first[1])
    assert abs(first[0].mean()) < 0.3 and abs(first[0].std() - 1) < 0.2


def test_tile():
    videos = [torch.full((3, 2, 32, 48), value, dtype=torch.uint8) for value in (10, 20, 30)]
    sheet = tile(videos)
    assert sheet.dtype == torch.uint8 and sheet.shape == (2, 68 * 6, 100 * 6, 3)  # 2 x 2 with gaps of 4, six times
    assert sheet.shape[1] % 2 == sheet.shape[2] % 2 == 0
    assert sheet[0, 0, 0].tolist() == [10] * 3 and sheet[1, 0, 599].tolist() == [20] * 3
    assert sheet[0, 407, 0].tolist() == [30] * 3 and sheet[0, 407, 599].tolist() == [0] * 3
    assert tile(videos[:1]).shape == (2, 32 * 13, 48 * 13 // 2 * 2, 3)


def test_mp4(tmp_path):
    import av

    pictures = torch.stack([torch.full((32, 64, 3), 40 * i, dtype=torch.uint8) for i in range(5)])
    write_mp4(tmp_path / "x.mp4", pictures, 12.5)
    with av.open(str(tmp_path / "x.mp4")) as container:
        stream = container.streams.video[0]
        means = [f.to_ndarray(format="rgb24").mean() for f in container.decode(stream)]
        assert stream.average_rate == 12.5
    assert means == pytest.approx([0, 40, 80, 120, 160], abs=4)


def test_output_and_values_are_checked(tmp_path):
    check_output(tmp_path / "new" / "x.mp4")
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(UserError, match=r"ends in \.mp4"):
        check_output(tmp_path / "x.gif")
    for values in ({"num_steps": 0}, {"num_heldout": 0}, {"shift": 0.0}):
        with pytest.raises(UserError):
            SampleConfig(**values)
