"""NVDEC against the CPU: the same frames, PSNR of at least 40 dB; and the hazards of reused hardware decoders.

Run with `pytest -m gpu tests/vidpipe/media` on a machine with an NVIDIA GPU and torchcodec 0.17.
"""

from __future__ import annotations

import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from vidpipe.media import choice
from vidpipe.media.dali import LUMA
from vidpipe.media.decode import open_video
from vidpipe.media.nvdec import engines
from vidpipe.media.packets import index_of
from vidpipe.media.reference import ClipReference

pytestmark = pytest.mark.gpu

NVDEC_FILES = [
    "h264_closed",
    "h264_open_gop",
    "h264_pyramid_mkv",
    "hevc_open_gop",
    "hevc_10bit_mkv",
    "vp9_altref",
    "av1",
]
CPU_FILES = ["h264_444_cavlc", "mpeg2_ts", "prores", "ffv1", "h264_intra_refresh"]


def clip_of(facts, **more) -> ClipReference:
    return ClipReference(
        uri=facts.uri, stream_index=facts.stream_index, start_pts=facts.start_pts, end_pts=facts.end_pts,
        time_base=facts.time_base, **more,
    )  # fmt: skip


def decoded(uri: str, decoder: str, device: str, step: int = 1, **more):
    """Frames [T, H, W, 3] on the host, and the name of who gave them."""
    with open_video(uri, decoder=decoder, device=device) as reader:
        clip = clip_of(reader.facts)
        got = reader.frames(clip, reader.frame_pts(clip)[::step], **more)
        print(f"{decoder} on {device}: by {reader.decoder_name}", getattr(reader, "problem", ""))
        assert got.frames_TCHW.device.type == device.partition(":")[0]
        return got.frames_TCHW.permute(0, 2, 3, 1).cpu().numpy(), reader.decoder_name


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    error = float(((a.astype(float) - b.astype(float)) ** 2).mean())
    return math.inf if not error else 10 * math.log10(255**2 / error)


@pytest.fixture(scope="module")
def big(tmp_path_factory, footage):
    """Footage large enough for every NVDEC (128 x 128 and up), by codec: 40 numbered pictures of 256 x 320."""
    folder = tmp_path_factory.mktemp("nvdec")
    recipes = {
        "h264": ("libx264", {"g": "12", "bf": "3"}),
        "hevc": ("libx265", {"x265-params": "keyint=12:bframes=3:log-level=none:pools=1"}),
        "av1": ("libsvtav1", {"g": "16", "preset": "8", "svtav1-params": "lp=1"}),
        "vp9": ("libvpx-vp9", {"g": "16", "deadline": "realtime", "cpu-used": "8"}),
    }

    def get(name: str) -> str:
        codec, options = recipes[name]
        path = folder / f"{name}.mkv"
        if not path.exists():
            frames = [footage.draw(k, 256, 320) for k in range(40)]
            footage.encode(path, frames=frames, codec=codec, options={"crf": "20", **options})
        return str(path)

    return get


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1", "vp9"])
@pytest.mark.parametrize("decoder", ["torchcodec-cuda", "dali"])
def test_nvdec_gives_the_cpu_s_frames(codec, decoder, big, footage):
    if decoder == "dali" and choice_problem("dali"):
        pytest.xfail("DALI is not installed here")
    uri = big(codec)
    gpu, name = decoded(uri, decoder, "cuda")
    cpu, _ = decoded(uri, "pyav", "cpu")
    assert name == (decoder if engines(codec) else "pyav"), "by hardware exactly where the GPU has it"
    assert [footage.number_of(f) for f in cpu] == list(range(40)), "the encoder keeps what tells frames apart"
    assert [footage.number_of(f) for f in gpu] == list(range(40))
    if name == "dali":  # which interpolates chroma
        assert psnr(gpu, cpu) >= 32
        gpu, cpu = gpu @ np.array(LUMA), cpu @ np.array(LUMA)
    assert psnr(gpu, cpu) >= 40


def choice_problem(name: str) -> str:
    from vidpipe.media import doctor

    return doctor.dali_problem() if name == "dali" else doctor.nvdec_problem()


def test_auto_takes_nvdec():
    assert choice_problem("nvdec") == ""
    assert choice.gpu_default()[0] == "torchcodec-cuda"


@pytest.mark.parametrize("name", CPU_FILES)
def test_what_nvdec_lacks_or_cannot_seek_falls_to_the_cpu_and_says_so(name, recipe_file):
    uri = str(recipe_file(name))
    gpu, who = decoded(uri, "auto", "cuda")
    cpu, _ = decoded(uri, "pyav", "cpu")
    assert who == "pyav" and np.array_equal(gpu, cpu)


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_crop_and_size_on_the_device(codec, big):
    uri = big(codec)
    more = {"size_hw": (96, 160), "crop_xywh": (16, 8, 280, 240), "step": 5}
    gpu, cpu = decoded(uri, "auto", "cuda", **more)[0], decoded(uri, "pyav", "cpu", **more)[0]
    assert gpu.shape == (8, 96, 160, 3) and psnr(gpu, cpu) >= 40


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_parts_of_the_index_give_the_same_bits(codec, tmp_path, footage):
    """Clips far apart, each by its part of the index as a dataset keeps it, against the whole index."""
    frames = [footage.draw(k % 200, 256, 320) for k in range(300)]
    recipes = {"h264": {"bf": "3", "g": "24"}, "hevc": {"x265-params": "keyint=24:open-gop=0:log-level=none:pools=1"}}
    coder = {"h264": "libx264", "hevc": "libx265"}[codec]
    uri = str(footage.encode(tmp_path / f"{codec}.mp4", frames=frames, codec=coder, options=recipes[codec]))
    with open_video(uri, device="cuda") as reader:
        facts, index = reader.facts, reader.index()
        tick = (facts.end_pts - facts.start_pts) // 300
        spans = [(facts.start_pts + a * tick, facts.start_pts + b * tick) for a, b in ((5, 30), (110, 141), (250, 300))]
        clips = [dataclasses.replace(clip_of(facts), start_pts=a, end_pts=b) for a, b in spans]
        expected = [reader.frames(clip, reader.frame_pts(clip)[::2]).frames_TCHW for clip in clips]
        assert reader.decoder_name == "torchcodec-cuda"
    packets = index_of([{"packets": index.part(*span).to_bytes()} for span in spans])
    with open_video(uri, device="cuda", facts=facts, packets=packets) as reader:
        for k in (2, 0, 1):
            assert reader.frames(clips[k], reader.frame_pts(clips[k])[::2]).frames_TCHW.equal(expected[k])
        assert reader.decoder_name == "torchcodec-cuda"


