"""HDR to SDR: the standards' own numbers, and the map as a whole."""

from __future__ import annotations

import numpy as np
import pytest

from vidpipe.media.decode import DecodeConfig, open_video
from vidpipe.media.errors import MediaError
from vidpipe.media.tone_map import (
    SDR_PEAK_NITS,
    ToneMap,
    eetf,
    hlg_to_scene,
    nits_to_pq,
    ootf_gain,
    pq_to_nits,
    to_sdr_torch,
)


def test_pq_is_st_2084():
    """Code points of ST 2084, as BT.2408 lists them."""
    nits = np.array([0.0, 1.0, 100.0, 203.0, 1000.0, 4000.0, 10000.0])
    signal = np.array([0.0, 0.1499, 0.5081, 0.5807, 0.7518, 0.9026, 1.0])
    assert np.abs(nits_to_pq(nits) - signal).max() < 1e-4
    assert np.allclose(pq_to_nits(nits_to_pq(nits)), nits, rtol=1e-9, atol=1e-6)


def test_hlg_is_bt_2100():
    """Half signal is 1/12 of scene light; 75% is 203 nits at 1,000 (BT.2408's reference white)."""
    assert hlg_to_scene(np.array([0.0, 0.5, 1.0])) == pytest.approx([0, 1 / 12, 1], abs=1e-7)
    scene = hlg_to_scene(np.array(0.75))
    assert float(scene * ootf_gain(scene)) == pytest.approx(203, abs=0.5)


def test_tone_curve_keeps_darks_and_ends_at_its_peak():
    assert eetf(np.array([0.0, 5.0, 20.0])) == pytest.approx([0, 5, 20], rel=1e-6)
    assert eetf(np.array([1000.0, 4000.0])) == pytest.approx([SDR_PEAK_NITS] * 2, rel=1e-6)
    assert (np.diff(eetf(np.linspace(0, 1000, 500))) > 0).all()


@pytest.mark.parametrize("transfer", ["smpte2084", "arib-std-b67"])
def test_greys_stay_grey_and_in_order(transfer):
    ramp = np.linspace(0, 65535, 600).astype(np.uint16)
    out = ToneMap(transfer).to_sdr(np.repeat(ramp[None, :, None], 3, axis=2))[0].astype(int)
    assert np.ptp(out, axis=1).max() <= 1  # BT.2020's white is BT.709's
    assert (np.diff(out[:, 0]) >= 0).all() and out[0, 0] == 0 and out[-1, 0] == 255


def test_known_pixel_by_the_formula():
    """10 nits of grey are below the knee: V = (10 / 203) ^ (1 / 2.4)."""
    level = round(float(nits_to_pq(np.array(10.0))) * 65535)
    out = ToneMap("smpte2084").to_sdr(np.full((1, 1, 3), level, np.uint16))
    assert out[0, 0].tolist() == [round(255 * (10 / 203) ** (1 / 2.4))] * 3


def test_saturated_red_leaves_the_gamut_by_clipping():
    level = round(float(nits_to_pq(np.array(60.0))) * 65535)
    red = np.zeros((1, 1, 3), np.uint16)
    red[..., 0] = level
    assert ToneMap("smpte2084").to_sdr(red)[0, 0, 1:].tolist() == [0, 0]
    assert ToneMap("smpte2084", "bt709").to_sdr(red)[0, 0].tolist() == [round(255 * (60 / 203) ** (1 / 2.4)), 0, 0]


@pytest.mark.parametrize("transfer", ["smpte2084", "arib-std-b67"])
def test_formula_and_tables_agree(transfer):
    torch = pytest.importorskip("torch")
    pixels = np.random.default_rng(0).integers(0, 65536, (40, 50, 3)).astype(np.uint16)
    table = ToneMap(transfer).to_sdr(pixels)
    given = torch.from_numpy(pixels.astype(np.float32) / 65535).permute(2, 0, 1)[None]
    formula = to_sdr_torch(given, transfer)[0].permute(1, 2, 0).numpy()
    assert np.abs(table.astype(int) - formula.astype(int)).max() <= 2


def hdr_file(tmp_path, footage):
    def tag(stream):
        stream.codec_context.color_trc, stream.codec_context.color_primaries = 16, 9
        stream.codec_context.colorspace, stream.codec_context.color_range = 9, 1

    return footage.encode(
        tmp_path / "hdr.mp4",
        frames=[footage.draw(k) for k in range(4)],
        codec="libx265",
        pix_fmt="yuv420p10le",
        options={"x265-params": "colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc:log-level=none:pools=1"},
        before=tag,
    )


def test_hdr_is_mapped_or_refused_by_the_recipe(tmp_path, footage):
    path = str(hdr_file(tmp_path, footage))
    with open_video(path) as reader:
        assert reader.facts.hdr and reader.facts.color_transfer == "smpte2084"
        first = next(reader.scan()).frames_THWC[0]
    # 220 of 255 in PQ is 5,000 nits and clips to white; 30 is less than a nit; 128 is 92 nits
    assert footage.number_of(first) == 0 and first[10, 10].max() < 30
    mid = first[60:, :, :].mean()
    assert 60 < mid < 250
    with pytest.raises(MediaError, match="smpte2084 is high dynamic range") as caught:
        open_video(path, config=DecodeConfig(hdr="reject"))
    assert caught.value.reason == "hdr_rejected"
