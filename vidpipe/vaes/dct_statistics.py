"""Measure the `dct` codec on a folder of footage: mean and standard deviation of each channel, and PSNR.

    python -m vidpipe.vaes.dct_statistics FOLDER

Files of the folder itself, not below it. Up to `CLIPS` clips of 17 frames at 16 frames/s a file, spread evenly, each at
the heights of `HEIGHTS`, as wide as the picture allows. Every file weighs the same. Channels that mirror each other get
their common value, and those that a mirrored or reversed clip negates get mean 0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import torch

from schemas.errors import UserError
from vidpipe.bucketing import centre_crop
from vidpipe.media.decode import open_video
from vidpipe.media.errors import MediaError
from vidpipe.media.reference import ClipReference
from vidpipe.media.sampling import sample_pts
from vidpipe.media.sources import list_sources
from vidpipe.vaes.base import psnr_db
from vidpipe.vaes.dct import CHANNELS, DctVae

CLIPS, FRAMES, FPS = 3, 17, Fraction(16)
HEIGHTS = (64, 128, 256)
MIRRORED = ((0, 2, 6, 8), (1, 3, 5, 7), (4,), (9,), (10, 11), (12,), (13,), (14,), (15,))
SIGNED = (9, 10, 11, 12, 13)


def clips_of(uri: str) -> Iterator[torch.Tensor]:
    """Clips of one file, uint8 [1, 3, 17, H, W], at all heights that are no enlargement; none if it is too short."""
    with open_video(uri) as reader:
        facts = reader.facts
        span = int(FRAMES / FPS / facts.time_base) + 1
        height, width = facts.geometry.display_hw
        room = facts.end_pts - facts.start_pts - span
        for i in range(CLIPS if room > 0 else 0):
            start = facts.start_pts + room * (2 * i + 1) // (2 * CLIPS)
            clip = ClipReference(
                uri=uri,
                stream_index=facts.stream_index,
                start_pts=start,
                end_pts=start + span,
                time_base=facts.time_base,
            )
            pts = sample_pts(reader.frame_pts(clip), None, clip, FPS, FRAMES)
            for h in (h for h in HEIGHTS if h <= height):
                w = max(16, width * h // height // 16 * 16)
                crop = centre_crop((0, 0, width, height), h, w)
                frames = reader.frames(clip, pts, size_hw=(h, w), crop_xywh=crop).frames_TCHW
                yield frames.transpose(0, 1)[None]


def moments(vae: DctVae, clips: list[torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and mean square of raw latents over clips, each [16]; a group's first frame has no motion to count."""
    first, second = np.zeros(CHANNELS), np.zeros(CHANNELS)
    for frames in clips:
        raw = vae.encode_raw(frames)[0, :, 1:]
        first += raw.mean((1, 2, 3)).numpy() / len(clips)
        second += raw.square().mean((1, 2, 3)).numpy() / len(clips)
    return first, second


def main(folder: str) -> None:
    """Print `MEAN`, `STD` and the PSNR for `vidpipe/vaes/dct.py`."""
    vae, found, psnrs = DctVae(), [], []
    for source in list_sources(folder, recursive=False):
        if source.kind_hint != "video":
            continue
        try:
            clips = list(clips_of(source.uri))
        except MediaError as error:
            print(f"{source.uri}: left out: {error.reason}")
            continue
        if clips:
            found.append(moments(vae, clips))
            psnrs += [psnr_db(c, vae.decode(vae.encode(c))) for c in clips]
    if not found:
        raise UserError(f"{folder}: no video of {float(FRAMES / FPS):g} s or more")
    mean, square = (np.mean(part, 0) for part in zip(*found))
    for group in MIRRORED:
        mean[list(group)], square[list(group)] = mean[list(group)].mean(), square[list(group)].mean()
    mean[list(SIGNED)] = 0
    low, middle, high = np.percentile(psnrs, [5, 50, 95])
    print(f"# {len(found)} files, {len(psnrs)} clips; PSNR: median {middle:.1f} dB, 5% {low:.1f}, 95% {high:.1f}")
    print("MEAN =", tuple(float(f"{v:.3g}") for v in mean))
    print("STD =", tuple(float(f"{v:.3g}") for v in np.sqrt(square - mean**2)))


if __name__ == "__main__":
    main(sys.argv[1])
