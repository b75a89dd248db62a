import numpy as np
import pytest
import torch

from schemas.errors import BucketMismatch, LatentSpaceMismatch, UserError
from vidpipe.vaes import dct
from vidpipe.vaes.base import psnr_db
from vidpipe.vaes.dct import DctVae


def moving_picture(frames: int = 17, height: int = 32, width: int = 48, seed: int = 0) -> torch.Tensor:
    """Smooth coloured waves that drift, uint8 [1, 3, T, H, W]."""
    rng = np.random.default_rng(seed)
    t, y, x = np.meshgrid(np.arange(frames), np.arange(height), np.arange(width), indexing="ij")
    luma = 128 + 60 * np.sin(x / rng.uniform(8, 12) + t / 5) + 50 * np.cos(y / rng.uniform(8, 12) - t / 7)
    planes = [luma + 20 * np.sin((x + y) / 20 + c) for c in range(3)]
    return torch.from_numpy(np.stack(planes)).clamp(0, 255).to(torch.uint8)[None]


def test_flat_grey_is_its_mean_and_comes_back():
    frames = torch.full((1, 3, 5, 8, 8), 100, dtype=torch.uint8)
    latent = DctVae().encode_raw(frames)
    assert latent.shape == (1, 16, 2, 1, 1)
    share = dct.spatial_filters().sum(1) / np.abs(dct.spatial_filters()).sum(1)  # the filters' negative weights
    assert torch.allclose(latent[0, :9, 0].flatten(), torch.from_numpy(100 * np.outer(share, share).ravel()))
    assert latent[0, 9:].abs().max() == 0  # no motion, no colour
    assert torch.equal(DctVae().decode(DctVae().encode(frames)), frames)


def test_the_exact_dual():
    a = dct.analysis().reshape(16, -1) * dct.scales()[:, None]
    assert np.abs(a @ dct.synthesis().T - np.eye(16)).max() < 1e-12


