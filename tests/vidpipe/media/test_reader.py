"""What readers give: sizes, durations, geometry, pixel formats, interlaced and odd footage, by known pictures."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from schemas.errors import UserError
from vidpipe.media.decode import DecodeConfig, Glance, Look, open_video
from vidpipe.media.errors import MediaError
from vidpipe.media.reference import ClipReference


def clip_of(reader, crop=None, intact=False) -> ClipReference:
    facts = reader.facts
    return ClipReference(
        uri=facts.uri, stream_index=facts.stream_index, start_pts=facts.start_pts, end_pts=facts.end_pts,
        time_base=facts.time_base, crop_xywh=crop, intact=intact,
    )  # fmt: skip


def numbers(batches, footage) -> list[int]:
    return [footage.number_of(frame) for batch in batches for frame in batch.frames_THWC]


def close(a: np.ndarray, b: np.ndarray, limit: float = 12.0) -> bool:
    """Mean difference small enough for the same picture after lossy coding."""
    return a.shape == b.shape and float(np.abs(a.astype(int) - b.astype(int)).mean()) < limit


@pytest.fixture(scope="module")
def plain(tmp_path_factory, footage) -> str:
    path = tmp_path_factory.mktemp("plain") / "plain.mp4"
    return str(footage.encode(path, frames=[footage.draw(k) for k in range(50)], options={"crf": "10", "bf": "2"}))


class TestScan:
    def test_sizes(self, plain, footage):
        with open_video(plain) as reader:
            assert next(reader.scan()).frames_THWC.shape == (32, 64, 96, 3)
            assert next(reader.scan(max_short_side=32)).frames_THWC.shape == (32, 32, 48, 3)
            assert next(reader.scan(max_short_side=500)).frames_THWC.shape == (32, 64, 96, 3)
            small = list(reader.scan(size_hw=(48, 64), batch_size=7))
        assert [len(b) for b in small] == [7] * 7 + [1]
        assert numbers(small, footage) == list(range(50))

    def test_scaled_frames_are_the_area_average_of_whole_ones(self, plain):
        with open_video(plain) as reader:
            whole, small = next(reader.scan()).frames_THWC, next(reader.scan(max_short_side=32)).frames_THWC
        mean = whole.reshape(32, 32, 2, 48, 2, 3).mean(axis=(2, 4))
        assert np.abs(mean - small).mean() < 2.5

    def test_times_and_durations(self, plain):
        with open_video(plain) as reader:
            batches = list(reader.scan())
            base = reader.facts.time_base
        pts, durations = np.concatenate([b.pts for b in batches]), np.concatenate([b.durations for b in batches])
        assert [Fraction(int(p)) * base for p in pts] == [Fraction(k, 25) for k in range(50)]
        assert {Fraction(int(d)) * base for d in durations} == {Fraction(1, 25)}
        assert pts[-1] + durations[-1] == reader.facts.end_pts

    def test_a_frame_lasts_until_the_next_but_no_gap_is_a_shot(self, tmp_path, footage):
        pts = [0, 40, 80, 1080, 200_000, 200_040]
        frames = [footage.draw(k) for k in range(6)]
        path = footage.encode(tmp_path / "vfr.mkv", frames=frames, pts=pts, time_base=Fraction(1, 1000))
        with open_video(str(path)) as reader:
            (batch,) = reader.scan()
            assert reader.facts.vfr is True
        assert batch.pts.tolist() == pts
        assert batch.durations.tolist()[:5] == [40, 40, 1000, 60_000, 40]

    def test_a_glance_gives_thumbnails_of_all_and_what_is_asked_for(self, plain, footage):
        asked = []

        def look(pts):
            asked.append(pts)
            return Look(len(asked) % 5 == 1) + (len(asked) % 10 == 1)

        with open_video(plain) as reader:
            whole = list(reader.scan())
            glance = Glance(thumbnail_side=32, grey_side=48, look=look)
            batches = list(reader.scan(glance=glance, batch_size=20))
        assert asked == np.concatenate([b.pts for b in whole]).tolist()
        thumbnails = np.concatenate([b.glanced.thumbnails_THWC for b in batches])
        assert thumbnails.shape == (50, 32, 48, 3) and [footage.number_of(f) for f in thumbnails] == list(range(50))
        grey = {20 * n + k: g for n, b in enumerate(batches) for k, g in b.glanced.grey_HW.items()}
        assert sorted(grey) == list(range(0, 50, 5)) and {g.shape for g in grey.values()} == {(48, 72)}
        assert all(footage.number_of(g[..., None]) == k for k, g in grey.items())
        full = {20 * n + k: f for n, b in enumerate(batches) for k, f in zip(b.glanced.full, b.frames_THWC)}
        frames = np.concatenate([b.frames_THWC for b in whole])
        assert sorted(full) == list(range(0, 50, 10))
        assert all(np.array_equal(frame, frames[k]) for k, frame in full.items())
        assert repr(batches[0]) == f"FrameBatch(frames=2 of 20, pts=0..{batches[0].pts[-1]}, damaged=0)"

    def test_a_glance_is_upright(self, tmp_path, footage):
        path = footage.encode(
            tmp_path / "turned.mp4",
            frames=[footage.draw(k) for k in range(3)],
            before=lambda s: s.set_display_rotation(-90, hflip=True),
        )
        with open_video(str(path)) as reader:
            frames = next(reader.scan()).frames_THWC
            glance = Glance(thumbnail_side=64, grey_side=64, look=lambda pts: Look.FULL)
            (batch,) = reader.scan(glance=glance)
        assert batch.glanced.thumbnails_THWC.shape == frames.shape == (3, 96, 64, 3)
        assert np.abs(batch.glanced.thumbnails_THWC.astype(int) - frames).mean() < 3
        assert np.abs(batch.glanced.grey_HW[0].astype(int) - frames[0].mean(axis=2)).mean() < 30
        assert np.array_equal(batch.frames_THWC[2], frames[2])

    @pytest.mark.parametrize("codec", ["libx264", "libx265"])
    def test_a_coarse_pass_leaves_anchor_pictures_alone_and_others_nearly(self, codec, tmp_path, footage, monkeypatch):
        """No drift: between the others, pictures are equal; and those differ by little at a smaller size."""
        frames = [footage.draw(k, 192, 288) for k in range(30)]
        options = {"crf": "23", "bf": "3", "x265-params": "bframes=3:log-level=none:pools=1:frame-threads=1"}
        path = str(footage.encode(tmp_path / "a.mp4", frames=frames, codec=codec, options=options))
        with open_video(path) as reader:
            coarse = np.concatenate([b.frames_THWC for b in reader.scan(max_short_side=128)])
            monkeypatch.setattr("vidpipe.media.pyav.COARSE", 100)
            whole = np.concatenate([b.frames_THWC for b in reader.scan(max_short_side=128)]).astype(int)
        error = ((coarse - whole) ** 2).mean(axis=(1, 2, 3))
        assert 5 <= (error == 0).sum() < 30
        assert error.max() < 255**2 / 10**4  # 40 dB, on a drawn picture of hard edges

    def test_only_passes_that_scale_down_are_coarse(self, plain, monkeypatch):
        import vidpipe.media.pyav as module

        real, seen = module.prepare, []
        monkeypatch.setattr(module, "prepare", lambda *a, coarse: seen.append(coarse) or real(*a, coarse=coarse))
        with open_video(plain, decoder="pyav") as reader:
            for side in (None, 64, 48, 40):
                next(reader.scan(max_short_side=side))
            reader.frames(clip_of(reader), [0], size_hw=(8, 8))
            reader.frame_pts(clip_of(reader))
        assert seen[:4] == [False, False, False, True] and not any(seen[4:]) and len(seen) > 4

    def test_what_was_decoded_before_reading_failed_is_given(self, plain, monkeypatch):
        import vidpipe.media.passes as module

        real, count = module._next, itertools.count()

        def fails(*given):
            if next(count) == 12:
                raise MediaError("io_error", "plain.mp4: reading failed")
            return real(*given)

        monkeypatch.setattr(module, "_next", fails)
        found = 0
        with open_video(plain) as reader, pytest.raises(MediaError, match="reading failed"):
            for batch in reader.scan():
                found += len(batch)
        assert 8 <= found <= 12

    def test_asking_twice_is_refused(self, plain):
        with open_video(plain) as reader, pytest.raises(UserError, match="not both"):
            next(reader.scan(size_hw=(4, 4), max_short_side=3))

    def test_repr_prints_shapes(self, plain):
        with open_video(plain) as reader:
            assert repr(next(reader.scan(batch_size=2))) == "FrameBatch(frames=(2, 64, 96, 3), pts=0..512, damaged=0)"
            frames = reader.frames(clip_of(reader), [0])
        assert repr(frames) == "ClipFrames(frames=(1, 3, 64, 96), device=cpu, damaged=0)"


class TestFrames:
    def test_repeats_crop_and_size(self, plain, footage):
        with open_video(plain) as reader:
            clip = clip_of(reader)
            pts = reader.frame_pts(clip)
            got = reader.frames(clip, [pts[3], pts[3], pts[40]])
            assert [footage.number_of(f.permute(1, 2, 0).numpy()) for f in got.frames_TCHW] == [3, 3, 40]
            cropped = reader.frames(clip, pts[[3, 40]], crop_xywh=(8, 4, 40, 20)).frames_TCHW
            assert (cropped == got.frames_TCHW[1:, :, 4:24, 8:48]).all()
            sized = reader.frames(clip, pts[[3]], crop_xywh=(8, 4, 40, 20), size_hw=(10, 20)).frames_TCHW
            assert tuple(sized.shape) == (1, 3, 10, 20)
            mine = reader.frames(clip_of(reader, crop=(8, 4, 40, 20)), pts[[3]], crop_xywh=(1, 2, 3, 4)).frames_TCHW
            assert (mine == cropped[:1, :, 2:6, 1:4]).all()

    def test_what_is_not_a_time_of_the_span_is_refused(self, plain):
        with open_video(plain) as reader:
            clip = clip_of(reader)
            for pts in ([-1], [clip.end_pts], [512, 0], []):
                with pytest.raises(UserError):
                    reader.frames(clip, pts)

    def test_time_between_frames_shows_the_one_on_screen_and_says_so(self, plain, footage):
        with open_video(plain) as reader:
            got = reader.frames(clip_of(reader), [512 * 4, 512 * 4 + 100])
        assert got.damaged.tolist() == [False, True]
        assert [footage.number_of(f.permute(1, 2, 0).numpy()) for f in got.frames_TCHW] == [4, 4]

    def test_small_cache_changes_nothing(self, plain):
        with open_video(plain) as reader:
            kept = reader.frames(clip_of(reader), reader.frame_pts(clip_of(reader)))
        with open_video(plain, config=DecodeConfig(cache_bytes=0)) as reader:
            again = reader.frames(clip_of(reader), reader.frame_pts(clip_of(reader)))
        assert (kept.frames_TCHW == again.frames_TCHW).all()

    def test_span_without_frames(self, plain):
        with open_video(plain) as reader:
            span = ClipReference(uri=plain, stream_index=0, start_pts=1, end_pts=5, time_base=reader.facts.time_base)
            assert reader.frame_pts(span).tolist() == []
            with pytest.raises(MediaError) as caught:
                reader.frames(span, [2])
            assert caught.value.reason == "no_frames"


PIXEL_FORMATS = [
    ("libx264", "yuv420p", 12), ("libx264", "yuv422p", 12), ("libx264", "yuv444p", 12), ("libx264", "gray", 64),
    ("libx264", "yuv420p10le", 12), ("libx264", "yuv422p10le", 12), ("libx264", "yuv444p10le", 12),
    ("libx265", "yuv420p12le", 12), ("libx265", "yuv444p12le", 12), ("libx264rgb", "rgb24", 12),
    ("ffv1", "yuva420p", 12), ("qtrle", "argb", 12), ("png", "rgba", 12), ("ffv1", "gray10le", 64),
    ("ffv1", "gbrp12le", 12), ("libx264", "nv12", 12), ("mjpeg", "yuvj420p", 12), ("prores_ks", "yuva444p10le", 12),
]  # fmt: skip


@pytest.mark.parametrize(("codec", "pix_fmt", "limit"), PIXEL_FORMATS)
def test_pixel_formats_show_the_same_picture(codec, pix_fmt, limit, tmp_path, footage):
    options = {"crf": "8"} if codec.startswith("libx26") and "rgb" not in codec else {}
    if codec == "libx265":
        options["x265-params"] = "log-level=none:pools=1"
    frames = [footage.draw(k) for k in range(3)]
    path = footage.encode(tmp_path / "f.mov" if codec != "ffv1" else tmp_path / "f.mkv", frames=frames, codec=codec,
                          pix_fmt=pix_fmt, options=options)  # fmt: skip
    with open_video(str(path), decoder="pyav") as reader:
        passed = np.concatenate([b.frames_THWC for b in reader.scan()])
        small = np.concatenate([b.frames_THWC for b in reader.scan(max_short_side=32)])
        clip = clip_of(reader)
        exact = reader.frames(clip, reader.frame_pts(clip)).frames_TCHW.permute(0, 2, 3, 1).numpy()
    assert numbers_of(passed, footage) == numbers_of(small, footage) == [0, 1, 2]
    assert close(passed, np.stack(frames), limit) and np.array_equal(passed, exact)


def numbers_of(frames_THWC, footage) -> list[int]:
    return [footage.number_of(f) for f in frames_THWC]


@pytest.mark.parametrize(("height", "width"), [(63, 95), (33, 34), (64, 97), (35, 64)])
def test_odd_sizes(height, width, tmp_path, footage):
    frames = [footage.draw(k, height, width) for k in range(3)]
    path = footage.encode(tmp_path / "odd.mkv", frames=frames, codec="libvpx-vp9", options={"lossless": "1"})
    with open_video(str(path)) as reader:
        (batch,) = reader.scan()
        (small,) = reader.scan(max_short_side=17)
    assert close(batch.frames_THWC, np.stack(frames))
    assert numbers_of(batch.frames_THWC, footage) == numbers_of(small.frames_THWC, footage) == [0, 1, 2]


@pytest.mark.parametrize(("space", "code"), [("bt709", 1), ("smpte170m", 6), ("bt2020nc", 9)])
@pytest.mark.parametrize(("range_name", "range_code"), [("tv", 1), ("pc", 2)])
def test_matrix_and_range_come_from_the_stream(space, code, range_name, range_code, tmp_path, footage):
    """Flat colours, coded losslessly by the named matrix and range, come back within a few code values."""
    kr, kb = {1: (0.2126, 0.0722), 6: (0.299, 0.114), 9: (0.2627, 0.0593)}[code]
    colours = np.array([[200, 40, 60], [20, 180, 90], [240, 240, 30], [128, 128, 128]], float)
    y = colours @ [kr, 1 - kr - kb, kb]
    cb, cr = (colours[:, 2] - y) / (2 - 2 * kb), (colours[:, 0] - y) / (2 - 2 * kr)
    scale_y, scale_c, low = (219 / 255, 224 / 255, 16) if range_code == 1 else (1, 1, 0)
    planes = np.stack([y * scale_y + low, cb * scale_c + 128, cr * scale_c + 128]).round().astype(np.uint8)
    path = tmp_path / "colour.mkv"
    write_yuv444(path, planes, code, range_code)
    with open_video(str(path), decoder="pyav") as reader:
        facts = reader.facts
        frame = next(reader.scan()).frames_THWC[0]
    assert (facts.color_space, facts.color_range) == (space, range_name)
    shown = np.stack([frame[32, 32 * k + 16] for k in range(4)])
    assert np.abs(shown - colours).max() <= 4


def write_yuv444(path, planes: np.ndarray, space: int, color_range: int) -> None:
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.height, stream.width, stream.pix_fmt = 64, 128, "yuv444p"
        stream.codec_context.colorspace, stream.codec_context.color_range = space, color_range
        frame = av.VideoFrame(128, 64, "yuv444p")
        for plane, values in zip(frame.planes, planes):
            rows = np.zeros((64, plane.line_size), np.uint8)
            rows[:, :128] = np.repeat(values, 32)[None]
            plane.update(rows.tobytes())
        frame.colorspace, frame.color_range = space, color_range
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("hflip", [False, True])
@pytest.mark.parametrize("decoder", ["pyav", "torchcodec"])
def test_orientation_of_the_container_is_applied(degrees, hflip, decoder, tmp_path, footage):
    if decoder == "torchcodec":
        pytest.importorskip("torchcodec")
    frames = [footage.draw(k) for k in range(3)]

    def turn(stream):
        stream.set_display_rotation(-degrees, hflip=hflip)  # counter-clockwise; mirrors after turning

    path = footage.encode(tmp_path / "turned.mp4", frames=frames, options={"crf": "8"}, before=turn)
    upright = np.rot90(np.stack(frames), k=-(degrees // 90), axes=(1, 2))
    upright = upright[:, :, ::-1] if hflip else upright
    with open_video(str(path), decoder=decoder) as reader:
        assert (reader.facts.rotation, reader.facts.hflip) == (degrees, hflip)
        assert (reader.facts.height, reader.facts.width) == upright.shape[1:3]
        (batch,) = reader.scan()
        clip = clip_of(reader, intact=True)
        exact = reader.frames(clip, reader.frame_pts(clip)).frames_TCHW.permute(0, 2, 3, 1).numpy()
        small = next(reader.scan(size_hw=(upright.shape[1] // 2, upright.shape[2] // 2))).frames_THWC
    assert close(batch.frames_THWC, upright)
    assert np.array_equal(batch.frames_THWC, exact)
    assert close(small, upright[:, ::2, ::2], 40)


@pytest.mark.parametrize("decoder", ["pyav", "torchcodec"])
def test_pixel_aspect_stretches_the_width(decoder, tmp_path, footage):
    frames = [footage.draw(k) for k in range(3)]

    def anamorphic(stream):
        stream.codec_context.sample_aspect_ratio = Fraction(3, 2)

    path = footage.encode(tmp_path / "sar.mp4", frames=frames, options={"crf": "8"}, before=anamorphic)
    with open_video(str(path), decoder=decoder) as reader:
        assert (reader.facts.width, reader.facts.height, reader.facts.sar_num) == (144, 64, 3)
        (batch,) = reader.scan()
        clip = clip_of(reader, intact=True)
        exact = reader.frames(clip, reader.frame_pts(clip)).frames_TCHW.permute(0, 2, 3, 1).numpy()
    assert batch.frames_THWC.shape == exact.shape == (3, 64, 144, 3)
    assert numbers_of(exact, footage) == [0, 1, 2]
    assert np.array_equal(exact, batch.frames_THWC), "a pass at full size gives the same pixels"


def woven(footage, count: int) -> list[np.ndarray]:
    """Interlaced pictures: even lines of picture 2k, odd lines of picture 2k + 1, a bar moving 6 pixels a field."""
    frames = []
    for k in range(count):
        frame = np.full((64, 96, 3), 60, np.uint8)
        for field in range(2):
            left = (6 * (2 * k + field)) % 80
            frame[field::2, left : left + 12] = 220
        frames.append(frame)
    return frames


def combing(frame: np.ndarray) -> float:
    """Energy between neighbouring lines against that between lines of one field."""
    luma = frame.mean(axis=2)
    return float(np.abs(np.diff(luma, axis=0)).mean() / (1 + np.abs(luma[2:] - luma[:-2]).mean()))


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("a.mp4", "libx264", {"x264-params": "tff=1:keyint=8:bframes=2", "crf": "8", "flags": "+ildct+ilme"}),
        ("a.ts", "mpeg2video", {"flags": "+ildct+ilme", "g": "8", "bf": "2", "qscale": "2"}),
    ],
)
def test_interlaced_is_deinterlaced_kept_or_refused(name, codec, options, tmp_path, footage):
    path = str(encode_interlaced(tmp_path / name, woven(footage, 24), codec, options))
    with open_video(path) as reader:
        assert reader.facts.interlaced is True
        good = np.concatenate([b.frames_THWC for b in reader.scan()])
        clip = clip_of(reader)
        pts = reader.frame_pts(clip)
        assert len(pts) == len(good) == 24
        part = ClipReference(
            uri=path, stream_index=clip.stream_index, start_pts=pts[13], end_pts=pts[19], time_base=clip.time_base
        )
        exact = reader.frames(part, reader.frame_pts(part)).frames_TCHW.permute(0, 2, 3, 1).numpy()
    with open_video(path, config=DecodeConfig(interlaced="keep")) as reader:
        raw = np.concatenate([b.frames_THWC for b in reader.scan()])
    assert combing(raw[10]) > 2 and combing(good[10]) < 1
    assert np.array_equal(exact, good[13:19])
    with pytest.raises(MediaError) as caught:
        open_video(path, config=DecodeConfig(interlaced="reject"))
    assert caught.value.reason == "interlaced_rejected"


def encode_interlaced(path, frames, codec, options):
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options={"threads": "1", **options})
        stream.height, stream.width, stream.pix_fmt = 64, 96, "yuv420p"
        graph = av.filter.Graph()
        source = graph.add_buffer(width=96, height=64, format="yuv420p", time_base=Fraction(1, 25))
        graph.link_nodes(source, graph.add("setfield", "tff"), graph.add("buffersink")).configure()
        for k, picture in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = k, Fraction(1, 25)
            graph.vpush(frame)
            container.mux(stream.encode(graph.vpull()))
        container.mux(stream.encode(None))
    return path


def test_size_that_changes_in_mid_stream_is_scaled_to_the_first(tmp_path, footage):
    for k, (height, width) in enumerate(((64, 96), (128, 192), (48, 64))):
        frames = [footage.draw(10 * k + i, height, width) for i in range(10)]
        footage.encode(
            tmp_path / f"{k}.ts", frames=frames, options={"crf": "8", "bf": "0"}, pts=list(range(10 * k, 10 * k + 10))
        )
    joined = tmp_path / "joined.ts"
    joined.write_bytes(b"".join((tmp_path / f"{k}.ts").read_bytes() for k in range(3)))
    with open_video(str(joined)) as reader:
        frames = np.concatenate([b.frames_THWC for b in reader.scan()])
        clip = clip_of(reader)
        pts = reader.frame_pts(clip)
        exact = reader.frames(clip, pts[[5, 15, 25]]).frames_TCHW.permute(0, 2, 3, 1).numpy()
    assert frames.shape[1:] == (64, 96, 3)
    assert numbers_of(frames, footage) == list(range(30))
    assert numbers_of(exact, footage) == [5, 15, 25]


def test_images_are_clips_of_one_frame(tmp_path, footage):
    from PIL import Image

    picture = Image.fromarray(footage.draw(77))
    for name in ("a.png", "b.jpg", "c.webp", "d.bmp", "e.tiff", "img%03d.png"):
        picture.save(tmp_path / name)
        with open_video(str(tmp_path / name)) as reader:
            assert (reader.facts.kind, reader.facts.width, reader.facts.height) == ("image", 96, 64)
            clip = clip_of(reader)
            assert len(reader.frame_pts(clip)) == 1
            frame = reader.frames(clip, reader.frame_pts(clip)).frames_TCHW[0].permute(1, 2, 0).numpy()
        assert footage.number_of(frame) == 77


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_of_images(orientation, tmp_path, footage):
    from PIL import Image, ImageOps

    exif = Image.Exif()
    exif[274] = orientation
    picture = Image.fromarray(footage.draw(77))
    picture.save(tmp_path / "a.png", exif=exif)
    with Image.open(tmp_path / "a.png") as saved:
        upright = np.asarray(ImageOps.exif_transpose(saved))
    with open_video(str(tmp_path / "a.png")) as reader:
        (batch,) = reader.scan()
    assert np.array_equal(batch.frames_THWC[0], upright)


def test_animated_gif_is_video_and_a_still_one_an_image(tmp_path, footage):
    from PIL import Image

    pictures = [Image.fromarray(footage.draw(k)) for k in range(5)]
    pictures[0].save(tmp_path / "a.gif", save_all=True, append_images=pictures[1:], duration=100)
    pictures[3].save(tmp_path / "b.gif")
    with open_video(str(tmp_path / "a.gif")) as reader:
        assert reader.facts.kind == "video"
        (batch,) = reader.scan()
    assert numbers_of(batch.frames_THWC, footage) == [0, 1, 2, 3, 4]
    with open_video(str(tmp_path / "b.gif")) as reader:
        assert reader.facts.kind == "image"


@pytest.mark.parametrize("decoder", ["pyav", "torchcodec"])
def test_members_of_a_tar_and_remote_objects_decode_alike(decoder, plain, tmp_path, footage):
    import tarfile

    import fsspec

    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(plain, "x/plain.mp4")
    with fsspec.open("memory://media/plain.mp4", "wb") as sink, open(plain, "rb") as source:
        sink.write(source.read())
    with open_video(plain, decoder=decoder) as reader:
        pts = reader.frame_pts(clip_of(reader))
        expected = reader.frames(clip_of(reader, intact=True), pts[10:20]).frames_TCHW
    for uri in (f"{tmp_path}/a.tar::x/plain.mp4", "memory://media/plain.mp4"):
        with open_video(uri, decoder=decoder) as reader:
            assert numbers(reader.scan(), footage) == list(range(50))
            got = reader.frames(clip_of(reader, intact=True), pts[10:20])
        assert (got.frames_TCHW == expected).all()


def test_decoder_name_says_who_gave_the_pixels(plain):
    pytest.importorskip("torchcodec")
    with open_video(plain, decoder="torchcodec") as reader:
        next(reader.scan())
        assert reader.decoder_name == "pyav"
        reader.frames(clip_of(reader, intact=False), [0])
        assert reader.decoder_name == "pyav"
        reader.frames(clip_of(reader, intact=True), [0])
        assert reader.decoder_name == "torchcodec"


def test_unknown_decoder_is_refused_with_the_nearest(plain):
    with pytest.raises(UserError, match="did you mean 'pyav'"):
        open_video(plain, decoder="pyva")
