"""Crop and resize: exact where nothing is resampled, near PIL's bicubic where it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from schemas.errors import UserError
from vidpipe.media import resize
from vidpipe.media.resize import resize_crop


def frames(count: int = 3, height: int = 40, width: int = 60) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, 3, height, width), dtype=np.uint8))


def test_crop_alone_copies_pixels():
    given = frames()
    got = resize_crop(given, (7, 5, 20, 11), None)
    assert torch.equal(got, given[:, :, 5:16, 7:27]) and got.is_contiguous()


def test_same_size_changes_nothing():
    given = frames()
    assert torch.equal(resize_crop(given, None, (40, 60)), given)


@pytest.mark.parametrize("size_hw", [(20, 30), (17, 41), (80, 90)])
def test_agrees_with_pil_bicubic(size_hw):
    given = frames(2)
    got = resize_crop(given, None, size_hw)
    for frame, out in zip(given, got):
        image = Image.fromarray(frame.permute(1, 2, 0).numpy())
        expected = np.asarray(image.resize(size_hw[::-1], Image.Resampling.BICUBIC))
        assert np.abs(out.permute(1, 2, 0).numpy().astype(int) - expected.astype(int)).max() <= 1


def test_flat_stays_flat():
    flat = torch.full((1, 3, 64, 64), 77, dtype=torch.uint8)
    assert (resize_crop(flat, (1, 1, 50, 50), (20, 24)) == 77).all()


def test_chunks_change_nothing(monkeypatch):
    whole = resize_crop(frames(9), None, (16, 16))
    monkeypatch.setattr(resize, "CHUNK_BYTES", 1)
    assert torch.equal(resize_crop(frames(9), None, (16, 16)), whole)


@pytest.mark.parametrize("crop", [(-1, 0, 4, 4), (0, 0, 61, 4), (0, 37, 4, 4), (0, 0, 0, 4)])
def test_crop_outside_is_refused(crop):
    with pytest.raises(UserError, match="not inside 60x40"):
        resize_crop(frames(), crop, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size_hw", [(20, 30), (17, 41), (80, 90)])
def test_the_gpu_way_agrees_with_the_cpu_way(dtype, size_hw):
    given = frames(2)
    got = resize.resize_by_matrices(given, size_hw, dtype)
    assert (got.int() - resize_crop(given, None, size_hw).int()).abs().max() <= 2


@pytest.mark.gpu
def test_gpu_is_within_two_code_values():
    given = frames(4, 270, 480)
    for size_hw in ((96, 160), (480, 832)):
        cpu, gpu = resize_crop(given, None, size_hw), resize_crop(given.cuda(), None, size_hw).cpu()
        assert (cpu.int() - gpu.int()).abs().max() <= 2


@pytest.mark.gpu
@pytest.mark.parametrize("size_hw", [(96, 160), (480, 832), (271, 100)])
def test_both_gpu_ways_agree_on_interleaved_frames(size_hw):
    """As torchcodec gives them: channels last."""
    given = frames(4, 270, 480).cuda().contiguous(memory_format=torch.channels_last)
    by_taps = resize_crop(given, (3, 1, 470, 260), size_hw)
    by_matrices = resize.resize_by_matrices(given[:, :, 1:261, 3:473], size_hw, torch.float16)
    assert by_taps.is_contiguous() and (by_taps.int() - by_matrices.int()).abs().max() <= 2