def test_encode_is_the_integer_matrix_bit_for_bit():
    frames = torch.randint(0, 256, (2, 3, 9, 16, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    grouped = torch.cat([frames[:, :, :1].expand(-1, -1, 4, -1, -1), frames[:, :, 1:]], 2).to(torch.int64)
    blocks = grouped.view(2, 3, 3, 4, 2, 8, 3, 8).permute(0, 2, 4, 6, 1, 3, 5, 7).reshape(2, 3, 2, 3, -1)
    expected = (blocks @ torch.from_numpy(dct.analysis().reshape(16, -1)).T).movedim(-1, 1)
    raw = DctVae().encode_raw(frames)
    assert torch.equal(raw, expected.to(torch.float64) * torch.from_numpy(dct.scales()).view(1, -1, 1, 1, 1))


def test_batch_size_and_threads_change_no_bit():
    frames = torch.cat([moving_picture(seed=s) for s in range(3)])
    together = DctVae().encode(frames)
    assert together.dtype == torch.bfloat16
    alone = torch.cat([DctVae().encode(f[None]) for f in frames])
    assert torch.equal(together.view(torch.int16), alone.view(torch.int16))


def test_golden_bits():
    """The same bits on every machine: a changed value here is a changed codec, and wants a new REVISION."""
    ramp = (
        torch.arange(3 * 5 * 16 * 16, dtype=torch.int64).mul(7919).remainder(256).to(torch.uint8).view(1, 3, 5, 16, 16)
    )
    bits = DctVae().encode(ramp).view(torch.int16).to(torch.int64)
    weights = torch.arange(1, bits.numel() + 1).view_as(bits)
    assert int((bits * weights).sum().remainder(2**31)) == GOLDEN


GOLDEN = 2145421408


def test_decode_then_encode_is_the_identity_on_latents():
    z = torch.randn(1, 16, 3, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    z[:, 9:14, 0] = 0  # one frame has no motion
    mean, std = (torch.tensor(v, dtype=torch.float64).view(1, -1, 1, 1, 1) for v in (dct.MEAN, dct.STD))
    raw = z * std + mean
    raw[:, 9:14, 0] = 0
    a = torch.from_numpy(dct.analysis().reshape(16, -1) * dct.scales()[:, None])
    frames = DctVae().decode_raw(raw).double()  # floats: before rounding to code values
    grouped = torch.cat([frames[:, :, :1].expand(-1, -1, 4, -1, -1), frames[:, :, 1:]], 2)
    blocks = grouped.view(1, 3, 3, 4, 2, 8, 3, 8).permute(0, 2, 4, 6, 1, 3, 5, 7).reshape(1, 3, 2, 3, -1)
    assert torch.allclose((blocks @ a.T).movedim(-1, 1), raw, atol=1e-4)


def test_what_was_decoded_survives_a_second_pass():
    vae = DctVae()
    once = vae.decode(vae.encode(moving_picture()))
    twice = vae.decode(vae.encode(once))
    assert (once.to(torch.int16) - twice.to(torch.int16)).abs().max() <= 2  # rounding to code values and to bfloat16
    assert psnr_db(once, twice) > 50


def test_smooth_footage_is_recognisable():
    frames = moving_picture()
    assert psnr_db(frames, DctVae().decode(DctVae().encode(frames))) > 30


def test_grey_stays_grey():
    luma = torch.randint(0, 256, (1, 1, 5, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    decoded = DctVae().decode(DctVae().encode(luma.expand(-1, 3, -1, -1, -1).contiguous()))
    spread = decoded.to(torch.int16).amax(1) - decoded.to(torch.int16).amin(1)
    assert spread.max() <= 1


@pytest.mark.parametrize(("shape", "nearest"), [((1, 3, 16, 32, 32), "17x32x32"), ((1, 3, 17, 36, 32), "17x32x32")])
def test_a_size_off_the_rule_names_the_nearest(shape, nearest):
    with pytest.raises(BucketMismatch, match=nearest):
        DctVae().encode(torch.zeros(shape, dtype=torch.uint8))


def test_wrong_input_is_refused():
    with pytest.raises(BucketMismatch, match="uint8"):
        DctVae().encode(torch.zeros(1, 3, 5, 8, 8))
    with pytest.raises(LatentSpaceMismatch, match="16"):
        DctVae().decode(torch.zeros(1, 4, 2, 1, 1))
    with pytest.raises(UserError, match="no weights"):
        DctVae(source="somewhere")


def test_for_space_refuses_another_revision():
    import dataclasses

    assert DctVae.for_space(DctVae().space).space == DctVae().space
    with pytest.raises(LatentSpaceMismatch, match="revision"):
        DctVae.for_space(dataclasses.replace(DctVae().space, revision="0"))


def test_psnr_of_known_error():
    a = torch.zeros(1, 3, 1, 2, 2, dtype=torch.uint8)
    assert psnr_db(a, a) == float("inf")
    assert psnr_db(a, a + 255) == pytest.approx(0)
    assert psnr_db(a, a + 1) == pytest.approx(48.1308, abs=1e-3)


def test_arithmetic_stays_where_floats_are_exact():
    filters = np.abs(dct.spatial_filters()).sum(1)
    assert 255 * filters.max() ** 2 < 2**24
    assert 255 * np.abs(dct.analysis()).reshape(16, -1).sum(1).max() < 2**53


def test_the_picture_channels_are_a_small_picture():
    """A horizontal ramp is a ramp over the three columns of each block, and on to the next block."""
    ramp = torch.arange(0, 240, 10).repeat(8, 1).expand(1, 3, 1, -1, -1).to(torch.uint8)
    picture = DctVae().encode_raw(ramp)[0, :9, 0, 0]
    rows = picture.view(3, 3, 3)  # y in the block, x in the block, block
    assert torch.equal(rows[0], rows[2])
    middle = rows[1, 1]
    assert torch.allclose(middle.diff(), middle.diff()[0].expand(2)) and middle.diff()[0] > 0


def test_statistics_of_footage(tmp_path, capsys):
    import av

    from vidpipe.vaes import dct_statistics

    with av.open(str(tmp_path / "waves.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=16)
        stream.height, stream.width, stream.pix_fmt = 64, 96, "bgr0"
        for picture in moving_picture(40, 64, 96)[0].permute(1, 2, 3, 0).numpy():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture.copy(), "rgb24").reformat(format="bgr0")))
        container.mux(stream.encode())
    (tmp_path / "notes.txt").write_text("not footage")
    dct_statistics.main(str(tmp_path))
    lines = dict(line.split(" = ") for line in capsys.readouterr().out.splitlines() if " = " in line)
    mean, std = (eval(lines[k]) for k in ("MEAN", "STD"))
    assert len(mean) == len(std) == 16
    assert mean[9:14] == (0, 0, 0, 0, 0) and mean[0] == mean[2] == mean[6] == mean[8]
    luma = moving_picture(40, 64, 96)[0].double().mean((1, 2, 3)) @ torch.tensor(dct.RGB_TO_YCBCR[0]).double() / 256
    share = dct.spatial_filters()[1].sum() / np.abs(dct.spatial_filters()[1]).sum()
    assert mean[4] == pytest.approx(float(luma) * share**2, rel=0.1)
    assert 40 * share**2 < std[4] < 70 * share**2
