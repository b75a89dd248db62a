"""`trainer plan`: how a recipe's packs come out on a dataset, without a GPU and without training."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

from schemas.errors import UserError
from trainer import recipe as recipes
from trainer.data.plan import Planner
from trainer.data.report import PlanReport, plan_report
from trainer.parallel.world import World
from trainer.run import flop_model, make_index, with_patch


def plan_recipe(
    recipe: str | Path, data: str | None, overrides: Iterable[str] = (), *, world_size: int = 1, num_steps: int = 200
) -> list[PlanReport]:
    """Plan each phase of a recipe; the indexes are made in a temporary folder and left nowhere.

    Raises:
        UserError: what `trainer train` would refuse, or more ranks than packs a step.
    """
    made = with_patch(recipes.load(recipe, data, overrides))
    reports = []
    for phase in recipes.by_phase(made):
        with tempfile.TemporaryDirectory(prefix="trainer-plan-") as folder:
            index = make_index(phase, Path(folder), World(), split=phase.data.split, tag=False)
            config = recipes.resolve_model(phase.model, index.space, index.text_dim)
            planner = Planner(index, phase.plan, flop_model(config))
            reports.append(plan_report(index, planner, world_size=world_size, num_steps=num_steps))
    return reports


def plan_text(
    recipe: str | Path,
    data: str | None,
    overrides: Iterable[str] = (),
    *,
    world_size: int = 1,
    num_steps: int = 200,
    as_json: bool = False,
    plot: str = "",
) -> str:
    """What the command prints: the report as text or JSON, a list of them for several phases.

    `plot` names an SVG of the first phase to draw too.
    """
    reports = plan_recipe(recipe, data, overrides, world_size=world_size, num_steps=num_steps)
    if plot:
        try:
            reports[0].plot(plot)
        except OSError as error:
            raise UserError(f"plot {plot}: cannot be written: {error.strerror or error}") from None
    if as_json:
        values = [_finite(report.to_dict()) for report in reports]
        return json.dumps(values if len(values) > 1 else values[0], indent=1)
    if len(reports) == 1:
        return reports[0].text()
    return "\n\n".join(f"phase {number} of {len(reports)}\n{report.text()}" for number, report in enumerate(reports, 1))


def _finite(value: object) -> object:
    """NaN has no JSON form: null in its place."""
    if isinstance(value, float):
        return value if value == value else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
