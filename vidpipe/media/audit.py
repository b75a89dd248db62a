"""Decode a sample with every back end at hand; print how well they agree, and how fast they are, by codec.

The truth is a PyAV pass from the start of the stream. Each back end is asked for clips at several places, in the middle
and at the ends, as if they were known to be intact; a frame agrees if its pixels do (`exact`), or by PSNR.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vidpipe.media.decode import VideoReader, open_video
from vidpipe.media.errors import MediaError
from vidpipe.media.facts import VideoFacts
from vidpipe.media.reference import ClipReference

PLACES = 4
FRAMES_A_PLACE = 6
TRUTH_FRAMES = 1800
"""A pass stops here: enough to compare, and hours of footage stay bearable."""


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """One file with one back end.

    Attributes:
        decoder: the back end asked.
        used: the back end that gave the pixels; `pyav` where the asked one could not or would not.
        frames: frames compared.
        exact: fraction of them that equal the truth bit for bit.
        worst_psnr_db: of the least alike; infinite where all are equal; None without frames.
        frames_per_second: over the clips, opening and indexing included.
        damaged: frames of the pass that were damaged.
        problem: reason and message where the file or the back end failed; empty otherwise.
    """

    uri: str
    decoder: str
    codec: str = ""
    used: str = ""
    frames: int = 0
    exact: float = 0.0
    worst_psnr_db: float | None = None
    frames_per_second: float = 0.0
    damaged: int = 0
    problem: str = ""


def back_ends() -> list[tuple[str, str]]:
    """Back ends that load here, each with the device that it is for."""
    from vidpipe.media import doctor

    found = [("pyav", "cpu")]
    if not doctor.torchcodec_problem():
        found.append(("torchcodec", "cpu"))
    if not doctor.nvdec_problem():
        found.append(("torchcodec-cuda", "cuda"))
    if not doctor.dali_problem():
        found.append(("dali", "cuda"))
    return found


def audit(source: str, limit: int = 50) -> Iterator[dict[str, Any]]:
    """Rows of `AuditRow`, file by file.

    Args:
        source: as `sources.list_sources` takes it.
        limit: files looked at, spread evenly over the listing; those that are no footage do not count.
    """
    from vidpipe.media.sources import list_sources

    footage = [f for f in list_sources(source) if f.kind_hint not in ("sidecar", "clip_table", "archive")]
    step = max(1, len(footage) // max(1, limit))
    for file in footage[::step][:limit]:
        for row in audit_file(file.uri):
            yield asdict(row)


def audit_file(uri: str) -> list[AuditRow]:
    """One row a back end; a single one where the file cannot be used at all."""
    try:
        with open_video(uri, decoder="pyav") as reader:
            facts = reader.facts
            truth, damaged = _truth(reader)
    except MediaError as error:
        return (
            [] if error.reason == "not_media" else [AuditRow(uri=uri, decoder="", problem=f"{error.reason}: {error}")]
        )
    places = _places(sorted(truth))
    return [_tried(uri, facts, truth, places, damaged, name, device) for name, device in back_ends()]


def _truth(reader: VideoReader) -> tuple[dict[int, bytes], int]:
    """Pixels by time, of the frames that will be asked for; and how many of the pass are damaged."""
    times: list[int] = []
    damaged = 0
    for batch in reader.scan(max_short_side=64):
        times += batch.pts.tolist()
        damaged += int(batch.damaged.sum())
        if len(times) >= TRUTH_FRAMES:
            break
    wanted = {t for place in _places(times) for t in place}
    found: dict[int, bytes] = {}
    facts = reader.facts
    clip = _clip(facts, times)
    # from the start in one run, converted as `frames` converts: what a clip has to equal
    for start in range(0, len(times), 64):
        part = [t for t in times[start : start + 64] if t in wanted]
        if part:
            frames = reader.frames(clip, part).frames_TCHW.cpu().numpy()
            found |= {t: frame.tobytes() for t, frame in zip(part, frames)}
    return found, damaged


def _places(times: Sequence[int]) -> list[list[int]]:
    """Runs of neighbouring times at even distances, the last run first, so that none is reached by decoding on."""
    count = min(FRAMES_A_PLACE, len(times))
    starts = {round(k * (len(times) - count) / max(1, PLACES - 1)) for k in range(PLACES)}
    return [list(times[s : s + count]) for s in sorted(starts, reverse=True)]


def _clip(facts: VideoFacts, times: Sequence[int]) -> ClipReference:
    return ClipReference(
        uri=facts.uri,
        stream_index=facts.stream_index,
        start_pts=times[0],
        end_pts=times[-1] + 1,
        time_base=facts.time_base,
        intact=True,
    )


def _tried(
    uri: str, facts: VideoFacts, truth: dict[int, bytes], places: list[list[int]], damaged: int, name: str, device: str
) -> AuditRow:
    start = time.perf_counter()
    same, used, worst = [], set(), math.inf
    try:
        with open_video(uri, decoder=name, device=device, facts=facts) as reader:
            for times in places:
                frames = reader.frames(_clip(facts, times), times).frames_TCHW.cpu().numpy()
                used.add(reader.decoder_name)
                for t, frame in zip(times, frames):
                    same.append(frame.tobytes() == truth[t])
                    worst = min(worst, math.inf if same[-1] else _psnr(frame, truth[t]))
    except (MediaError, RuntimeError) as error:
        told = error.reason if isinstance(error, MediaError) else type(error).__name__
        return AuditRow(uri=uri, decoder=name, codec=facts.codec, damaged=damaged, problem=f"{told}: {error}")
    return AuditRow(
        uri=uri,
        decoder=name,
        codec=facts.codec,
        used=", ".join(sorted(used)),
        frames=len(same),
        exact=sum(same) / len(same),
        worst_psnr_db=worst,
        frames_per_second=len(same) / (time.perf_counter() - start),
        damaged=damaged,
    )


def _psnr(frame: np.ndarray, truth: bytes) -> float:
    other = np.frombuffer(truth, np.uint8).reshape(frame.shape)
    error = float(((frame.astype(np.float32) - other.astype(np.float32)) ** 2).mean())
    return 10 * math.log10(255**2 / error) if error else math.inf


def print_audit(rows: Sequence[dict[str, Any]]) -> None:
    """Print agreement and speed by codec and back end, then what failed or disagreed, file by file."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("codec", "decoder", "used", "files", "frames", "exact", "worst PSNR", "frames/s")
    good = [row for row in rows if row["frames"]]
    for codec, decoder, used in sorted({(r["codec"], r["decoder"], r["used"]) for r in good}):
        group = [r for r in good if (r["codec"], r["decoder"], r["used"]) == (codec, decoder, used)]
        frames = sum(r["frames"] for r in group)
        exact = sum(r["exact"] * r["frames"] for r in group) / frames
        worst = min(r["worst_psnr_db"] for r in group)
        speed = frames / sum(r["frames"] / r["frames_per_second"] for r in group)
        shown = "equal" if math.isinf(worst) else f"{worst:.1f} dB"
        table.add_row(codec, decoder, used, str(len(group)), str(frames), f"{exact:.1%}", shown, f"{speed:.0f}")
    console.print(table)
    for row in rows:
        if row["problem"]:
            console.print(f"{row['uri']} {row['decoder']}: {row['problem']}", highlight=False, soft_wrap=True)
        elif row["worst_psnr_db"] is not None and row["worst_psnr_db"] < 40:
            told = f"worst PSNR {row['worst_psnr_db']:.1f} dB, {row['damaged']} damaged frames in its pass"
            console.print(f"{row['uri']} {row['decoder']}: {told}", highlight=False, soft_wrap=True)