def test_pass_on_the_device_sees_every_frame(big, footage):
    with open_video(big("h264"), device="cuda") as reader:
        batches = list(reader.scan(max_short_side=64))
        assert reader.decoder_name == "torchcodec-cuda"
    frames = np.concatenate([b.frames_THWC for b in batches])
    assert frames.shape == (40, 64, 80, 3)
    assert [footage.number_of(f) for f in frames] == list(range(40))
    with open_video(big("h264"), decoder="pyav") as reader:
        cpu = list(reader.scan())
    assert np.concatenate([b.pts for b in batches]).tolist() == np.concatenate([b.pts for b in cpu]).tolist()


@pytest.mark.parametrize("rotation", [90, 180])
@pytest.mark.parametrize("hflip", [False, True])
def test_orientation_on_the_device(rotation, hflip, tmp_path, footage):
    frames = [footage.draw(k, 256, 320) for k in range(4)]
    path = str(
        footage.encode(
            tmp_path / "turned.mp4", frames=frames, before=lambda s: s.set_display_rotation(-rotation, hflip=hflip)
        )
    )
    gpu, cpu = decoded(path, "auto", "cuda")[0], decoded(path, "pyav", "cpu")[0]
    assert gpu.shape == cpu.shape and psnr(gpu, cpu) >= 40


def test_hdr_is_mapped_alike(tmp_path, footage):
    def tag(stream):
        stream.codec_context.color_trc, stream.codec_context.color_primaries = 16, 9
        stream.codec_context.colorspace, stream.codec_context.color_range = 9, 1

    params = "colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc:log-level=none:pools=1"
    path = str(
        footage.encode(
            tmp_path / "hdr.mp4", frames=[footage.draw(k, 256, 320) for k in range(4)], codec="libx265",
            pix_fmt="yuv420p10le", options={"x265-params": params}, before=tag,
        )
    )  # fmt: skip
    gpu, cpu = decoded(path, "auto", "cuda")[0], decoded(path, "pyav", "cpu")[0]
    assert psnr(gpu, cpu) >= 40


def test_a_reused_decoder_shows_no_other_file_s_crop(tmp_path, footage):
    """Files that share their coded size (multiples of 16) but not their picture: 272 x 304 inside 272 x 304 to 320."""
    for turn in range(3):
        for height, width in ((264, 310), (272, 304), (258, 306)):
            path = tmp_path / f"{height}x{width}.mp4"
            frames = [footage.draw(turn * 8 + k, height, width) for k in range(8)]
            footage.encode(path, frames=frames, options={"crf": "15"})
            gpu, cpu = decoded(str(path), "auto", "cuda")[0], decoded(str(path), "pyav", "cpu")[0]
            assert gpu.shape == (8, height, width, 3)
            assert [footage.number_of(f) for f in gpu] == list(range(turn * 8, turn * 8 + 8))
            assert psnr(gpu, cpu) >= 38


def test_a_broken_file_does_not_poison_the_next(big, tmp_path, footage):
    good = big("h264")
    clean, _ = decoded(good, "auto", "cuda")
    data = bytearray(Path(good).read_bytes())
    rng = np.random.default_rng(0)
    for at in rng.integers(len(data) // 4, len(data) - 100, 60):
        data[at : at + 8] = bytes(8)
    (tmp_path / "bad.mkv").write_bytes(bytes(data))
    for _ in range(3):
        with open_video(str(tmp_path / "bad.mkv"), device="cuda") as reader:
            clip = clip_of(reader.facts)
            got = reader.frames(clip, reader.frame_pts(clip))
            assert len(got) == len(got.damaged)
        again, _ = decoded(good, "auto", "cuda")
        assert np.array_equal(again, clean)


def test_a_clip_known_to_be_damaged_goes_to_the_cpu(big):
    with open_video(big("h264"), device="cuda") as reader:
        clip = clip_of(reader.facts, intact=False)
        reader.frames(clip, reader.frame_pts(clip)[:2])
        assert reader.decoder_name == "pyav"


def test_many_threads_decode_alike(big):
    uris = [big(c) for c in ("h264", "hevc", "av1", "vp9")]
    alone = {u: decoded(u, "auto", "cuda")[0] for u in uris}
    with ThreadPoolExecutor(8) as pool:
        for uri, frames in pool.map(lambda u: (u, decoded(u, "auto", "cuda")[0]), uris * 6):
            assert np.array_equal(frames, alone[uri])
