"""Memory of a worker stays bounded on an 8K file and on a ten-hour one, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

LIMIT_BYTES = 1_500_000_000
WORK = """
import sys
import torch
from vidpipe.media.decode import open_video
from vidpipe.media.reference import ClipReference
torch.set_num_threads(1)
uri, count = sys.argv[1], int(sys.argv[2])
with open_video(uri) as reader:
    facts, frames = reader.facts, 0
    for batch in reader.scan(max_short_side=180):
        frames += len(batch)
    assert frames == count, frames
    end = facts.start_pts + (facts.end_pts - facts.start_pts) // 2
    clip = ClipReference(uri=uri, stream_index=facts.stream_index, start_pts=end, end_pts=end + 4 * {tick},
                         time_base=facts.time_base)
    pts = reader.frame_pts(clip)
    assert len(pts) == 4, pts
    assert tuple(reader.frames(clip, pts, size_hw=(96, 160)).frames_TCHW.shape) == (4, 3, 96, 160)
# not ru_maxrss, which is the parent's if that was larger
print(1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]))
"""


def peak_bytes(path: Path, count: int, tick: int) -> int:
    script = WORK.replace("{tick}", str(tick))
    done = subprocess.run([sys.executable, "-c", script, str(path), str(count)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.split()[-1])


def bounded(peak: int) -> bool:
    """Whether it is below the limit; `pytest -s` shows it."""
    print(f"peak {peak / 1e6:.0f} MB")
    return peak < LIMIT_BYTES


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_an_8k_file(tmp_path, footage):
    frames = [footage.draw(k, 4320, 7680) for k in range(3)]
    path = footage.encode(
        tmp_path / "8k.mkv", frames=[frames[k % 3] for k in range(20)], options={"preset": "ultrafast", "crf": "30"},
        pts=[40 * k for k in range(20)], time_base=Fraction(1, 1000),
    )  # fmt: skip
    assert bounded(peak_bytes(path, 20, 40))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_ten_hour_file(tmp_path, footage):
    """36,000 s at 10 frames/s of tiny pictures: what grows with length would show."""
    import av

    pictures = [
        av.VideoFrame.from_ndarray(footage.draw(k, 32, 48), format="rgb24").reformat(format="yuv420p")
        for k in range(64)
    ]
    path = tmp_path / "long.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"preset": "ultrafast", "threads": "1", "g": "100"})
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        for k in range(360_000):
            frame = pictures[k % 64]
            frame.pts, frame.time_base = k, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert bounded(peak_bytes(path, 360_000, 100))
