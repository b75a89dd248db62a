"""The training loop: steps over packs, logging, held-out loss, checkpoints.

A step's loss is one mean over all samples or tokens of all its packs on all ranks (`flow.FlowConfig.loss_norm`), so
that it does not depend on how packs are shared; a missing pack has weight 0 and adds nothing, but runs, since its
passes are collectives under FSDP.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from schemas.errors import UserError
from trainer import checkpoint, flow, heldout
from trainer.checkpoint import CheckpointConfig
from trainer.flow import FlowConfig
from trainer.heldout import NUM_BINS, Heldout, HeldoutConfig, HeldoutLoss
from trainer.metrics import Interval, LogConfig, MetricsWriter, bin_values, memory_bytes, peak_flops
from trainer.optim import Average, OptimizerConfig, clip_gradients, make_optimizer
from trainer.parallel.shard import set_last_pack, spread
from trainer.parallel.world import ParallelConfig, World
from trainer.stop import Stop

if TYPE_CHECKING:
    from trainer.data.collate import Pack

log = logging.getLogger("trainer")


class StepSource(Protocol):
    """What the loop reads from: this rank's packs of each step, the same number on every rank."""

    def __iter__(self) -> Iterator[Sequence[Pack]]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """What the loop needs of a recipe."""

    steps: int
    seed: int = 0
    flow: FlowConfig = field(default_factory=FlowConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    heldout: HeldoutConfig = field(default_factory=HeldoutConfig)
    log: LogConfig = field(default_factory=LogConfig)


@dataclass
class _Tally:
    """Sums since the last log line, this rank's; tensors stay on the device until the line is due."""

    started: float
    loss: list[torch.Tensor] = field(default_factory=list)
    bins: list[torch.Tensor] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    tokens: int = 0
    padding: int = 0
    data_seconds: float = 0.0


class Trainer:
    """One rank of a training run.

    Args:
        model: the whole model on the world's device, equal on all ranks; it is spread here.
        source: packs by step.
        null_text_ME: embedding of the empty caption.
        held: held-out evaluation, if there is any.
        run: output folder; None keeps nothing (tests, benchmarks).
        state: JSON values to keep in checkpoints, such as recipe and table versions.
    """

    def __init__(
        self,
        model: nn.Module,
        config: LoopConfig,
        world: World,
        source: StepSource,
        *,
        null_text_ME: torch.Tensor,
        text_length: int = 0,
        held: Heldout | None = None,
        run: Path | None = None,
        state: dict[str, Any] | None = None,
        flows: Sequence[tuple[int, FlowConfig]] = (),
    ) -> None:
        self.flows = list(flows) or [(0, config.flow)]
        self.config, self.world, self.source, self.held, self.run = config, world, source, held, run
        self.model = spread(model, config.parallel, world)
        self.optimizer = make_optimizer(self.model, config.optimizer)
        self.average = Average(self.model, config.optimizer.ema_decay)
        self.null_text_ME, self.text_length = null_text_ME, text_length
        self.state = state or {}
        self.step = 0
        self.last_heldout: HeldoutLoss | None = None
        self.stop = Stop()
        self._saved_step: int | None = None
        self._writer: MetricsWriter | None = None
        self._peak = peak_flops(world.device)

    def resume(self, folder: Path) -> None:
        """Go on from a verified checkpoint, whatever the number of ranks that saved it.

        Raises:
            UserError: it is of another model, or of another stream of data.
        """
        state = checkpoint.read_state(folder)
        checkpoint.load(folder, self.world, model=self.model, average=self.average, optimizer=self.optimizer)
        self.source.load_state_dict(state["source"])
        self.step = self._saved_step = int(state["step"])

    def train(self, on_step: Callable[[int], None] | None = None) -> None:
        """Run to `config.steps`, or to a SIGTERM: `stop.signal` then says so, and there is a checkpoint of `step`.

        `on_step` is called with the number of steps done.
        """
        with self.stop.listening():
            self._run(on_step)

    def _run(self, on_step: Callable[[int], None] | None) -> None:
        config = self.config
        self._open_writer()
        tally = _Tally(time.perf_counter())
        if self.step == 0 and self.held and config.heldout.every:
            self._evaluate()
            tally.started = time.perf_counter()
        steps = iter(self.source) if self.step < config.steps else iter(())
        while self.step < config.steps:
            before = self.source.state_dict()
            packs = self._next(steps, tally)
            if self.stop.agreed(self.world):
                self._save_at_stop(before)
                break
            norm = self._train_step(packs, tally)
            self.step += 1
            if self.step % config.log.every == 0 or self.step == config.steps:
                tally = self._log(tally, norm)
            paused = time.perf_counter()
            self._at_boundary()
            tally.started += time.perf_counter() - paused
            if on_step:
                on_step(self.step)
        if self._writer:
            self._writer.close()

    def close(self) -> None:
        """Stop the loader's processes, if it has any."""
        close = getattr(self.source, "close", None)
        if close:
            close()

    def _at_boundary(self) -> None:
        """Held-out loss and checkpoint where they are due."""
        config, last = self.config, self.step == self.config.steps
        if self.held and (last or (config.heldout.every and self.step % config.heldout.every == 0)):
            self._evaluate()
        if last or (config.checkpoint.every and self.step % config.checkpoint.every == 0):
            self.save()

    def _save_at_stop(self, source_state: dict[str, Any]) -> None:
        """Save what is not saved yet; the packs that were asked for last are not trained on."""
        if self.step and self._saved_step != self.step:
            self.save(source_state)

    def _next(self, steps: Iterator[Sequence[Pack]], tally: _Tally) -> Sequence[Pack]:
        started = time.perf_counter()
        try:
            packs = next(steps)
        except StopIteration:
            raise UserError(f"data ended at step {self.step}, before steps = {self.config.steps}") from None
        except RuntimeError:
            if not self.stop.expected():  # else its processes got the signal before this one
                raise
            return []
        tally.data_seconds += time.perf_counter() - started
        return packs

    def _train_step(self, packs: Sequence[Pack], tally: _Tally) -> torch.Tensor:
        config, norm = self.config, self.flow_now.loss_norm
        batches = [self._prepare(pack) for pack in packs]
        count = torch.tensor(sum(flow.loss_count(b, norm) for b in batches), device=self.world.device)
        count = self.world.sum(count).clamp(min=1)
        self._set_lr(config.optimizer.lr_at(self.step, config.steps))
        total = torch.zeros((), device=self.world.device)
        bins = torch.zeros(2, NUM_BINS, device=self.world.device)
        for i, batch in enumerate(batches):
            set_last_pack(self.model, i == len(batches) - 1, config.parallel)
            error_L = flow.squared_error(heldout.run(self.model, batch), batch)
            loss = flow.loss_sum(error_L, batch, norm) / count
            (loss * self.world.size).backward()  # FSDP takes the mean of gradients over ranks
            total += loss.detach()
            _add_bins(bins, error_L.detach(), batch)
        grad_norm = clip_gradients(self.model, config.optimizer.clip_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update(self.model, self.step)
        self._count(packs, batches, total, bins, tally)
        return grad_norm

    @property
    def flow_now(self) -> FlowConfig:
        """Flow matching of the phase that the present step belongs to."""
        return next(found for start, found in reversed(self.flows) if start <= self.step)

    def _prepare(self, pack: Pack) -> flow.Batch:
        config = self.config
        draws = flow.draw(self.flow_now, config.seed, pack.latent_ids, list(pack.visits), heldout.pack_lengths(pack))
        return flow.prepare(
            pack,
            draws,
            null_text_ME=self.null_text_ME,
            text_length=self.text_length,
            device=self.world.device,
            keep_padding=config.parallel.compile,
        )

    def _set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def _count(
        self,
        packs: Sequence[Pack],
        batches: Sequence[flow.Batch],
        loss: torch.Tensor,
        bins: torch.Tensor,
        tally: _Tally,
    ) -> None:
        tally.loss.append(loss)
        tally.bins.append(bins)
        tally.tokens += sum(b.num_tokens for b in batches)
        tally.padding += sum(len(p.tokens_LD) - b.num_tokens for p, b in zip(packs, batches))
        flops: Callable[[int, int], float] = self.model.config.flops  # type: ignore[union-attr, assignment]
        tally.flops.append(sum(flops(n, m) for b in batches for n, m in zip(b.lengths, b.layout.text_segments.lengths)))

    def _log(self, tally: _Tally, grad_norm: torch.Tensor) -> _Tally:
        """Gather an interval's figures over ranks, write them, stop if they are not finite; return a fresh tally."""
        losses = self.world.sum(torch.stack(tally.loss))
        bins = self.world.sum(torch.stack(tally.bins).sum(0))
        loss, norm = losses.mean().item(), grad_norm.item()
        seconds = time.perf_counter() - tally.started
        rows = self.world.gather([tally.tokens, tally.padding, tally.data_seconds, *tally.flops])
        tokens, padding, data_seconds = rows[:, :3].sum(0).tolist()
        flops = rows[:, 3:]
        interval = Interval(
            step=self.step,
            num_steps=self.config.steps,
            loss=loss,
            grad_norm=norm,
            lr=self.optimizer.param_groups[0]["lr"],
            seconds=seconds,
            tokens=tokens,
            flops=flops.sum().item(),
            data_seconds=data_seconds / self.world.size,
            padding=padding / max(1.0, tokens + padding),
            imbalance=(flops.max(0).values.sum() / flops.mean(0).sum().clamp(min=1)).item(),
            memory_bytes=memory_bytes(self.world.device),
            size=self.world.size,
            peak_flops=self._peak,
            data_cause=str(getattr(self.source, "wait_cause", "")),
            bins=tuple((bins[0] / bins[1]).tolist()),
        )
        if self.world.is_main:
            log.info(interval.line())
            if self._writer:
                self._writer.write(self.step, interval.values())
        self._require_finite(loss, norm)
        return _Tally(time.perf_counter())

    def _require_finite(self, loss: float, grad_norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return
        saved = [p.name for p in checkpoint.checkpoints(self.run)] if self.run else []
        newest = f"the newest checkpoint is {saved[0]}" if saved else "there is no checkpoint yet"
        raise UserError(
            f"step {self.step}: loss {loss}, gradient norm {grad_norm}: not finite; {newest}; "
            "lower optimizer.lr, raise warmup_steps, or look for bad latents with `vidpipe verify`"
        )

    def _evaluate(self) -> None:
        """Held-out loss of the averaged weights where there are any, else of the model's own."""
        assert self.held is not None
        if self.average.weights:
            with self.average.applied(self.model):
                found = self.held.evaluate(self.model)
        else:
            found = self.held.evaluate(self.model)
        self.last_heldout = found
        if not self.world.is_main:
            return
        log.info("step: %6d/%d  %s", self.step, self.config.steps, found)
        if self._writer:
            values = {"loss": found.loss, "linear": found.linear, "shuffled": found.shuffled, "ratio": found.ratio}
            named = {f"heldout/{key}": value for key, value in values.items()}
            bins = bin_values("heldout/loss", found.bins) | bin_values("heldout/linear", found.linear_bins)
            self._writer.write(self.step, named | bins)

    def save(self, source_state: dict[str, Any] | None = None) -> Path | None:
        """Write a checkpoint of this step; all ranks call it. `source_state`: the source's, if not its present one."""
        if self.run is None:
            return None
        self._saved_step = self.step
        return checkpoint.save(
            self.run,
            self.step,
            {**self.state, "source": source_state or self.source.state_dict()},
            self.world,
            model=self.model,
            optimizer=self.optimizer,
            average=self.average,
            keep=self.config.checkpoint.keep,
        )

    def _open_writer(self) -> None:
        if self.run is not None and self.world.is_main:
            self._writer = MetricsWriter(self.run, self.config.log, self.step)


def _add_bins(bins: torch.Tensor, error_L: torch.Tensor, batch: flow.Batch) -> None:
    """Add each sample's mean error, and 1, to its timestep's bin."""
    if not batch.lengths:
        return
    index = torch.tensor([min(int(t * NUM_BINS), NUM_BINS - 1) for t in batch.times], device=error_L.device)
    means = flow.sample_means(error_L, batch)
    bins.index_add_(1, index, torch.stack([means, torch.ones_like(means)]))
