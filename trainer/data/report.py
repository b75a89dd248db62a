"""What a plan will do, before anything is trained: packs, fill, balance and its bounds, shares, reads, text.

`plan_report` plans some steps and lays out a few packs; it reads the index and no payload.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.bounds import fill_bound, lockstep_bound, sum_bound
from trainer.data.deal import MISSING
from trainer.data.index import Index
from trainer.data.plan import Planner, StepPlan
from trainer.data.read import PackFetcher, ReadConfig

BOUNDED_STEPS = 4
LAID_OUT_PACKS = 64
SHORT_BUDGET = 2.0
WIDTH, HEIGHT, MARGIN = 800, 400, 50


@dataclass(frozen=True, kw_only=True)
class BucketShare:
    """One stream: its samples, its share of an epoch's rows, tokens and FLOPs."""

    bucket: str
    dataset: str
    tokens: int
    rows: int
    weight: float
    of_samples: float
    of_tokens: float
    of_flops: float


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """Figures of a plan at a world size; balances are 1 where nobody waits.

    Attributes:
        steps_per_epoch: steps until each row has had its visits.
        fill: tokens over budget; `fill_bound` is what no planner exceeds.
        sums, worst_sums: greatest sum of FLOPs of a rank over their mean, on average and at worst over steps.
        lockstep: sum over slots of the costliest pack over the sum of means: what waiting at every pack costs.
        idle_share: slots without a pack.
        overflow_packs: packs beyond packs_per_step, for samples that found no room.
        longest_wait_steps: from when a row is due to when it comes, at most.
        requests, latent_bytes, text_bytes: a step and rank, on average.
        text_flops_share: what encoding the captions anew would add to a step's FLOPs, for each 10^9 parameters of the
            text encoder; NaN without text.
        cached_text_bytes: of all embeddings.
        warnings: what to look at.
        per_step: fill, sums and lockstep of each planned step, for the plot.
    """

    world_size: int
    packs_per_step: int
    slots: int
    token_budget: int
    rows: int
    steps_per_epoch: float
    samples_per_step: float
    fill: float
    fill_bound: float
    sums: float
    worst_sums: float
    sums_bound: float
    lockstep: float
    lockstep_bound: float
    idle_share: float
    overflow_packs: int
    longest_wait_steps: int
    plan_seconds: float
    requests: float
    latent_bytes: float
    text_bytes: float
    text_flops_share: float
    cached_text_bytes: int
    buckets: tuple[BucketShare, ...]
    warnings: tuple[str, ...]
    per_step: tuple[tuple[float, float, float], ...] = dataclasses.field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        return dataclasses.asdict(self)

    def text(self) -> str:
        """The report, a line a figure and a table of buckets."""
        lines = [
            f"{self.packs_per_step} packs a step of {self.token_budget:,} tokens, {self.slots} a rank on "
            f"{self.world_size} ranks; {self.samples_per_step:.1f} samples a step",
            f"{self.rows:,} rows, {self.steps_per_epoch:,.1f} steps an epoch; a row waits {self.longest_wait_steps} "
            "steps at most",
            f"fill      {self.fill:.4f}   no planner exceeds {self.fill_bound:.4f}",
            f"rank sums {self.sums:.4f}   worst {self.worst_sums:.4f}, no plan is below {self.sums_bound:.4f}",
            f"lockstep  {self.lockstep:.4f}   no plan is below {self.lockstep_bound:.4f}",
            f"idle      {self.idle_share:.2%} of slots, {self.overflow_packs} packs more than planned for",
            f"planning  {self.plan_seconds * 1e3:.1f} ms a step",
            f"reads     {self.requests:,.0f} requests a step and rank: {_mb(self.latent_bytes)} of latents, "
            f"{_mb(self.text_bytes)} of text",
            *self._text_lines(),
            "",
            "bucket          tokens        rows  weight  samples   tokens    FLOPs",
        ]
        for b in self.buckets:
            shares = f"{b.of_samples:8.2%} {b.of_tokens:8.2%} {b.of_flops:8.2%}"
            lines.append(f"{b.bucket:14} {b.tokens:7,} {b.rows:11,} {b.weight:7g} {shares}  {b.dataset}")
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])

    def _text_lines(self) -> list[str]:
        if not self.cached_text_bytes:
            return []
        return [
            f"text      {_mb(self.cached_text_bytes)} cached; encoding it online would add "
            f"{self.text_flops_share:.2%} of a step's FLOPs for each 10^9 parameters of the encoder"
        ]

    def plot(self, path: str | Path) -> None:
        """Draw fill, rank sums and lockstep over the planned steps as an SVG."""
        values = np.array(self.per_step)
        low, high = min(0.9, float(values.min())), max(1.1, float(values.max()))
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
            'font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        ]
        for i in range(6):
            value = low + (high - low) * i / 5
            y = _y(value, low, high)
            parts.append(f'<path d="M{MARGIN} {y:.1f}H{WIDTH - 20}" stroke="#ddd"/>')
            parts.append(f'<text x="8" y="{y + 4:.1f}">{value:.3f}</text>')
        names = (("fill", "#15803d"), ("rank sums", "#1d4ed8"), ("lockstep", "#c2410c"))
        for k, (name, colour) in enumerate(names):
            xs = MARGIN + (WIDTH - MARGIN - 20) * np.arange(len(values)) / max(1, len(values) - 1)
            points = " ".join(f"{x:.1f},{_y(v, low, high):.1f}" for x, v in zip(xs, values[:, k]))
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            label = f"{name}: {values[:, k].mean():.4f}"
            parts.append(f'<text x="{WIDTH - 180}" y="{24 + 16 * k}" fill="{colour}">{label}</text>')
        parts.append(f'<text x="{WIDTH // 2}" y="{HEIGHT - 8}" text-anchor="middle">{len(values)} steps</text></svg>')
        Path(path).write_text("\n".join(parts) + "\n", encoding="utf-8")


