"""VAE encoding on a GPU: diffusers eager, diffusers compiled, ours; frames a second, TFLOP/s and error against float32.

    python tests/bench/vae.py [--buckets 17x480x832 ...] [--rounds 5] [--output vae.json]

The full Wan 2.1 configuration with random weights (speed does not depend on them), saved to a temporary folder; with
`--source`, the checkpoint there. Variants take turns within a round, so that a change of clock hits all; a figure is
the median of the rounds. FLOPs are counted by torch's FlopCounterMode on meta tensors, 2 a multiply-add.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from schemas.buckets import Bucket
from vidpipe.vaes.base import make_vae
from vidpipe.vaes.diffusers_vae import compiled

BUCKETS = ("17x480x832", "81x480x832", "81x720x1280")


def saved(folder: str, small: bool) -> str:
    """A random checkpoint of the full configuration (or a small one, to try the script)."""
    import diffusers

    torch.manual_seed(0)
    diffusers.AutoencoderKLWan(**({"base_dim": 16} if small else {})).save_pretrained(folder)
    return folder


def footage(bucket: Bucket, batch: int, device: str) -> torch.Tensor:
    """Smooth moving pictures with some grain, uint8 [B, 3, T, H, W]."""
    generator = torch.Generator().manual_seed(0)
    t, y, x = torch.meshgrid(
        *(torch.arange(n, dtype=torch.float32) for n in (bucket.num_frames, bucket.height, bucket.width)), indexing="ij"
    )
    planes = [torch.sin(x / (20 + 9 * c) + t / 5) + torch.cos(y / (30 - 7 * c) - t / 7 + c) for c in range(3)]
    clip = 128 + 45 * torch.stack(planes) + 4 * torch.randn(3, *t.shape, generator=generator)
    return clip.clamp(0, 255).to(torch.uint8)[None].repeat(batch, 1, 1, 1, 1).to(device)


def flops_a_clip(source: str, bucket: Bucket) -> int:
    """FLOPs of encoding one clip."""
    import diffusers
    from torch.utils.flop_counter import FlopCounterMode

    config = diffusers.AutoencoderKLWan.load_config(source)
    with torch.device("meta"):
        model = diffusers.AutoencoderKLWan.from_config(config)
        x = torch.empty(1, 3, bucket.num_frames, bucket.height, bucket.width)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model.encode(x)
    return counter.get_total_flops()


class Variant:
    """One way to encode; makes its model when it is first called."""

    def __init__(self, name: str, make: Callable[[], Callable[[torch.Tensor], torch.Tensor]], batch: int = 1) -> None:
        self.name, self.make, self.batch = name, make, batch
        self.encode: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __call__(self, frames: torch.Tensor) -> torch.Tensor:
        if self.encode is None:
            self.encode = self.make()
        return self.encode(frames)


def variants(source: str, device: str, batches: list[int]) -> list[Variant]:
    """What is compared; all in bfloat16."""

    def ours(**params: Any) -> Any:
        return make_vae("wan2.1", source=source, device=device, params={"latent_dtype": "float32", **params})

    def eager() -> Any:
        return by_hand(ours(channels_last=False, compile=False))

    def diffusers_compiled() -> Any:
        vae = ours(channels_last=True, compile=False)
        vae.model.encoder.forward = compiled(vae.model.encoder.forward)
        return by_hand(vae)

    found = [Variant("diffusers eager", eager), Variant("diffusers channels-last, compiled", diffusers_compiled)]
    return found + [
        Variant(f"ours, batch {b}", lambda: ours(channels_last=True, compile=True).encode, b) for b in batches
    ]


def by_hand(vae: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """What a user of diffusers writes."""
    mean, std = (torch.tensor(v, device=vae.device).view(1, -1, 1, 1, 1) for v in (vae.space.mean, vae.space.std))

    def encode(frames: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            z = vae.model.encode(vae.normalised(frames)).latent_dist.mode()
        return (z.float() - mean) / std

    return encode


def reference(source: str, device: str, frames: torch.Tensor) -> torch.Tensor:
    """Float32 latents of one clip."""
    params = {"dtype": "float32", "latent_dtype": "float32", "channels_last": False, "compile": False}
    vae = make_vae("wan2.1", source=source, device=device, params=params)
    return vae.encode(frames)


def seconds_of(function: Callable[[], Any], device: str) -> float:
    """Wall time of one call, the device idle before and after."""
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def free() -> None:
    """Give memory back between buckets."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measure(bucket: Bucket, found: list[Variant], source: str, device: str, rounds: int) -> list[dict[str, Any]]:
    """All variants on one bucket."""
    flops = flops_a_clip(source, bucket)
    exact = reference(source, device, footage(bucket, 1, device))
    free()
    first: dict[str, tuple[float, float, float]] = {}
    times: dict[str, list[float]] = {v.name: [] for v in found}
    frames = {v.batch: footage(bucket, v.batch, device) for v in found}
    for v in found:
        start = time.perf_counter()
        try:
            latents = v(frames[v.batch])
            v(frames[v.batch])
        except torch.OutOfMemoryError:
            print(f"{bucket} {v.name}: out of memory", flush=True)
            times.pop(v.name)
            free()
            continue
        error = (latents[:1].float() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
        largest = (latents[:1].float() - exact).abs().max()
        first[v.name] = (time.perf_counter() - start, float(error), float(largest))
        print(f"{bucket} {v.name}: ready after {first[v.name][0]:.0f} s", flush=True)
    for _ in range(rounds):
        for v in found:
            if v.name in times:
                times[v.name].append(seconds_of(lambda v=v: v(frames[v.batch]), device))  # type: ignore[misc]
    rows = []
    for v in found:
        if v.name not in times:
            continue
        seconds = statistics.median(times[v.name]) / v.batch
        rows.append({
            "bucket": str(bucket), "variant": v.name, "frames_per_s": bucket.num_frames / seconds,
            "tflop_per_s": flops / seconds / 1e12, "gflop_per_frame": flops / bucket.num_frames / 1e9,
            "relative_rms_error": first[v.name][1], "largest_error": first[v.name][2], "start_s": first[v.name][0],
            "spread": max(times[v.name]) / min(times[v.name]),
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--buckets", nargs="+", default=list(BUCKETS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--source", default="")
    parser.add_argument("--small", action="store_true", help="a small configuration, to try the script")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = options.source or saved(folder, options.small)
        found = variants(source, options.device, options.batches)
        rows: list[dict[str, Any]] = []
        for text in options.buckets:
            rows += measure(Bucket.parse(text), found, source, options.device, options.rounds)
            free()
            if options.output:
                Path(options.output).write_text(json.dumps(rows, indent=1))
    print(f"{'bucket':<14}{'variant':<36}{'frames/s':>10}{'TFLOP/s':>9}{'rel. RMS':>10}{'max':>8}{'start s':>9}")
    for r in rows:
        print(
            f"{r['bucket']:<14}{r['variant']:<36}{r['frames_per_s']:>10.1f}{r['tflop_per_s']:>9.1f}"
            f"{r['relative_rms_error']:>10.2e}{r['largest_error']:>8.3f}{r['start_s']:>9.0f}"
        )


if __name__ == "__main__":
    main()
