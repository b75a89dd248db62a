"""What the GPU back ends do besides decoding, on the CPU: orientation, chroma, and DALI's frames put to the proof."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest
import torch

from vidpipe.media.convert import Converter
from vidpipe.media.dali import DaliReader
from vidpipe.media.decode import open_video
from vidpipe.media.pyav import PyAvReader
from vidpipe.media.reference import ClipReference
from vidpipe.media.tone_map import to_sdr_torch
from vidpipe.media.torchcodec_cuda import TorchcodecCudaReader
from vidpipe.vaes.base import psnr_db


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("hflip", [False, True])
def test_mirrored_frames_of_torchcodec_are_put_right(rotation, hflip, tmp_path, footage):
    """torchcodec's CPU decoder turns frames by the same function of the display matrix as its NVDEC interface."""
    decoders = pytest.importorskip("torchcodec.decoders")
    frames = [footage.draw(k) for k in range(3)]
    path = str(
        footage.encode(tmp_path / "a.mp4", frames=frames, before=lambda s: s.set_display_rotation(-rotation, hflip))
    )
    with open_video(path, decoder="pyav") as reader:
        facts, config = reader.facts, reader._config
        expected = next(reader.scan()).frames_THWC
    turned = decoders.VideoDecoder(path).get_frames_in_range(0, 3).data
    upright = TorchcodecCudaReader(path, facts=facts, config=config)._square(turned)
    np.testing.assert_array_equal(upright.permute(0, 2, 3, 1).numpy(), expected)


def replicated(frame: av.VideoFrame) -> np.ndarray:
    """RGB in [0, 1] of 10-bit limited BT.2020 4:2:0 by formula, each chroma sample shown four times, as NVDEC's."""
    y, u, v = (
        np.frombuffer(p, np.uint16).reshape(-1, p.line_size // 2)[: p.height, : p.width].astype(float)
        for p in frame.planes
    )
    u, v = (c.repeat(2, 0).repeat(2, 1) for c in (u, v))
    y, u, v = (y - 64) / 876, (u - 512) / 896, (v - 512) / 896
    red, blue = y + 2 * (1 - 0.2627) * v, y + 2 * (1 - 0.0593) * u
    green = (y - 0.2627 * red - 0.0593 * blue) / (1 - 0.2627 - 0.0593)
    return np.stack([red, green, blue]).clip(0, 1)


@pytest.mark.parametrize("transfer", [None, "smpte2084", "arib-std-b67"])
def test_ten_bits_are_converted_as_on_a_gpu(transfer, footage):
    frame = av.VideoFrame.from_ndarray(footage.draw(37, 256, 320), "rgb24")
    frame = frame.reformat(format="yuv420p10le", dst_colorspace=9)
    frame.colorspace, frame.color_range = 9, 1
    ours = np.empty((256, 320, 3), np.uint8)
    Converter((256, 320), transfer, "bt2020").to_rgb(frame, ours)
    rgb = replicated(frame)
    if transfer:
        theirs = to_sdr_torch(torch.from_numpy(rgb)[None], transfer, "bt2020")[0].permute(1, 2, 0).numpy()
    else:
        theirs = (rgb * 255).round().transpose(1, 2, 0)
    assert psnr_db(torch.from_numpy(ours), torch.from_numpy(theirs)) >= 45


class Dali(DaliReader):
    """DALI's decoder played by PyAV, with frames that are `late` by so many, or another matrix's."""

    late = 0
    tint = 0

    def _decoded(self, where):
        with PyAvReader(self._uri, facts=self.facts, config=self._config) as reader:
            times = self.index().shown()
            picked = times[np.minimum(where + self.late, len(times) - 1)]
            clip = ClipReference(
                uri=self._uri, stream_index=0, start_pts=0, end_pts=int(times[-1]) + 1, time_base=self.facts.time_base
            )
            frames = reader.frames(clip, picked).frames_TCHW
        frames[:, 0] = (frames[:, 0].int() + self.tint).clamp(0, 255).to(torch.uint8)
        return frames


@pytest.mark.parametrize(("late", "tint", "who"), [(0, 0, "dali"), (0, 3, "dali"), (1, 0, "pyav"), (0, 12, "pyav")])
def test_dali_is_believed_once_its_frame_is_pyav_s(late, tint, who, recipe_file, monkeypatch, footage):
    uri = str(recipe_file("h264_closed"))
    with open_video(uri, decoder="pyav") as plain:
        facts, config = plain.facts, plain._config
    monkeypatch.setattr(Dali, "late", late)
    monkeypatch.setattr(Dali, "tint", tint)
    with Dali(uri, facts=facts, config=config) as reader:
        clip = ClipReference(
            uri=uri, stream_index=0, start_pts=0, end_pts=facts.end_pts, time_base=Fraction(facts.time_base)
        )
        times = reader.index().shown()[10:20]
        frames = reader.frames(clip, times).frames_TCHW.permute(0, 2, 3, 1).numpy()
        assert [footage.number_of(f) for f in frames] == list(range(10, 20))
        assert reader.decoder_name == who and ("not PyAV's" in reader.problem) == (who == "pyav")
        assert reader.eligible() == (who == "dali")


def test_dali_knows_one_matrix(recipe_file):
    from dataclasses import replace

    uri = str(recipe_file("h264_closed"))
    with open_video(uri, decoder="pyav") as plain:
        facts, config = plain.facts, plain._config
    found = {
        name: Dali(uri, facts=replace(facts, color_space=name), config=config).eligible()
        for name in (None, "smpte170m", "bt709", "bt2020nc")
    }
    assert found == {None: True, "smpte170m": True, "bt709": False, "bt2020nc": False}