def _y(value: float, low: float, high: float) -> float:
    return HEIGHT - 30 - (HEIGHT - 50) * (value - low) / (high - low)


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:,.2f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.2f} MB"


def plan_report(index: Index, planner: Planner, *, world_size: int = 1, num_steps: int = 200) -> PlanReport:
    """Plan `num_steps` steps, one window at least, and say how they come out on `world_size` ranks.

    Raises:
        UserError: more ranks than packs a step.
    """
    planner.check_world_size(world_size)
    started = time.perf_counter()
    steps = [planner.step(n) for n in range(max(num_steps, planner.window_steps))]
    plan_seconds = (time.perf_counter() - started) / len(steps)
    dealt = [step.deal(world_size) for step in steps]
    per_step = [_balance(step, slots, planner) for step, slots in zip(steps, dealt)]
    fill, sums, lockstep = np.array(per_step).T
    chosen = [steps[i] for i in np.unique(np.linspace(0, len(steps) - 1, BOUNDED_STEPS).astype(int))]
    counts = [planner.class_counts(step) for step in chosen]
    all_counts = planner.epoch_counts()
    requests, latent_bytes, text_bytes, text_tokens = _reads(index, planner, steps, world_size)
    step_flops = float(np.mean([sum(pack.flops for pack in step) for step in chosen])) / world_size
    budget, packs = planner.config.token_budget, planner.config.packs_per_step
    return PlanReport(
        world_size=world_size,
        packs_per_step=packs,
        slots=dealt[0].shape[1],
        token_budget=budget,
        rows=sum(s.num_rows for s in planner.streams),
        steps_per_epoch=planner.steps_per_epoch,
        samples_per_step=float(np.mean([step.num_samples.sum() for step in steps])),
        fill=float(fill.mean()),
        fill_bound=fill_bound(planner.lengths, all_counts, budget),
        sums=float(sums.mean()),
        worst_sums=float(sums.max()),
        sums_bound=float(np.mean([sum_bound(planner.classes, c, packs, world_size) for c in counts])),
        lockstep=float(lockstep.mean()),
        lockstep_bound=float(np.mean([lockstep_bound(planner.classes, c, packs, world_size) for c in counts])),
        idle_share=float(np.mean([(slots == MISSING).mean() for slots in dealt])),
        overflow_packs=sum(len(step) - packs for step in steps),
        longest_wait_steps=planner.window_steps,
        plan_seconds=plan_seconds,
        requests=requests,
        latent_bytes=latent_bytes,
        text_bytes=text_bytes,
        text_flops_share=2e9 * text_tokens / step_flops if index.texts else float("nan"),
        cached_text_bytes=_cached_text_bytes(index),
        buckets=_buckets(index, planner),
        warnings=_warnings(planner),
        per_step=tuple((float(a), float(b), float(c)) for a, b, c in per_step),
    )


