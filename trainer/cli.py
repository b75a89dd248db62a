"""The `trainer` command. Imports of weight happen inside the commands: `trainer --help` answers at once."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from schemas.errors import UserError


class _Group(click.Group):
    """Says what went wrong in one line; exit status 2 for a user's error, 130 after Ctrl-C, 143 after SIGTERM."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            click.echo(f"trainer: {_rank()}{error}", err=True)
            sys.exit(2)
        except KeyboardInterrupt:
            click.echo(f"trainer: {_rank()}stopped; run the same command to go on from the last checkpoint", err=True)
            sys.exit(130)


def _rank() -> str:
    rank = os.environ.get("RANK", "0")
    return "" if rank == "0" else f"rank {rank}: "


def _start_logging() -> None:
    import logging

    level = logging.INFO if not _rank() else logging.WARNING
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logging.getLogger("trainer").setLevel(level)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vidpipe")
def main() -> None:
    """Train a video model on cached latents, sample it, export it."""


def _recipe_options(function: Callable[..., Any]) -> Callable[..., Any]:
    @click.argument("recipe", type=click.Path(dir_okay=False))
    @click.option("--data", metavar="DATASET", help="Dataset to train on, in place of the recipe's `data.datasets`.")
    @click.option("--set", "overrides", multiple=True, metavar="A.B=VALUE", help="Override a key of the recipe.")
    @functools.wraps(function)
    def wrapped(**options: Any) -> Any:
        return function(**options)

    return wrapped


@main.command()
@_recipe_options
@click.option("--output", required=True, metavar="RUN", help="Folder of the run; it goes on there if it was cut off.")
@click.option(
    "--resume",
    type=click.Choice(["auto", "never"]),
    default="auto",
    show_default=True,
    help="auto: go on from the newest checkpoint in RUN that verifies; never: refuse a RUN that has one.",
)
def train(recipe: str, data: str | None, overrides: tuple[str, ...], output: str, resume: str) -> None:
    """Train RECIPE; alone, or as many processes as `torchrun` starts.

    SIGTERM ends it after the step at hand, with a checkpoint and exit status 143; the same command goes on.

    \b
    trainer train pipelines/train/quickstart.toml --data DATASET --output RUN
    torchrun --nproc-per-node 8 -m trainer.cli train RECIPE --data DATASET --output RUN
    """
    from trainer import recipe as recipes
    from trainer import run as runs
    from trainer.checkpoint import checkpoints
    from trainer.parallel.world import start_world, stop_world

    _start_logging()
    made, folder = recipes.load(recipe, data, overrides), Path(output)
    runs.check_output(folder)
    if resume == "never" and (found := checkpoints(folder)):
        raise UserError(f"output {output} has checkpoints up to {found[0].name}; name another folder, or --resume auto")
    trainer = None
    try:
        world = start_world(made.parallel)
        trainer = runs.make_trainer(made, folder, world, resume=resume == "auto")
        if trainer.step >= made.steps and world.is_main:
            click.echo(f"{output} is at step {trainer.step} of {made.steps} already; raise `steps` to train longer")
        trainer.train()
        if trainer.stop.signal:
            _end_stopped(trainer.stop.signal, trainer.step, world.is_main)
        if world.is_main and trainer.last_heldout:
            click.echo(f"done: {trainer.last_heldout}")
    finally:
        if trainer:
            trainer.close()
        trainer = None  # its model holds process groups
        stop_world()


def _end_stopped(number: int, step: int, is_main: bool) -> None:
    if is_main:
        click.echo(f"trainer: stopped by SIGTERM at step {step}; run the same command to go on from there", err=True)
    sys.exit(128 + number)


