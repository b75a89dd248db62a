"""A run through several mixes under one count of steps: 256p first, then 480p, then 720p."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from schemas.errors import UserError
from schemas.ids import canonical_json
from trainer.data.plan import Planner, StepPlan


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A mix and how many steps it lasts; 0 lasts to the end of the run."""

    planner: Planner
    num_steps: int = 0


class Schedule:
    """Phases one after another; a global step finds its phase and the step within it.

    Packs of a later phase are as if that phase had begun at its own step 0, so a change of an earlier phase's length
    moves them and does not change them.
    """

    def __init__(self, phases: Sequence[Phase]) -> None:
        if not phases or any(phase.num_steps < 1 for phase in phases[:-1]):
            raise UserError("schedule: each phase but the last needs a number of steps")
        self.phases = tuple(phases)

    @classmethod
    def of(cls, planner: Planner) -> Schedule:
        """A run of one mix."""
        return cls([Phase(planner=planner)])

    def locate(self, step: int) -> tuple[int, int]:
        """Number of the phase, and the step within it."""
        for number, phase in enumerate(self.phases):
            if not phase.num_steps or step < phase.num_steps:
                return number, step
            step -= phase.num_steps
        last = len(self.phases) - 1
        return last, step + self.phases[last].num_steps

    def step(self, step: int) -> tuple[int, StepPlan]:
        """Number of the phase, and the packs of a global step."""
        number, within = self.locate(step)
        return number, self.phases[number].planner.step(within)

    @property
    def fingerprint(self) -> str:
        """Of all that decides the order: 16 hex digits."""
        if len(self.phases) == 1:
            return self.phases[0].planner.fingerprint
        values = [[phase.planner.fingerprint, phase.num_steps] for phase in self.phases]
        return hashlib.blake2b(canonical_json(values), digest_size=8).hexdigest()

    def state(self) -> dict[str, Any]:
        """What a later run needs to make the same schedule without a search."""
        return {"steps_per_era": [phase.planner.steps_per_era for phase in self.phases]}
