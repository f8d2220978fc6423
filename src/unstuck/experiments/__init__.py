"""Experiments on a training loop: trials under interventions that answer one question each.

One experiment is one file here: a function that `@experiment` decorates. The command of its name, its line in the
help and its part in `diagnose` follow from that.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from unstuck.findings.results import Experiment, ExperimentVerdict
from unstuck.importable import importable

if TYPE_CHECKING:
    from unstuck.findings import Finding
    from unstuck.interventions import Intervention
    from unstuck.trials.context import Context


class ExperimentKind(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment: what it asks, how it is run, and what `diagnose` makes of it. Call it with a `Context`."""

    name: str
    question: str
    """What it asks, in the list of commands."""
    description: str
    """What it does, in the help of its command."""
    function: Callable[..., Experiment]
    order: int
    """Its place in the list of commands."""
    takes_several_runs: bool = True
    """Is it planned by the pace of the program? The others take one step."""
    in_diagnosis: bool = True
    """Does `diagnose` run it?"""
    if_going_well: bool = True
    """Also where the loss falls and nothing was found?"""
    only_certain_if_going_well: bool = False
    """Do only errors that are certain count there? What may be meant is passed over in a run that learns."""
    if_explained: bool = True
    """Also where something else already explains what the run achieved?"""
    if_memorizing: bool = False
    """Where it is run only for a run in trouble: also where training succeeds and the evaluation does not?"""
    runs_if_longer: int = 0
    """How many runs it takes to repeat it with more steps, if that may decide it."""
    shows_symptoms: bool = False
    """Do its findings follow from whatever else is found?"""
    remedy: Callable[[Experiment], Intervention | None] | None = None
    """The intervention that must be shown to help before its findings count."""
    tries_remedies: bool = False
    """Does `diagnose` try the remedies of what it shows?"""
    has_page: bool = False
    """Is there a page to look at, with `--html`?"""
    applies: Callable[[Experiment], bool] = lambda done: True
    """Does it say anything about this program?"""

    def __call__(self, context: Context, changes: Sequence[Intervention] = (), **settings: Any) -> Experiment:
        """Run it. Raises `NoTime` if its shortest form takes longer than the time that is left."""
        return self.function(context, changes, **settings)

    def answer(self, context: Context) -> Experiment:
        """Run it; if the budget is too short for its shortest form, that is its answer."""
        from unstuck.findings.investigation import time_needed
        from unstuck.trials.context import NoTime

        try:
            return self(context)
        except NoTime as error:
            needs = time_needed(error.needed, error.left, context.budget)
            return Experiment(
                name=self.name,
                verdict=ExperimentVerdict.UNDECIDED,
                sentence=f"It was not tried: it needs {needs}; give it more.",
                method="nothing was run",
            )


def experiment(
    question: str, description: str, *, order: int, **settings: Any
) -> Callable[[Callable[..., Experiment]], ExperimentKind]:
    """Decorator: this function, of a `Context` and further interventions, runs the experiment of its name."""

    def decorate(function: Callable[..., Experiment]) -> ExperimentKind:
        return ExperimentKind(
            name=function.__name__,
            question=question,
            description=description,
            function=function,
            order=order,
            **settings,
        )

    return decorate


def find_experiment(name: str) -> ExperimentKind | None:
    """The experiment of this name."""
    if name not in dict(importable(__path__)):
        return None
    found = getattr(importlib.import_module(f"{__name__}.{name}"), name, None)
    return found if isinstance(found, ExperimentKind) else None


@functools.cache
def all_experiments() -> tuple[ExperimentKind, ...]:
    """Every experiment in this folder, in the order of the list of commands. Imports no torch."""
    found = (find_experiment(name) for name, _ in importable(__path__))
    return tuple(sorted((kind for kind in found if kind is not None), key=lambda kind: kind.order))


def findings_in(done: Experiment) -> list[Finding]:
    """What the rules say about an experiment."""
    from unstuck.findings import Witness
    from unstuck.rule import all_rules

    return [finding for rule in all_rules() for finding in rule.findings(Witness.EXPERIMENT, done)]