def _balance(step: StepPlan, slots: np.ndarray, planner: Planner) -> tuple[float, float, float]:
    """Fill, rank sums and lockstep of a step."""
    costs = np.append(step.costs, 0)[slots].astype(np.float64)
    sums = costs.sum(axis=1)
    fill = step.num_tokens.sum() / (planner.config.token_budget * len(step))
    return float(fill), float(sums.max() / sums.mean()), float(costs.max(axis=0).sum() / costs.mean(axis=0).sum())


def _reads(
    index: Index, planner: Planner, steps: Sequence[StepPlan], world_size: int
) -> tuple[float, float, float, float]:
    """Requests, bytes of latents and of text, and text tokens, a step and rank."""
    fetcher = PackFetcher(index, planner.config.seed, ReadConfig())
    packs = [pack for step in steps[:: max(1, len(steps) // 8)] for pack in step]
    packs = packs[:: max(1, len(packs) // LAID_OUT_PACKS)]
    found = []
    for pack in packs:
        layout = fetcher.lay_out(pack.rows, pack.visits)
        tokens = int(layout.text_tokens.sum())
        found.append((fetcher.count_requests(layout), layout.latent_bytes, layout.text_bytes, tokens))
    a, b, c, d = np.mean(found, axis=0) * planner.config.packs_per_step / world_size
    return float(a), float(b), float(c), float(d)


def _cached_text_bytes(index: Index) -> int:
    element = {"bfloat16": 2, "float16": 2, "float32": 4}
    return sum(
        int(index.text_tokens[t.start : t.stop].sum(dtype=np.int64)) * t.dim * element[t.dtype] for t in index.texts
    )


def _buckets(index: Index, planner: Planner) -> tuple[BucketShare, ...]:
    rows = np.array([s.weight * s.num_rows for s in planner.streams])
    lengths = np.array([s.num_tokens for s in planner.streams], np.float64)
    tokens, flops = rows * lengths, rows * planner.flops.flops(lengths)
    return tuple(
        BucketShare(
            bucket=s.bucket,
            dataset=index.config.datasets[s.dataset].path,
            tokens=s.num_tokens,
            rows=s.num_rows,
            weight=s.weight,
            of_samples=float(rows[i] / rows.sum()),
            of_tokens=float(tokens[i] / tokens.sum()),
            of_flops=float(flops[i] / flops.sum()),
        )
        for i, s in enumerate(planner.streams)
    )


def _warnings(planner: Planner) -> tuple[str, ...]:
    longest, budget = int(planner.lengths.max()), planner.config.token_budget
    found = []
    if budget < SHORT_BUDGET * longest:
        found.append(
            f"token_budget {budget:,} is less than twice the longest sample, {longest:,} tokens: packs with one are "
            "heavier than others can be made, and ranks wait; raise the budget, or use more packs a rank"
        )
    left_out = [s for s in planner.index.streams if s.num_tokens > budget]
    if left_out:
        share = sum(s.num_rows for s in left_out) / len(planner.index)
        found.append(f"{', '.join(s.bucket for s in left_out)}: longer than the budget, {share:.1%} of rows left out")
    return tuple(found)
