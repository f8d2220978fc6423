"""What all experiments on one program share: the runner, the time that is left, and how fast the program is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from unstuck.experiments.runner import Outcome, Progress, Variant
from unstuck.interventions import Intervention, OwnSeeds, Seed, StopAfter

USUAL_STEPS = 200
FEWEST_STEPS = 20
SHORTEST = 5.0
"""Seconds that a trial is given in any case."""
FIRST_SHARE = 0.3
"""Of the budget, what the first run may take: the others are planned by it."""
PATIENCE = 4.0
"""A trial may take so many times as long as it is expected to."""

Tell = Callable[[str], None]


class Runs(Protocol):
    """Carries out trials: `Runner` those of a program, `experiments.objects` those of live objects."""

    jobs: int

    def run(self, variants: Sequence[Variant], seconds: float, progress: Progress) -> list[Outcome]:
        """Run them all, each for so many seconds at the most."""
        ...


class Context:
    """Time and pace. `tell` is given what is being done now, in half a sentence."""

    live = False
    """Are these objects? Then a seed leaves their weights as they are, and runs go on in this process."""

    def __init__(self, runner: Runs, seconds: float, tell: Tell = lambda text: None) -> None:
        self.runner = runner
        self.began = time.monotonic()
        self.budget = seconds
        self.tell = tell
        self.watch: Callable[[Variant, Path], None] = lambda variant, folder: None
        """Called every moment with a trial that runs."""
        self.step_seconds: float | None = None
        self.start_seconds = 0.0
        self.available_steps: int | None = None
        """How many steps the program takes by itself, if it has been seen to end."""
        self._known: dict[tuple[tuple[Intervention, ...], int | None, bool, int], Outcome] = {}

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.budget - (time.monotonic() - self.began)

    @property
    def outcomes(self) -> list[Outcome]:
        """Of all runs that were made."""
        return list(self._known.values())

    def plan(self, runs: int, share: float = 1.0, wanted: int = USUAL_STEPS) -> int:
        """How many steps each of so many runs can take within a share of the time that is left, at most `wanted`.

        0: not even the fewest.
        """
        if self.available_steps is not None:
            wanted = min(wanted, self.available_steps)
        if self.step_seconds is None:
            return wanted
        rounds = math.ceil(runs / self.runner.jobs)
        each = max(0.0, self.left) * share / max(1, rounds) - self.start_seconds
        steps = min(wanted, int(each / max(self.step_seconds, 1e-6)))
        return steps if steps >= min(FEWEST_STEPS, wanted) else 0

    def run(self, variants: Sequence[Variant], steps: int, seed: int | None = None) -> list[Outcome]:
        """Run them for so many steps, each with its own seed among its changes or else this one.

        A run that was made before is not made again.
        """
        full = [self._complete(variant, steps, seed) for variant in variants]
        missing = {self._key(variant): variant for variant in full if self._key(variant) not in self._known}
        if missing:
            for outcome in self.runner.run(list(missing.values()), self._limit(steps), self.watch):
                self._known[self._key(outcome.variant)] = outcome
                self._learn(outcome)
        return [self._known[self._key(variant)] for variant in full]

    def _complete(self, variant: Variant, steps: int, seed: int | None) -> Variant:
        changes = variant.changes
        if not any(isinstance(change, Seed | OwnSeeds) for change in changes):
            changes = (Seed(seed or 0), *changes)
        if not any(isinstance(change, StopAfter) for change in changes):
            changes = (*changes, StopAfter(steps))
        return Variant(variant.name, changes, variant.every, variant.show_data, variant.repeat)

    @staticmethod
    def _key(variant: Variant) -> tuple[tuple[Intervention, ...], int | None, bool, int]:
        return variant.changes, variant.every, variant.show_data, variant.repeat

    def _limit(self, steps: int) -> float:
        if self.step_seconds is None:
            return max(SHORTEST, FIRST_SHARE * self.budget)
        expected = self.start_seconds + steps * self.step_seconds
        return max(SHORTEST, min(PATIENCE * expected, max(self.left, expected)))

    def _learn(self, outcome: Outcome) -> None:
        """How fast it is, and whether it ends by itself."""
        taken = len(outcome.curve.losses)
        if outcome.status in ("finished", "exited") and outcome.curve.steps and _is_as_it_is(outcome.variant):
            self.available_steps = max(self.available_steps or 0, outcome.curve.steps[-1] + 1)
        if self.step_seconds is None and taken > 1:
            inside = outcome.training_seconds or outcome.seconds
            self.step_seconds = inside / taken
            self.start_seconds = max(0.0, outcome.seconds - inside)


def _is_as_it_is(variant: Variant) -> bool:
    """Is nothing changed but chance and length? With a change the program may end sooner or later than by itself."""
    return all(isinstance(change, Seed | OwnSeeds | StopAfter) for change in variant.changes)
