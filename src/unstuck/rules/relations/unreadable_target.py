"""P20: nothing in the inputs says anything about the target."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.findings.results import Experiment, ExperimentVerdict
from unstuck.rule import Rule

rule = Rule(
    code="P20",
    name="unreadable-target",
    title="nothing in the inputs says anything about the target",
    severity=Severity.WARNING,
    explains=("M13", "R08"),
)

CAUSE = (
    "Inputs and targets do not belong together (one was shuffled, sorted, filtered or indexed alone), the targets are "
    "random or of the wrong column, or the inputs were destroyed before the model. The exception is a relation that "
    "no simple reader sees, such as parity or arithmetic with remainders."
)
FIX = (
    "Print a few inputs with their targets right before the model, and check by eye that they match. If they do not, "
    "go back through the data pipeline to where they separate."
)


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The experiment `layers` could read nothing, and neither could the model."""
    if experiment.name != "layers" or experiment.verdict != ExperimentVerdict.UNREADABLE:
        return
    names = {
        "examples": "examples",
        "chance": "share of the target that would have shown",
        "reader_right": "a simple reader",
        "own_right": "the model",
        "guess_right": "a guess",
    }
    rows = [(text, experiment.measures.get(key)) for key, text in names.items()]
    yield rule.finding(
        experiment.sentence,
        cause=CAUSE,
        fix=FIX,
        subject=Subject("loop", "inputs and targets"),
        evidence=[
            Evidence(text, value if isinstance(value, int) else float(f"{value:.3g}"))
            for text, value in rows
            if isinstance(value, int | float)
        ],
        confidence=Confidence.LIKELY,
    )
