"""R15: an evaluation that lacks classes of the training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.rule import Rule

if TYPE_CHECKING:
    from unstuck.findings.data_sets import Comparison, DataSet
    from unstuck.findings.results import Experiment

rule = Rule(
    code="R15",
    name="split-shift",
    title="the evaluation lacks classes that the training has",
    severity=Severity.WARNING,
)

CHANCE = 1e-4
"""Of a class not to come, if the split were random."""
SHOWN = 6


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`data` counted the classes of each split."""
    data = experiment.data
    training = data.training if data is not None else None
    if data is None or training is None or not training.classes:
        return
    for one in data.comparisons:
        own = data.named(one.name)
        gone = {label: count for label, count in one.absent.items() if math.exp(-count) < CHANCE}
        if own is None or not own.classes or not gone or _are_others_on_purpose(one, own, training):
            continue
        shown = ", ".join(f"{label} ({gone[label]:.0f} expected)" for label in list(gone)[:SHOWN])
        more = f" and {len(gone) - SHOWN} more" if len(gone) > SHOWN else ""
        yield rule.finding(
            f"{one.name} has no example of {len(gone)} of the {len(training.classes)} classes of {one.trained}: "
            f"{shown}{more}.",
            cause="The split does not leave the classes as they are: sorted data were cut in two, a filter removed a "
            "class, or the labels of one split are numbered in another way. The evaluation says nothing about these "
            "classes.",
            fix="Shuffle before the split, or split each class by itself (`train_test_split(..., stratify=y)`).",
            subject=Subject("loss", f"labels of {one.name}"),
            place=own.place,
            evidence=[
                Evidence("classes that are missing", [str(label) for label in list(gone)[: 4 * SHOWN]]),
                Evidence("examples of the evaluation", own.read),
                Evidence("expected of the most frequent one", round(max(gone.values()), 1)),
            ],
        )


def _are_others_on_purpose(one: Comparison, own: DataSet, training: DataSet) -> bool:
    """Has the evaluation classes of its own, as in few-shot and metric learning?"""
    known = set(own.classes or ()) & set(training.classes or ())
    return not known and bool(one.unseen)
