#!/usr/bin/env python
"""Make a small folder of footage whose content is known: python scripts/make_footage.py FOLDER

Cuts, motion, titles, black bars, a still, a dark and a blurred clip, near-duplicates, captions in sidecar files, broken
files and files that are no video. Everything is drawn with numpy and encoded by PyAV, which carries its own FFmpeg, so
that it works on a machine without the ffmpeg command. What was made is written to FOLDER/truth.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import cv2
import footage_scenes as scenes
import numpy as np
from footage_scenes import Scene

LANDSCAPE, WIDE, PORTRAIT = (128, 192), (128, 224), (192, 128)
CODECS = {
    ".mp4": ("libx264", {"preset": "veryfast", "crf": "20"}),
    ".mkv": ("libx265", {"preset": "ultrafast", "crf": "24", "x265-params": "log-level=none"}),
    ".webm": ("libvpx-vp9", {"crf": "30", "b": "0", "deadline": "realtime", "cpu-used": "8"}),
    ".avi": ("mpeg4", {"q": "4"}),
}


@dataclass(frozen=True, kw_only=True)
class Video:
    """Truth of one file.

    Attributes:
        name: file name; its suffix decides container and codec.
        kind: what it is there for, such as `plain`, `cuts`, `still`, `letterbox`, `broken`.
        cuts: index of the first frame of each shot but the first.
        crop_xywh: picture inside black bars; null without bars.
        captions: what is seen, one a shot.
        same_as: name of a file with the same picture.
    """

    name: str
    kind: str
    num_frames: int = 0
    fps: float = 24.0
    height: int = 0
    width: int = 0
    cuts: tuple[int, ...] = ()
    crop_xywh: tuple[int, int, int, int] | None = None
    captions: tuple[str, ...] = ()
    same_as: str = ""


def encode(path: Path, frames: Iterable[np.ndarray], fps: Fraction, pts: Sequence[int] | None = None) -> int:
    """Write uint8 RGB [H, W, 3] frames; returns their number. `pts` in units of 1 / fps make the rate variable."""
    import av

    codec, options = CODECS[path.suffix]
    if codec not in av.codecs_available:
        codec, options = "mpeg4", {"q": "4"}
    count = 0
    with av.open(str(path), "w") as container:
        stream = None
        for picture in frames:
            if stream is None:
                stream = container.add_stream(codec, rate=fps, options=options)
                stream.height, stream.width = picture.shape[:2]
                stream.pix_fmt, stream.gop_size, stream.thread_count = "yuv420p", 48, 1
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = (count if pts is None else pts[count]), 1 / fps
            container.mux(stream.encode(frame))
            count += 1
        if stream is not None:
            container.mux(stream.encode())
    return count


def play(shots: Sequence[tuple[Scene, int]], fps: float) -> Iterator[np.ndarray]:
    """Frames of scenes one after the other, each from its own start."""
    for scene, num_frames in shots:
        for i in range(num_frames):
            yield scene.render(i / fps)


def write_video(
    folder: Path,
    name: str,
    kind: str,
    shots: Sequence[tuple[Scene, int]],
    *,
    fps: Fraction = Fraction(24),
    change: Callable[[np.ndarray], np.ndarray] = lambda picture: picture,
    crop_xywh: tuple[int, int, int, int] | None = None,
    same_as: str = "",
    pts: Sequence[int] | None = None,
) -> Video:
    """Encode shots to one file; `change` is applied to every frame."""
    sizes: set[tuple[int, ...]] = set()

    def frames() -> Iterator[np.ndarray]:
        for picture in play(shots, float(fps)):
            changed = change(picture)
            sizes.add(changed.shape)
            yield changed

    num_frames = encode(folder / name, frames(), fps, pts)
    ((height, width, _),) = sizes
    ends = np.cumsum([n for _, n in shots])[:-1]
    return Video(
        name=name, kind=kind, num_frames=num_frames, fps=float(fps), height=height, width=width,
        cuts=tuple(int(e) for e in ends), crop_xywh=crop_xywh, captions=tuple(s.caption for s, _ in shots),
        same_as=same_as,
    )  # fmt: skip


def plain(folder: Path, index: int, seed: int, seconds: float) -> Video:
    """One shot of something that moves; every eighth is portrait, every eighth wide, and codecs take turns."""
    rng = np.random.default_rng([seed, index])
    size = {3: PORTRAIT, 6: WIDE}.get(index % 8, LANDSCAPE)
    suffix = {5: ".mkv", 9: ".webm", 11: ".avi"}.get(index % 12, ".mp4")
    fps = Fraction({7: 30, 10: 25}.get(index % 12, 24))
    length = round(seconds * float(fps) * rng.uniform(0.8, 1.2))
    scene = scenes.any_scene(rng, size)
    return write_video(folder, f"plain_{index:03d}{suffix}", "plain", [(scene, length)], fps=fps)


def reel(folder: Path, index: int, seed: int, num_shots: int) -> Video:
    """Several shots with hard cuts between them, a camera and moving shapes by turns."""
    rng = np.random.default_rng([seed, 1000 + index])
    kinds = (scenes.camera, scenes.shapes)
    shots = [(kinds[i % 2](rng, LANDSCAPE), int(rng.integers(44, 90))) for i in range(num_shots)]
    return write_video(folder, f"reel_{index}.mp4", "cuts", shots)


def dissolve(folder: Path, seed: int) -> Video:
    """Two shots that melt into each other over frames 60 to 84: the cut is anywhere there."""
    rng = np.random.default_rng([seed, 2000])
    first, second = scenes.camera(rng, LANDSCAPE, "clouds"), scenes.camera(rng, LANDSCAPE, "pebbles")

    def render(t: float) -> np.ndarray:
        share = float(np.clip((t * 24 - 60) / 24, 0, 1))
        return cv2.addWeighted(first.render(t), 1 - share, second.render(t), share, 0)

    caption = f"{first.caption}, then {second.caption}"
    return write_video(folder, "dissolve.mp4", "dissolve", [(Scene(caption, render), 144)])


def bars(folder: Path, seed: int, name: str, crop_xywh: tuple[int, int, int, int], frame_hw: tuple[int, int]) -> Video:
    """A moving picture inside black bars."""
    rng = np.random.default_rng([seed, *name.encode()])
    x, y, width, height = crop_xywh
    scene = scenes.camera(rng, (height, width), "pebbles", "pans left")

    def frame(picture: np.ndarray) -> np.ndarray:
        whole = np.zeros((*frame_hw, 3), np.uint8)
        whole[y : y + height, x : x + width] = picture
        return whole

    return write_video(folder, name, "letterbox", [(scene, 120)], change=frame, crop_xywh=crop_xywh)


def changed(folder: Path, seed: int, kind: str, change: Callable[[np.ndarray], np.ndarray]) -> Video:
    """A plain scene made still, dark, blurred, ...: what a threshold should find."""
    texture = "pebbles" if kind == "blurred" else "blocks"
    scene = scenes.camera(np.random.default_rng([seed, 3000]), LANDSCAPE, texture, "pans right")
    if kind == "still":
        first = scene.render(0)
        scene = Scene("a wall of blocks, and nothing moves", lambda t: first)
    return write_video(folder, f"{kind}.mp4", kind, [(scene, 96)], change=change)


def variable_rate(folder: Path, seed: int) -> Video:
    """Every third frame stays on screen three times as long."""
    scene = scenes.shapes(np.random.default_rng([seed, 4000]), LANDSCAPE, 2)
    pts = np.cumsum([0] + [3 if i % 3 == 2 else 1 for i in range(89)]).tolist()
    return write_video(folder, "variable_rate.mp4", "variable_rate", [(scene, 90)], pts=pts)


def twin(folder: Path, seed: int, seconds: float) -> Video:
    """The picture of plain_000 again, smaller, brighter, in another codec: a near-duplicate."""
    rng = np.random.default_rng([seed, 0])
    length = round(seconds * 24 * rng.uniform(0.8, 1.2))
    scene = scenes.any_scene(rng, LANDSCAPE)

    def change(picture: np.ndarray) -> np.ndarray:
        smaller = cv2.resize(picture, (168, 112), interpolation=cv2.INTER_AREA)
        return cv2.convertScaleAbs(smaller, alpha=1.03, beta=3)

    return write_video(folder, "twin.webm", "twin", [(scene, length)], change=change, same_as="plain_000.mp4")


def others(folder: Path) -> list[Video]:
    """Copies, broken files, and files that are no video. Needs the videos that they are made from."""
    whole = (folder / "reel_0.mp4").read_bytes()
    (folder / "copy.mp4").write_bytes(whole)
    (folder / "broken.mp4").write_bytes(whole[: len(whole) // 2])  # the index is at the end of an MP4: lost
    (folder / "empty.mp4").write_bytes(b"")
    (folder / "notes.md").write_text("# Notes\nA file that is no video.\n")
    write_sound(folder / "sound.m4a")
    cv2.imwrite(str(folder / "picture.png"), scenes.camera(np.random.default_rng(5), LANDSCAPE, "blocks").render(0))
    return [
        Video(name="copy.mp4", kind="copy", same_as="reel_0.mp4"),
        Video(name="broken.mp4", kind="broken"),
        Video(name="empty.mp4", kind="broken"),
        Video(name="notes.md", kind="not_media"),
        Video(name="sound.m4a", kind="audio_only"),
        Video(name="picture.png", kind="image", num_frames=1, height=LANDSCAPE[0], width=LANDSCAPE[1]),
    ]


def write_sound(path: Path) -> None:
    """Two seconds of a 440 Hz tone."""
    import av

    samples = (0.3 * np.sin(2 * np.pi * 440 * np.arange(96_000) / 48_000)).astype(np.float32)[None]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=48_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
        frame.sample_rate, frame.pts = 48_000, 0
        container.mux([*stream.encode(frame), *stream.encode()])


def write_captions(folder: Path, videos: Sequence[Video]) -> None:
    """Sidecars: NAME.json with a caption a shot where there are several; else NAME.txt, NAME.json, captions.jsonl."""
    lines = []
    for i, video in enumerate(v for v in videos if v.captions):
        stem, text = (folder / video.name).with_suffix(""), video.captions[0]
        if len(video.captions) > 1:
            edges = [0, *video.cuts, video.num_frames]
            spans = [{"start": a / video.fps, "end": b / video.fps} for a, b in pairwise(edges)]
            shots = [{"text": text, **span} for text, span in zip(video.captions, spans)]
            stem.with_suffix(".json").write_text(json.dumps({"captions": shots, "language": "en"}, indent=1) + "\n")
        elif i % 3 == 0:
            stem.with_suffix(".txt").write_text(text + "\n")
        elif i % 3 == 1:
            stem.with_suffix(".json").write_text(json.dumps({"caption": text, "language": "en"}) + "\n")
        else:
            lines.append(json.dumps({"file": video.name, "caption": text, "language": "en"}))
    (folder / "captions.jsonl").write_text("".join(line + "\n" for line in lines))


def jobs(folder: Path, *, num_plain: int, num_reels: int, seconds: float, seed: int) -> list[Callable[[], Video]]:
    """Everything to encode, the slow ones first."""

    def blur(picture: np.ndarray) -> np.ndarray:
        return cv2.GaussianBlur(picture, (0, 0), 2.5)

    size = LANDSCAPE
    tests = [
        ("mandelbrot", "start_scale=1.2:end_scale=0.02:end_pts=300", "a zoom into a colourful fractal"),
        ("testsrc2", "", "a television test card with a clock"),
        ("gradients", f"seed={seed}:speed=0.03:nb_colors=4", "a gradient of four colours turns"),
    ]
    titles = "THE END\ndrawn with numpy\nencoded by PyAV\nno camera was used"
    return [
        *(lambda i=i: reel(folder, i, seed, 5) for i in range(num_reels)),
        *(
            lambda a=a: write_video(
                folder, f"source_{a[0]}.mp4", "plain", [(scenes.generated(size, 24, *a), round(24 * seconds))]
            )
            for a in tests
        ),
        *(lambda i=i: plain(folder, i, seed, seconds) for i in range(num_plain)),
        lambda: twin(folder, seed, seconds),
        lambda: dissolve(folder, seed),
        lambda: bars(folder, seed, "letterbox.mp4", (0, 24, 192, 80), LANDSCAPE),
        lambda: bars(folder, seed, "pillarbox.mp4", (40, 0, 112, 128), LANDSCAPE),
        lambda: changed(folder, seed, "still", lambda picture: picture),
        lambda: changed(folder, seed, "dark", lambda picture: picture // 24),
        lambda: changed(folder, seed, "blurred", blur),
        lambda: write_video(folder, "title.mp4", "title", [(scenes.title(size, titles), 96)]),
        lambda: write_video(
            folder, "short.mp4", "short", [(scenes.shapes(np.random.default_rng([seed, 5000]), size), 7)]
        ),
        lambda: variable_rate(folder, seed),
    ]


def make_footage(
    folder: str | Path,
    *,
    num_plain: int = 48,
    num_reels: int = 6,
    seconds: float = 5.0,
    seed: int = 0,
    threads: int = 0,
) -> list[Video]:
    """Fill `folder` and return the truth, also written to truth.json last, so that its presence means done.

    Args:
        num_plain: files of one shot, about `seconds` long each.
        num_reels: files of five shots; at least one.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    todo = jobs(folder, num_plain=num_plain, num_reels=max(1, num_reels), seconds=seconds, seed=seed)
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        videos = [future.result() for future in [pool.submit(job) for job in todo]]
    write_captions(folder, videos)
    videos += others(folder)
    truth = {video.name: asdict(video) for video in sorted(videos, key=lambda v: v.name)}
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    return videos


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Make a small folder of footage whose content is known.")
    parser.add_argument("folder")
    parser.add_argument("--num-plain", type=int, default=48, help="files of one shot (48)")
    parser.add_argument("--num-reels", type=int, default=6, help="files of five shots (6)")
    parser.add_argument("--seconds", type=float, default=5.0, help="about how long a one-shot file is (5)")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    start = time.monotonic()
    videos = make_footage(options.pop("folder"), **options)
    footage_seconds = sum(v.num_frames / v.fps for v in videos)
    print(f"{len(videos)} files, {footage_seconds / 60:.1f} min of footage, in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
