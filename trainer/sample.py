"""Sample a run's model: integrate the flow's ODE from noise, decode with the run's latent space, write an MP4.

Legend: N samples, L tokens, P values a token, C channels, T latent frames, E text width.

dx/dt = v along x_t = (1 - t) x_0 + t noise, from t = 1 to 0 by Euler's method on shifted timesteps, as Wan 2.1 samples.
With classifier-free guidance v = v_empty + cfg (v_text - v_empty); both are one packed forward pass.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from schemas import registry
from schemas.buckets import Bucket
from schemas.errors import UserError
from schemas.latent_spaces import LatentSpace
from trainer import flow, philox, run
from trainer.data.collate import unpatchify
from trainer.models.attention import Segments
from trainer.models.wan import Layout
from trainer.parallel.shard import spread
from trainer.parallel.world import ParallelConfig, start_world, stop_world

log = logging.getLogger("trainer")

MIN_WIDTH = 640
"""Small pictures are enlarged by whole numbers to about this width of the whole sheet, so that a person sees them."""


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """What to sample.

    Attributes:
        prompts: texts, encoded by the dataset's text encoder; empty takes held-out captions that the run has kept.
        num_heldout: how many of those.
        num_steps: of the integration.
        cfg: guidance scale; 1 is none.
        shift: of the timesteps; None takes the training's.
        size: `FxHxW`; the run's most frequent bucket where empty.
        weights: `average` or `model`.
        step: checkpoint to use; the newest that verifies where None.
    """

    prompts: tuple[str, ...] = ()
    num_heldout: int = 6
    num_steps: int = 40
    cfg: float = 2.0
    shift: float | None = None
    seed: int = 0
    size: str = ""
    fps: float = 0.0
    weights: str = "average"
    step: int | None = None
    device: str = "auto"
    max_tokens: int = 131_072

    def __post_init__(self) -> None:
        if self.num_steps < 1 or self.num_heldout < 1:
            raise UserError("sample: steps and heldout must be at least 1")
        if self.shift is not None and self.shift <= 0:
            raise UserError(f"sample: shift must be positive, found {self.shift}")


def sample_run(folder: Path, output: Path, config: SampleConfig) -> list[str]:
    """Sample the run in `folder` into an MP4; return the captions, one a sample, row by row of the sheet.

    Raises:
        UserError: no run, no checkpoint, no held-out captions, a size that the latent space refuses, an output that
            cannot be written.
    """
    check_output(output)
    config = dataclasses.replace(config, device=_device(config.device))
    facts = run.read_facts(folder)
    space = run.space_of(facts)
    texts, words, null_text_ME = _texts(folder, facts, config)
    vae = registry.load_vae(space.vae).for_space(space, config.device)
    try:
        model, step = _model(folder, config)
        bucket = _bucket(facts, space, model.config.patch_size, config.size)
        what = f"{len(texts)} samples of {bucket} from step {step}"
        log.info("%s, %d steps, cfg %g, on %s", what, config.num_steps, config.cfg, config.device)
        latents = sample_latents(model, texts, null_text_ME, bucket.latent_shape(space), config, facts)
    finally:
        stop_world()
    videos = [vae.decode(latent_CTHW[None])[0].cpu() for latent_CTHW in latents]
    write_mp4(output, tile(videos), config.fps or facts["fps"])
    return words


def _model(folder: Path, config: SampleConfig) -> tuple[Any, int]:
    """The model as training computes with it: on a GPU in bfloat16 from float32 weights, which FSDP casts."""
    if config.device == "cpu":
        return run.load_model(folder, weights=config.weights, step=config.step)
    parallel = ParallelConfig(reshard_after_forward=False)
    world = start_world(parallel)
    model, step = run.load_model(folder, weights=config.weights, step=config.step, world=world)
    return spread(model, parallel, world), step


def _device(name: str) -> str:
    available = torch.cuda.is_available()
    if name not in ("auto", "cpu", "cuda") or (name == "cuda" and not available):
        raise UserError(f"sample: device must be auto, cpu or cuda (if there is one), found {name!r}")
    return ("cuda" if available else "cpu") if name == "auto" else name


def check_output(output: Path) -> None:
    """Raise UserError unless `output` can be written; found out before minutes of sampling."""
    if output.suffix.lower() not in (".mp4", ".mkv", ".mov"):
        raise UserError(f"output {output}: expected a name that ends in .mp4")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        existed = output.exists()
        with open(output, "ab"):
            pass
        if not existed:
            output.unlink()
    except OSError as error:
        raise UserError(f"output {output}: cannot be written: {error.strerror or error}") from None


def _bucket(facts: dict[str, Any], space: LatentSpace, patch: Sequence[int], size: str) -> Bucket:
    name = size or max(facts["buckets"], key=lambda bucket: facts["buckets"][bucket])
    return Bucket.parse(name).check(space, patch)


def _texts(
    folder: Path, facts: dict[str, Any], config: SampleConfig
) -> tuple[list[torch.Tensor], list[str], torch.Tensor]:
    """Embeddings [L, E], words, and the empty caption's embedding."""
    from safetensors import safe_open

    if config.prompts:
        if not facts["text"]:
            raise UserError(f"run {folder} was trained without text; leave out --prompt")
        text = facts["text"]
        encoder = registry.load_text_encoder(text.get("encoder", text["name"]))
        made = encoder.for_metadata(json.dumps(text), config.device).encode([*config.prompts, ""])
        return list(made[:-1]), list(config.prompts), made[-1]
    path = folder / run.CAPTIONS
    if not path.is_file():
        raise UserError(f"run {folder} keeps no held-out captions (nothing was held out); give --prompt TEXT")
    with safe_open(path, "pt") as file:
        words = json.loads(file.metadata()["captions"])
        null = file.get_tensor("null")
        texts = [file.get_tensor(f"text_{i:02d}") for i in range(len(words))]
    if not texts:  # trained without text
        return [null] * config.num_heldout, [""] * config.num_heldout, null
    chosen = range(min(config.num_heldout, len(texts)))
    return [texts[i] for i in chosen], [words[i] for i in chosen], null


