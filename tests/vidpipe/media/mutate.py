"""Mutated files through probe and pass, each in a process of its own with a deadline: an outcome for each.

    python tests/vidpipe/media/mutate.py FOLDER [--count 500] [--seed 0] [--deadline 60] [--keep OUT]

Takes the ten smallest decodable files of FOLDER that are larger than 10 kB, and flips, cuts or zeroes bytes at random,
seeded. Prints a line a file and exits with status 1 if any hung, crashed, or failed with anything but a MediaError.
`--keep` writes the mutated files to a folder instead, for `vidpipe run` to go through.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import multiprocessing
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODES = ("flip", "cut", "zero", "insert")


def mutated(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """Data with damage of one kind, and the kind."""
    mode, changed = rng.choice(MODES), bytearray(data)
    if mode == "flip":
        for _ in range(rng.choice((1, 4, 40, 400))):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif mode == "cut":
        del changed[rng.randrange(1, len(changed)) :]
    elif mode == "zero":
        start = rng.randrange(len(changed))
        length = min(rng.choice((16, 512, 16384)), len(changed) - start)
        changed[start : start + length] = bytes(length)
    else:
        at = rng.randrange(len(changed))
        changed[at:at] = rng.randbytes(rng.choice((1, 7, 300)))
    return mode, bytes(changed)


def examine(path: str, pipe: Any) -> None:
    """Probe, pass, analyze, index and one clip; tells the outcome through `pipe`."""
    from vidpipe.analyze import AnalyzeConfig, analyze_video
    from vidpipe.media.decode import open_video
    from vidpipe.media.errors import MediaError
    from vidpipe.media.reference import ClipReference

    faulthandler.disable()
    try:
        with open_video(path) as reader:
            facts, times, damaged = reader.facts, [], 0
            for batch in reader.scan(max_short_side=64):
                times += batch.pts.tolist()
                damaged += int(batch.damaged.sum())
            assert times == sorted(set(times)), "times of a pass must ascend"
            span = times[len(times) // 2 :][:4]
            clip = ClipReference(
                uri=path, stream_index=facts.stream_index, start_pts=span[0], end_pts=span[-1] + 1,
                time_base=facts.time_base,
            )  # fmt: skip
            found = reader.frame_pts(clip)
            if len(found):
                reader.frames(clip, found)
        result = analyze_video(path, {**facts.to_row(), "video_id": bytes(16)}, AnalyzeConfig(min_seconds=0.2))
        assert result.num_frames == len(times), "analyze must see the frames of a pass"
        pipe.send(("decoded", f"{len(times)} frames, {damaged} damaged"))
    except MediaError as error:
        pipe.send((error.reason, str(error)))
    except BaseException as error:  # the finding that this script is for
        pipe.send(("BUG", f"{type(error).__name__}: {error}"))


def outcome_of(path: str, deadline_seconds: float) -> tuple[str, str]:
    """Outcome of one file, by a fork that is killed past its deadline."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=examine, args=(path, sender), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(deadline_seconds):
            return "HANG", f"no outcome in {deadline_seconds:g} s"
        return receiver.recv()
    except EOFError:
        process.join(5)
        return "CRASH", f"exit status {process.exitcode}"
    finally:
        process.kill()
        process.join()


def mutations(sources: list[Path], count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Name and content of `count` mutated files, the same for a seed."""
    rng = random.Random(seed)
    for k in range(count):
        source = sources[k % len(sources)]
        mode, data = mutated(source.read_bytes(), rng)
        yield f"{k:03d}-{mode}-{source.name}", data


def run(sources: list[Path], count: int, seed: int, deadline_seconds: float) -> list[tuple[str, str, str]]:
    """(name, outcome, message) of `count` mutated files."""
    import torch

    import vidpipe.analyze_pass
    import vidpipe.media.torchcodec_cpu  # all before the forks, once  # noqa: F401

    torch.set_num_threads(1)

    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, data in mutations(sources, count, seed):
            path = Path(folder) / name
            path.write_bytes(data)
            found.append((path.name, *outcome_of(str(path), deadline_seconds)))
            path.unlink()
    return found


def keep(sources: list[Path], count: int, seed: int, folder: Path) -> None:
    """Write the files that `run` goes through."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in mutations(sources, count, seed):
        (folder / name).write_bytes(data)


def real_files(folder: Path, number: int = 10) -> list[Path]:
    """The smallest decodable files over 10 kB."""
    from vidpipe.media.errors import MediaError
    from vidpipe.media.probe import probe

    chosen: list[Path] = []
    for path in sorted((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size):
        if len(chosen) == number:
            break
        try:
            if path.stat().st_size > 10_000 and probe(str(path)).kind == "video":
                chosen.append(path)
        except MediaError:
            continue
    return chosen


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deadline", type=float, default=60)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    if given.keep:
        keep(real_files(given.folder), given.count, given.seed, given.keep)
        return
    found = run(real_files(given.folder), given.count, given.seed, given.deadline)
    for name, outcome, message in found:
        print(f"{name}: {outcome}: {message}")
    print(dict(collections.Counter(outcome for _, outcome, _ in found)))
    if any(outcome in ("BUG", "HANG", "CRASH") for _, outcome, _ in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
