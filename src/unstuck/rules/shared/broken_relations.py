"""What `relations` showed: relations that are broken, and whether the run learned all the same."""

from __future__ import annotations

from collections.abc import Iterable

from unstuck.findings import Evidence
from unstuck.findings.relations import Answer, Relation, State, broken, worst
from unstuck.findings.results import Experiment
from unstuck.record.outcome import Achieved


def broken_in(experiment: Experiment, relation: Relation) -> tuple[Answer, ...]:
    """The answers that show it broken; none for other experiments."""
    return broken(experiment.relations, relation) if experiment.name == "relations" else ()


def holds_in(experiment: Experiment, relation: Relation) -> bool:
    """Was it tested, and does it hold?"""
    found = worst(experiment.relations, relation)
    return found is not None and found.state is State.HOLDS


def is_in_trouble(experiment: Experiment) -> bool:
    """Did the run not learn while it was looked at?"""
    word = experiment.measures.get("outcome")
    return bool(word) and Achieved(str(word)).is_trouble


def learns(experiment: Experiment) -> bool:
    """Did it learn all the same?"""
    return experiment.measures.get("outcome") in (Achieved.LEARNS, Achieved.SLOWLY)


def evidence(answer: Answer, names: Iterable[str]) -> list[Evidence]:
    """Its measures of these names."""
    rows = [(name, answer.measures.get(name)) for name in names]
    return [
        Evidence(name, float(f"{value:.4g}") if isinstance(value, float) else value)
        for name, value in rows
        if value is not None
    ]
