"""A table of known files: the truth that their manifest holds, and what each back end here gave.

    python -m vidpipe.media.truth_table ../shared/media > docs/decoding-table.md

Reads `MANIFEST.json` in the folder and in its subfolders: `file`, `decoded_frames` (what FFmpeg 5.1 decodes of the
first video stream), `width`, `height`, `codec`. Counts are of that stream, decoded alone where ours is another.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vidpipe.media.audit import back_ends
from vidpipe.media.container import moving_streams, open_container
from vidpipe.media.decode import open_video
from vidpipe.media.errors import MediaError
from vidpipe.media.facts import VideoFacts
from vidpipe.media.reference import ClipReference

WINDOWS = 4
LONGEST_WINDOW = 5


def entries(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Files of every manifest under a folder, with what it says of them; what has no frame count is not footage."""
    for manifest in sorted(folder.rglob("MANIFEST.json")):
        for entry in json.loads(manifest.read_text()):
            if "decoded_frames" in entry:
                yield manifest.parent / entry["file"], entry


def first_stream(uri: str) -> int | None:
    """Index of the first video stream, which the truth describes."""
    with open_container(uri) as container:
        streams = moving_streams(container)
        return streams[0].index if streams else None


def digests(uri: str, stream_index: int | None) -> tuple[VideoFacts, dict[int, bytes], int]:
    """Facts, and of a pass: a digest of each frame by time, and how many are damaged."""
    found: dict[int, bytes] = {}
    damaged = 0
    with open_video(uri, stream_index, decoder="pyav") as reader:
        for batch in reader.scan():
            damaged += int(batch.damaged.sum())
            for frame, pts in zip(batch.frames_THWC, batch.pts.tolist()):
                found[pts] = hashlib.blake2b(frame.tobytes(), digest_size=8).digest()
        return reader.facts, found, damaged


def windows_exact(facts: VideoFacts, truth: dict[int, bytes], intact: bool, decoder: str, device: str) -> str:
    """How random windows of a back end compare with the pass: `exact`, or how many frames differ; and who decoded."""
    times, rng = sorted(truth), random.Random(0)
    wrong = total = 0
    used = set()
    with open_video(facts.uri, facts.stream_index, decoder=decoder, device=device, facts=facts) as reader:
        for _ in range(WINDOWS):
            first = rng.randrange(len(times))
            chosen = times[first : first + rng.randint(1, LONGEST_WINDOW)]
            clip = ClipReference(
                uri=facts.uri,
                stream_index=facts.stream_index,
                start_pts=chosen[0],
                end_pts=chosen[-1] + 1,
                time_base=facts.time_base,
                intact=intact,
            )
            frames = reader.frames(clip, chosen).frames_TCHW.permute(0, 2, 3, 1).contiguous().cpu().numpy()
            used.add(reader.decoder_name)
            digest = [hashlib.blake2b(frame.tobytes(), digest_size=8).digest() for frame in frames]
            wrong += sum(d != truth[t] for d, t in zip(digest, chosen))
            total += len(chosen)
    by = "" if used == {decoder} else f" (by {', '.join(sorted(used))})"
    return f"exact{by}" if not wrong else f"{wrong} of {total} differ{by}"


def row(path: Path, entry: dict[str, Any], name: str) -> list[str]:
    """Cells of one file, called `name` in the table."""
    truth = entry["decoded_frames"]
    shown = f"{entry['codec'] or '-'} {entry['width'] or '-'}x{entry['height'] or '-'}"
    try:
        facts, frames, damaged = digests(str(path), first_stream(str(path)))
    except MediaError as error:
        return [name, shown, str(truth), f"`{error.reason}`", "", *("" for _ in back_ends())]
    count = str(len(frames)) if len(frames) == truth else f"**{len(frames)}**"
    cells = [name, shown, str(truth), count, str(damaged or "")]
    # resampled pictures (pixel aspect) are scaled by another filter in passes than in clips: compare clips with clips
    if facts.geometry.sar != (1, 1):
        frames = _clip_digests(facts, sorted(frames))
    return cells + [windows_exact(facts, frames, not damaged, *back_end) for back_end in back_ends()]


def _clip_digests(facts: VideoFacts, times: list[int]) -> dict[int, bytes]:
    """Digests of all frames through `frames`, in one run from the start."""
    found: dict[int, bytes] = {}
    with open_video(facts.uri, facts.stream_index, decoder="pyav", facts=facts) as reader:
        for start in range(0, len(times), 64):
            part = times[start : start + 64]
            clip = ClipReference(
                uri=facts.uri,
                stream_index=facts.stream_index,
                start_pts=part[0],
                end_pts=part[-1] + 1,
                time_base=facts.time_base,
            )
            for t, frame in zip(part, reader.frames(clip, part).frames_TCHW):
                pixels = frame.permute(1, 2, 0).contiguous().numpy()
                found[t] = hashlib.blake2b(pixels.tobytes(), digest_size=8).digest()
    return found


def main(folder: str) -> None:
    """Print the table as Markdown."""
    names = [name for name, _ in back_ends()]
    header = ["file", "stored", "FFmpeg 5.1", "pass", "damaged", *names]
    print("Made by `python -m vidpipe.media.truth_table FOLDER`. The columns are told in [decoding.md](decoding.md).\n")
    print(f"| {' | '.join(header)} |")
    print("|" + "-|" * len(header))
    for path, entry in entries(Path(folder)):
        cells = row(path, entry, path.relative_to(folder).as_posix())
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m vidpipe.media.truth_table FOLDER")
    main(sys.argv[1])
