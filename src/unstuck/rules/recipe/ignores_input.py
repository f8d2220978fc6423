"""R03: the loss falls just as far with zeroed or shuffled inputs, so nothing is learned from them."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.findings.results import Experiment, ExperimentVerdict
from unstuck.rule import Rule

rule = Rule(
    code="R03",
    name="ignores-input",
    title="with zeroed or shuffled inputs the loss falls just as far",
    severity=Severity.ERROR,
    explains=("M13", "R08"),
)

SEEDS = 2
"""With fewer seeds it may be chance."""
APART = (
    "The loop can overfit a single batch, so it works; but its inputs carry no information about their "
    "targets. Either the two were separated (one of them shuffled, sorted, filtered or indexed alone), or the "
    "informative part of the input is lost before the model."
)
EITHER = (
    "Either the inputs carry no information about their targets (one of the two was shuffled, sorted, filtered or "
    "indexed alone), or the model cannot use it: the loop was not seen to overfit a single batch either."
)
UNUSED = "The input does not reach the output: it is overwritten, multiplied by zero, or not used in forward()."
LOOK = (
    "Look at inputs and targets of one batch right before the model: do they match? If not, go back through "
    "the data pipeline to where they separate."
)
FOLLOW = "Follow the input through forward() to where it becomes the same for every example."


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The experiment `baseline` showed no advantage of real inputs."""
    if experiment.name != "baseline" or experiment.verdict != ExperimentVerdict.IGNORES:
        return
    measures = experiment.measures
    unused, seeds, works = bool(measures.get("identical")), measures.get("seeds"), measures.get("overfits") == "passed"
    certain = unused or (bool(measures.get("certain")) and isinstance(seeds, int) and seeds >= SEEDS)
    names = {
        "real": "loss with real inputs",
        "shuffled": "with shuffled inputs",
        "zeros": "with zeros",
        "guess": "loss of a guess",
    }
    rows = [(name, measures.get(key)) for key, name in names.items()]
    evidence = [Evidence(name, float(f"{value:.4g}")) for name, value in rows if isinstance(value, int | float)]
    yield rule.finding(
        experiment.sentence,
        cause=UNUSED if unused else APART if works else EITHER,
        fix=FOLLOW if unused else LOOK,
        subject=Subject("loop", "inputs and targets"),
        evidence=[*evidence, Evidence("compared", experiment.method)],
        severity=Severity.ERROR if certain else Severity.WARNING,
        confidence=Confidence.CERTAIN if certain else Confidence.LIKELY,
    )
