"""What all experiments on one program share: the runner, the time that is left, and how fast the program is."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from unstuck.findings.results import Status
from unstuck.interventions import Intervention
from unstuck.interventions.seeds import OwnSeeds, Seed
from unstuck.interventions.stop_after import StopAfter
from unstuck.trials.runner import Outcome, Progress, Variant

USUAL_STEPS = 200
FEWEST_STEPS = 20
SHORTEST = 5.0
"""Seconds that a trial is given in any case, as long as the budget lasts."""
PATIENCE = 4.0
"""A trial may take so many times as long as it is expected to."""
ENOUGH_FOR_PACE = 10
"""Steps after which a run says how long a step takes, once another run has said so before."""
SHORT_RUN = StopAfter(20, enough=5, seconds=5.0)
"""A run that only shows the pace."""

Tell = Callable[[str], None]
Clock = Callable[[], float]


class NoTime(Exception):
    """The shortest form of an experiment takes longer than what may be planned with."""

    def __init__(self, needed: float, left: float) -> None:
        self.needed = needed
        self.left = max(0.0, left)
        """Of the budget, even if only a part of that was allotted."""
        super().__init__(f"{needed:.1f} s are needed")

    @property
    def is_of_budget(self) -> bool:
        """Is it the budget that is too short, and not what was allotted of it?"""
        return self.needed > self.left


class Runs(Protocol):
    """Carries out trials: `Runner` those of a program, `trials.objects` those of live objects."""

    jobs: int

    def run(self, variants: Sequence[Variant], seconds: float, progress: Progress, until: float) -> list[Outcome]:
        """Run them all, each for so many seconds at the most, and none after `until` on the clock."""
        ...


class Context:
    """Time and pace. `tell` is given what is being done now, in half a sentence."""

    live = False
    """Are these objects? Then a seed leaves their weights as they are, and runs go on in this process."""

    def __init__(
        self, runner: Runs, seconds: float, tell: Tell = lambda text: None, clock: Clock = time.monotonic
    ) -> None:
        self.runner = runner
        self.budget = seconds
        self.tell = tell
        self.learned: Tell = lambda text: None
        """Given what was found out so far, as soon as it is."""
        self.watch: Callable[[Variant, Path], None] = lambda variant, folder: None
        """Called every moment with a trial that runs."""
        self.step_seconds: float | None = None
        self.start_seconds = 0.0
        """From the beginning of a trial to its first step, by the latest trials."""
        self.available_steps: int | None = None
        """How many steps the program takes by itself, if it has been seen to end."""
        self._clock = clock
        self.began = clock()
        self._allotted_until = math.inf
        self._longest_start = 0.0
        self._known: dict[tuple[tuple[Intervention, ...], int | None, bool, int], Outcome] = {}

    @property
    def deadline(self) -> float:
        """When the budget ends, on the clock."""
        return self.began + self.budget

    @property
    def seconds(self) -> float:
        """How much of the budget was used."""
        return self._clock() - self.began

    @property
    def left(self) -> float:
        """Seconds that may be planned with."""
        return min(self.deadline, self._allotted_until) - self._clock()

    @property
    def outcomes(self) -> list[Outcome]:
        """Of all runs so far."""
        return list(self._known.values())

    @contextlib.contextmanager
    def allotted(self, seconds: float) -> Iterator[None]:
        """Plan what is inside as if only so many seconds of the budget were left."""
        before = self._allotted_until
        self._allotted_until = min(before, self._clock() + seconds)
        try:
            yield
        finally:
            self._allotted_until = before

    def plan(self, runs: int, share: float = 1.0, wanted: int = USUAL_STEPS) -> int:
        """How many steps each of so many runs can take within a share of the time that is left, at most `wanted`.

        0: not even the fewest.
        """
        wanted = self._limited(wanted)
        if self.step_seconds is None:
            return wanted
        each = max(0.0, self.left) * share / self._rounds(runs) - self.start_seconds
        steps = min(wanted, int(each / max(self.step_seconds, 1e-6)))
        return steps if steps >= min(FEWEST_STEPS, wanted) else 0

    def steps_for(
        self, runs: int, share: float, wanted: int, *, least: int = FEWEST_STEPS, least_runs: int | None = None
    ) -> int:
        """As `plan`; or the least that is of use, if all the time that is left allows that for so many runs.

        Raises `NoTime` if it does not.
        """
        least = min(least, self._limited(wanted))
        steps = self.plan(runs, share, wanted)
        if steps >= least:
            return steps
        needed = self.needed(least_runs or runs, least)
        if needed > self.left:
            raise NoTime(needed, self.budget - self.seconds)
        return least

    def needed(self, runs: int, steps: int) -> float:
        """The seconds that so many runs of so many steps are expected to take."""
        return self._rounds(runs) * (self.start_seconds + steps * (self.step_seconds or 0.0))

    def has_time_for(self, runs: int, steps: int) -> bool:
        """Do so many runs fit into what is left, of so many steps or as many as the program takes?"""
        return self.needed(runs, self._limited(steps)) <= self.left

    def _limited(self, wanted: int) -> int:
        return wanted if self.available_steps is None else min(wanted, self.available_steps)

    def _rounds(self, runs: int) -> int:
        return max(1, math.ceil(runs / self.runner.jobs))

    def learn_pace(self) -> Outcome:
        """A short run as it is, so that the others can be planned."""
        self.tell("measuring its pace")
        return self.run([Variant("pace", (SHORT_RUN,))], SHORT_RUN.steps)[0]

    def starts_sooner(self, seconds: float) -> None:
        """From now on trials find something done that took so long: imports, say."""
        self.start_seconds = max(0.0, self.start_seconds - seconds)

    def run(
        self, variants: Sequence[Variant], steps: int, seed: int | None = None, extra: float = 0.0
    ) -> list[Outcome]:
        """Run them for so many steps, each with its own seed among its changes or else this one.

        The same run is not repeated. Each may take `extra` seconds for what is computed besides; such runs do not
        show how fast the program is.
        """
        full = [self._complete(variant, steps, seed) for variant in variants]
        missing = {self._key(variant): variant for variant in full if self._key(variant) not in self._known}
        if missing:
            made = self.runner.run(list(missing.values()), self._limit(steps) + extra, self.watch, self.deadline)
            self._known |= {self._key(outcome.variant): outcome for outcome in made}
            if not extra:
                self._learn(made)
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
        """Seconds for one trial. It may start as slowly as the slowest so far; of the first nothing is known."""
        if self.step_seconds is None:
            return math.inf
        return max(SHORTEST, PATIENCE * (self._longest_start + steps * self.step_seconds))

    def _learn(self, outcomes: Sequence[Outcome]) -> None:
        """How fast it is, by the slowest of the latest trials, and whether it ends by itself.

        The first trial is a poor witness: it imports what later ones find imported, and it runs alone.
        """
        for outcome in outcomes:
            if (
                outcome.status in (Status.FINISHED, Status.EXITED)
                and outcome.curve.steps
                and _is_as_it_is(outcome.variant)
            ):
                self.available_steps = max(self.available_steps or 0, outcome.curve.steps[-1] + 1)
        fewest = 2 if self.step_seconds is None else ENOUGH_FOR_PACE
        telling = [outcome for outcome in outcomes if len(outcome.curve.losses) >= fewest]
        if telling:
            self.step_seconds = max(_training_seconds(one) / len(one.curve.losses) for one in telling)
            self.start_seconds = max(max(0.0, one.seconds - _training_seconds(one)) for one in telling)
            self._longest_start = max(self._longest_start, self.start_seconds)


def _training_seconds(outcome: Outcome) -> float:
    return outcome.training_seconds or outcome.seconds


def _is_as_it_is(variant: Variant) -> bool:
    """Is nothing changed but chance and length? With a change the program may end sooner or later than by itself."""
    return all(isinstance(change, Seed | OwnSeeds | StopAfter) for change in variant.changes)
