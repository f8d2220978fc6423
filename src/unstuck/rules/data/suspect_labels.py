"""R14: labels that the other examples contradict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rule import Rule

if TYPE_CHECKING:
    from unstuck.findings.data_sets import Suspects
    from unstuck.findings.results import Experiment

rule = Rule(
    code="R14",
    name="suspect-labels",
    title="labels look wrong: the other examples contradict them",
    severity=Severity.WARNING,
)

FEWEST = 4
LEAST, MOST = 0.006, 0.06
"""Of the labels of which the model is most sure. Fewer are in every data set; with more the task itself is noisy."""
EVERYWHERE = 0.25
"""Errors that come from a hard task lie among the least sure, at 0; wrong labels anywhere, 0.5 on average."""
EXPLAINED = 0.4
"""Of all errors of the model, the share that wrong labels must make up; in a hard task most are its own."""
RIGHT = 0.85
"""Labels that a simple model cannot predict are not contradicted by it."""
FAR = 0.5
"""The part of the way from a guess to all being right that it must go."""


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`data` predicted each label from the other examples."""
    data = experiment.data
    training = data.training if data is not None else None
    found = training.suspects if training is not None else None
    if training is None or found is None or not _is_noise(found):
        return
    conflicts = training.conflicts
    if conflicts is not None and conflicts.natural and conflicts.examples >= found.wrong:
        return  # few possible inputs, and a task in which their labels are drawn by chance
    share = found.wrong / found.sure
    yield rule.finding(
        f"About {share:.1%} of the labels of {training.name} look wrong: where a simple model fitted on the other "
        f"examples is most sure, it contradicts {found.wrong} of {found.sure:,} labels.",
        cause="Errors of a model lie near the border between classes, where it is unsure. These do not: the examples "
        "around them have another label. A network memorizes such labels late in training, and an evaluation with the "
        "same errors cannot get beyond them.",
        fix="Look at these examples: `data_set[number]`. Correct or drop the wrong ones; if they have a pattern, find "
        "the step that joins labels to examples.",
        subject=Subject("loss", f"labels of {training.name}"),
        place=training.place,
        evidence=[
            Evidence(
                "examples",
                [f"{one.example} is labelled {one.label} and looks like {one.likely}" for one in found.first],
            ),
            Evidence("right for all", round(found.right, 3)),
            Evidence("a guess", round(found.guess, 3)),
            Evidence("looked at", found.looked_at),
        ],
        confidence=Confidence.LIKELY,
    )


def _is_noise(found: Suspects) -> bool:
    can_predict = found.right >= RIGHT and found.right - found.guess >= FAR * (1 - found.guess)
    share = found.wrong / max(1, found.sure)
    is_enough = found.wrong >= FEWEST and LEAST <= share <= MOST
    return can_predict and is_enough and found.rank >= EVERYWHERE and share >= EXPLAINED * (1 - found.right)
