"""Buckets: frames x height x width, written `81x480x832`. One table each, so a table's rows share one latent shape.

A bucket is valid for a latent space: F = stride_t * k + 1, H and W multiples of spatial stride x patch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from schemas.errors import BucketMismatch, UserError
from schemas.latent_spaces import LatentSpace

_PATTERN = re.compile(r"(\d+)x(\d+)x(\d+)")


@dataclass(frozen=True, order=True)
class Bucket:
    """A clip shape in pixels: `num_frames` x `height` x `width`."""

    num_frames: int
    height: int
    width: int

    def __post_init__(self) -> None:
        if min(self.num_frames, self.height, self.width) < 1:
            raise BucketMismatch(f"bucket {self}: every dimension must be at least 1")

    @classmethod
    def parse(cls, text: str) -> Bucket:
        """Read `FxHxW`."""
        match = _PATTERN.fullmatch(text.strip().lower())
        if not match:
            raise BucketMismatch(f"bucket {text!r}: expected FRAMESxHEIGHTxWIDTH such as 81x480x832")
        return cls(*map(int, match.groups()))

    def __str__(self) -> str:
        return f"{self.num_frames}x{self.height}x{self.width}"

    @property
    def num_pixels(self) -> int:
        """Pixels over all frames."""
        return self.num_frames * self.height * self.width

    def check(self, space: LatentSpace, patch_thw: Sequence[int] = (1, 2, 2)) -> Bucket:
        """Return self, or raise BucketMismatch naming the nearest bucket that the space allows."""
        step_h, step_w = space.stride_h * patch_thw[1], space.stride_w * patch_thw[2]
        good = Bucket(
            max(1, round((self.num_frames - 1) / space.stride_t) * space.stride_t + 1),
            max(1, round(self.height / step_h)) * step_h,
            max(1, round(self.width / step_w)) * step_w,
        )
        if self != good:
            raise BucketMismatch(
                f"bucket {self}: {space.name} wants frames {space.stride_t}k + 1, height a multiple of {step_h} "
                f"and width of {step_w}; nearest is {good}"
            )
        return self

    def latent_shape(self, space: LatentSpace) -> tuple[int, int, int, int]:
        """[C, T, H, W] of one latent."""
        return (
            space.channels,
            (self.num_frames - 1) // space.stride_t + 1,
            self.height // space.stride_h,
            self.width // space.stride_w,
        )

    def num_tokens(self, space: LatentSpace, patch_thw: Sequence[int] = (1, 2, 2)) -> int:
        """Transformer tokens of one latent after patching; a dimension that the patch does not divide rounds up."""
        _, *thw = self.latent_shape(space)
        return math.prod(math.ceil(size / patch) for size, patch in zip(thw, patch_thw))


@dataclass(frozen=True, kw_only=True)
class BucketSet:
    """AR-aware bucket set from area budgets.

    Attributes:
        areas: pixel budgets a frame, such as 480 * 832; a bucket's height x width is at most its budget.
        frames: frame counts.
        num_aspects: aspect ratios a budget, spaced evenly in log between 1/max_aspect and max_aspect.
        max_aspect: width / height of the widest bucket.
    """

    areas: tuple[int, ...]
    frames: tuple[int, ...]
    num_aspects: int = 7
    max_aspect: float = 2.0

    def __post_init__(self) -> None:
        if not self.areas or not self.frames or min(self.areas) < 1 or min(self.frames) < 1:
            raise UserError("bucket set: areas and frames must be non-empty and positive")
        if self.num_aspects < 1 or self.max_aspect < 1:
            raise UserError("bucket set: num_aspects and max_aspect must be at least 1")

    def buckets(self, space: LatentSpace, patch_thw: Sequence[int] = (1, 2, 2)) -> list[Bucket]:
        """All distinct valid buckets, sorted."""
        step_h, step_w = space.stride_h * patch_thw[1], space.stride_w * patch_thw[2]
        n = self.num_aspects
        exponents = [0.0] if n == 1 else [2 * i / (n - 1) - 1 for i in range(n)]
        found: set[Bucket] = set()
        for area in self.areas:
            for exponent in exponents:
                aspect = self.max_aspect**exponent
                height = max(1, round(math.sqrt(area / aspect) / step_h)) * step_h
                width = max(1, int(min(area / height, height * aspect * 1.05 + step_w) / step_w)) * step_w
                if height * width <= area:
                    found.update(Bucket(f, height, width).check(space, patch_thw) for f in self.frames)
        if not found:
            raise BucketMismatch(
                f"no bucket of {space.name} fits areas {self.areas}: the smallest is {step_h}x{step_w}"
            )
        return sorted(found)


def parse_buckets(texts: Iterable[str], space: LatentSpace, patch_thw: Sequence[int] = (1, 2, 2)) -> list[Bucket]:
    """Parse and check a list of `FxHxW`; duplicates are dropped."""
    return sorted({Bucket.parse(text).check(space, patch_thw) for text in texts})
