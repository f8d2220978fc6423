"""The experiments by name, and what the rules say of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from unstuck.experiments.result import Experiment
from unstuck.findings import Finding
from unstuck.rule import all_rules

if TYPE_CHECKING:
    from unstuck.experiments.context import Context

GOOD = frozenset({"passed", "learns", "inside", "independent", "causal", "reproducible"})
"""Verdicts that rule something out."""


def experiment_named(name: str) -> Callable[[Context], Experiment]:
    """The function that makes it."""
    function: Callable[[Context], Experiment] = getattr(importlib.import_module(f"unstuck.experiments.{name}"), name)
    return function


def findings_in(experiment: Experiment) -> list[Finding]:
    """What the rules say of an experiment."""
    return [finding for rule in all_rules() if rule.experiment is not None for finding in rule.experiment(experiment)]