@torch.no_grad()
def sample_latents(
    model: Any,
    texts: Sequence[torch.Tensor],
    null_text_ME: torch.Tensor,
    shape_CTHW: Sequence[int],
    config: SampleConfig,
    facts: dict[str, Any],
) -> list[torch.Tensor]:
    """Latents [C, T, H, W] float32, one a text, as many at once as `max_tokens` allows."""
    grid = [size // patch for size, patch in zip(shape_CTHW[1:], model.config.patch_size)]
    num_tokens = math.prod(grid)
    times = _times(config, facts, num_tokens)
    batch = max(1, config.max_tokens // (num_tokens * (2 if config.cfg != 1 else 1)))
    latents: list[torch.Tensor] = []
    for first in range(0, len(texts), batch):
        part = texts[first : first + batch]
        keys = [philox.key_of("sample", config.seed, first + i) for i in range(len(part))]
        tokens_NLP = _integrate(model, part, null_text_ME, grid, times, keys, config)
        channels, patch = shape_CTHW[0], model.config.patch_size
        latents += [unpatchify(tokens_LP, grid, channels, patch) for tokens_LP in tokens_NLP]
    return latents


def _times(config: SampleConfig, facts: dict[str, Any], num_tokens: int) -> list[float]:
    """num_steps + 1 values of t from 1 to 0, denser where the shift says so."""
    trained = flow.FlowConfig(shift=facts["shift"], shift_tokens=facts["shift_tokens"])
    shift = config.shift if config.shift is not None else trained.shift_of(num_tokens)
    return [flow.shift_time(1 - i / config.num_steps, shift) for i in range(config.num_steps + 1)]


def _integrate(
    model: Any,
    texts: Sequence[torch.Tensor],
    null_text_ME: torch.Tensor,
    grid: Sequence[int],
    times: Sequence[float],
    keys: Sequence[int],
    config: SampleConfig,
) -> torch.Tensor:
    """Tokens [N, L, P] at t = 0."""
    device, n, num_tokens = torch.device(config.device), len(texts), math.prod(grid)
    guided = config.cfg != 1
    both = [*texts, *([null_text_ME] * n if guided else [])]
    padded = [flow.pad_text(text, model.config.text_length).float() for text in both]
    segments = Segments([num_tokens] * len(both), device)
    grid_N3 = torch.tensor([list(grid)] * len(both), dtype=torch.int32, device=device)
    layout = Layout(segments, Segments([len(t) for t in padded], device), grid_N3)
    text_SE = torch.cat(padded).to(device)
    samples = Segments([num_tokens] * n, device)
    position = torch.arange(samples.total, device=device) % num_tokens
    x = philox.normal(philox.as_tensor(keys, device), samples.ids, position, model.config.token_dim)
    for t, following in itertools.pairwise(times):
        timestep_N = torch.full((len(both),), t * flow.TIMESTEP_SCALE, device=device)
        velocity = model(torch.cat([x, x]) if guided else x, timestep_N, text_SE, layout).float()
        if guided:
            with_text, without = velocity.chunk(2)
            velocity = without + config.cfg * (with_text - without)
        x = x + (following - t) * velocity
    return x.view(n, num_tokens, -1)


def tile(videos: Sequence[torch.Tensor]) -> torch.Tensor:
    """Lay equal videos, uint8 [3, T, H, W], out on a sheet, small ones enlarged; uint8 [T, H', W', 3], even sizes."""
    _, T, H, W = videos[0].shape
    columns = math.ceil(math.sqrt(len(videos) * H / W))
    columns = min(max(columns, 1), len(videos))
    rows = math.ceil(len(videos) / columns)
    gap = 4
    sheet = torch.zeros(3, T, rows * (H + gap) - gap, columns * (W + gap) - gap, dtype=torch.uint8)
    for i, video in enumerate(videos):
        y, x = i // columns * (H + gap), i % columns * (W + gap)
        sheet[:, :, y : y + H, x : x + W] = video
    scale = max(1, round(MIN_WIDTH / sheet.shape[3]))
    sheet = sheet.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    return sheet[:, :, : sheet.shape[2] // 2 * 2, : sheet.shape[3] // 2 * 2].permute(1, 2, 3, 0).contiguous()


def write_mp4(output: Path, frames_THWC: torch.Tensor, fps: float) -> None:
    """Write uint8 RGB frames as H.264 (MPEG-4 where FFmpeg has no x264)."""
    import av

    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    with av.open(str(output), "w") as container:
        stream: Any = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = frames_THWC.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": "16"} if codec == "libx264" else {"q": "3"}
        for picture in frames_THWC.numpy():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def config_from(values: dict[str, Any]) -> SampleConfig:
    """From command-line options."""
    known = {f.name for f in dataclasses.fields(SampleConfig)}
    return SampleConfig(**{key: value for key, value in values.items() if key in known})