@main.command()
@click.argument("run", type=click.Path(file_okay=False))
@click.option("--output", required=True, type=click.Path(dir_okay=False), help="MP4 to write.")
@click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="Sample this text; repeatable.")
@click.option(
    "--heldout",
    "num_heldout",
    type=int,
    default=6,
    show_default=True,
    help="Held-out captions to sample without --prompt.",
)
@click.option("--steps", "num_steps", type=int, default=40, show_default=True, help="Steps of the integration.")
@click.option("--cfg", type=float, default=2.0, show_default=True, help="Guidance scale; 1 is none.")
@click.option("--shift", type=float, help="Shift of the timesteps; the training's if not given.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--size", default="", metavar="FxHxW", help="The run's most frequent bucket if not given.")
@click.option("--fps", type=click.FloatRange(min=0), default=0.0, help="Of the MP4; the latents' if not given.")
@click.option("--weights", type=click.Choice(["average", "model"]), default="average", show_default=True)
@click.option("--checkpoint", "step", type=int, metavar="STEP", help="The newest that verifies if not given.")
@click.option("--device", default="auto", show_default=True, help="cpu or cuda.")
def sample(run: str, output: str, **options: Any) -> None:
    """Sample the model of RUN into an MP4, several samples side by side."""
    from trainer import sample as sampling

    _start_logging()
    words = sampling.sample_run(Path(run), Path(output), sampling.config_from(options))
    for number, text in enumerate(words, 1):
        click.echo(f"{number}. {text}")
    click.echo(output)


@main.command()
@_recipe_options
@click.option("--world-size", type=click.IntRange(min=1), default=1, show_default=True, help="Ranks to plan for.")
@click.option("--steps", "num_steps", type=click.IntRange(min=1), default=200, show_default=True, help="Steps to plan.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--plot", default="", metavar="FILE.svg", help="Also draw fill and balance a step.")
def plan(recipe: str, data: str | None, overrides: tuple[str, ...], **options: Any) -> None:
    """Print how RECIPE's packs come out: fill, balance, shares, reads; needs no GPU and trains nothing."""
    from trainer import planning

    _start_logging()
    click.echo(planning.plan_text(recipe, data, overrides, **options))


@main.command()
@click.argument("run", type=click.Path(file_okay=False))
@click.option("--output", required=True, type=click.Path(file_okay=False), help="Folder to write.")
@click.option("--weights", type=click.Choice(["average", "model"]), default="average", show_default=True)
@click.option("--checkpoint", "step", type=int, metavar="STEP", help="The newest that verifies if not given.")
def export(run: str, output: str, weights: str, step: int | None) -> None:
    """Write the model of RUN as a diffusers checkpoint."""
    from trainer import run as runs
    from trainer.models import diffusers_format

    _start_logging()
    runs.check_output(Path(output))
    model, at = runs.load_model(Path(run), weights=weights, step=step)
    diffusers_format.write(output, model.config, model.state_dict())  # type: ignore[arg-type]
    click.echo(f"{output}: {diffusers_format.CLASS_NAME} of step {at}")


@main.command("import")
@click.argument("checkpoint", type=click.Path(file_okay=False))
@_recipe_options
@click.option("--output", required=True, metavar="RUN", help="Folder of the run to make.")
def import_(checkpoint: str, recipe: str, data: str | None, overrides: tuple[str, ...], output: str) -> None:
    """Make a run at step 0 from a diffusers CHECKPOINT, to sample it or to go on training under RECIPE."""
    from trainer import recipe as recipes
    from trainer import run as runs
    from trainer.checkpoint import checkpoints
    from trainer.parallel.world import World

    _start_logging()
    quoted = json.dumps(str(checkpoint))
    made, folder = recipes.load(recipe, data, [*overrides, f"model.pretrained={quoted}"]), Path(output)
    runs.check_output(folder)
    if found := checkpoints(folder):
        raise UserError(f"output {output} has checkpoints up to {found[0].name}; name another folder")
    saved = runs.make_trainer(made, folder, World(), resume=False).save()
    click.echo(f"{saved}")


if __name__ == "__main__":
    main()
