"""The experiments by name, and what the rules say of them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from unstuck.findings import Finding, Witness
from unstuck.findings.results import Experiment
from unstuck.rule import all_rules

if TYPE_CHECKING:
    from unstuck.trials.context import Context

GOOD = frozenset({"passed", "learns", "inside", "independent", "causal", "reproducible"})
"""Verdicts that rule something out."""

SEVERAL_RUNS = frozenset({"overfit", "baseline", "lr", "seeds"})
"""Experiments that are planned by the pace of the program; the others take one step."""


def experiment_named(name: str) -> Callable[..., Experiment]:
    """The function that makes it, of a `Context`."""
    function: Callable[..., Experiment] = getattr(importlib.import_module(f"unstuck.experiments.{name}"), name)
    return function


def answered(name: str, function: Callable[[Context], Experiment], context: Context) -> Experiment:
    """Make one experiment; if the budget is too short for its shortest form, that is its answer."""
    from unstuck.trials.context import NoTime

    try:
        return function(context)
    except NoTime as error:
        sentence = f"It was not tried: it needs {time_needed(error.needed, error.left, context.budget)}; give it more."
        return Experiment(name=name, verdict="undecided", sentence=sentence, method="nothing was run")


def time_needed(needed: float, left: float, budget: float) -> str:
    """`about 40 s, and 12 of 150 s were left`."""
    return f"about {math.ceil(needed)} s, and {math.floor(left)} of {budget:.0f} s were left"


def findings_in(experiment: Experiment) -> list[Finding]:
    """What the rules say of an experiment."""
    return [finding for rule in all_rules() for finding in rule.findings(Witness.EXPERIMENT, experiment)]
