"""CPU time of near-duplicate search over synthetic hashes: half of the clips are copies of the other half.

    python tests/bench/near_duplicates.py [--clips 100000] [--radius 6]

A clip's three hashes drift by up to ten bits from one to the next; a copy differs in up to three bits of each.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from vidpipe.near_duplicates import ORIENTATIONS, UPRIGHT, near_components


def flipped(hashes: np.ndarray, bits: int, rng: np.random.Generator) -> np.ndarray:
    """Hashes with up to that many random bits turned."""
    mask = np.zeros_like(hashes)
    for _ in range(bits):
        mask |= np.uint64(1) << rng.integers(0, 64, hashes.shape).astype(np.uint64)
    return hashes ^ mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--radius", type=int, default=6)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, 2**64, args.clips // 2, dtype=np.uint64)]
    for _ in range(2):
        columns.append(flipped(columns[-1], 10, rng))
    originals = np.stack(columns, axis=1)
    hashes = np.unique(np.concatenate([originals, flipped(originals, 3, rng)]), axis=0)
    for name, orientations in (("upright", UPRIGHT), ("turned and mirrored too", ORIENTATIONS)):
        start = time.process_time()
        groups = len(np.unique(near_components(hashes, args.radius, orientations)))
        seconds = time.process_time() - start
        print(f"{len(hashes)} clips, {name}: {groups} groups (expected {args.clips // 2}), {seconds:.1f} s")


if __name__ == "__main__":
    main()
