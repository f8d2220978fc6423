"""R13: the same example comes with different targets."""

from __future__ import annotations

import math
from collections.abc import Iterator

from unstuck.events import LossCall, TargetsCompared
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.findings.results import Experiment
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics, losses


class Conflict(Variant):
    """How targets and inputs disagree."""

    UNRELATED = "unrelated", "an example gets another target every time, as if inputs and targets were shuffled apart"
    PARTLY = "partly", "some examples come with different labels"
    EQUAL_INPUTS = "equal-inputs", "examples of one batch have equal inputs and different targets"


rule = Rule(
    code="R13",
    name="conflicting-targets",
    title="the same example comes with different targets",
    severity=Severity.ERROR,
    explains=("M13", "O01", "O07", "O22", "R03", "R08"),
    needs=(TargetsCompared,),
    variants=Conflict.titles(),
)

FEWEST = 50
"""Repeated examples: then equal targets by chance stay within the limits below."""
SIGMAS = 4.0
"""Standard errors within which the share of equal targets is what chance gives."""
MANY = 0.1
"""A smaller share of conflicting labels is label noise, which training survives."""
SHUFFLED = (
    "The targets have nothing to do with the inputs they come with, so there is nothing to learn but their "
    "average: inputs and targets are shuffled, sorted or indexed independently."
)
FIX = (
    "Shuffle inputs and targets with one permutation (order = torch.randperm(n); x[order], y[order]), and index both "
    "with the same index."
)


FEWEST_COPIES, COPIES = 4, 0.005
"""Copies with another target, of all training examples. Fewer hardly matter."""
RAISED = 0.1
"""Of what there is to learn, the share that conflicts must put out of reach: as much as `overfit` lets a loop leave."""
EQUAL = (
    "A model gives equal inputs equal answers. Either the part of the input that tells the examples apart is lost "
    "before the model (a column dropped, rounded or filled in), or targets belong to other rows."
)
LOOK_UP = (
    "Look up two of these examples in the raw data: if their inputs differ there, find the step that makes them equal; "
    "if not, check that the targets were not shuffled or joined by the wrong key."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Examples that came more than once, and how often their target was another one."""
    last = {event.place: event for event in record.of(TargetsCompared)}
    for event in last.values():
        if event.repeats < FEWEST or not event.different:
            continue
        calls = [call for call in record.of(LossCall) if call.place == event.place and call.output_requires_grad]
        # Labels of an episode change and are learned all the same, as in few-shot learning.
        if _is_unrelated(event) and losses.ends_at_a_guess(calls):
            yield _unrelated(event)
        elif _is_partly(event) and losses.are_classes(calls) and _is_troubled(record):
            yield _partly(event)


def _is_partly(event: TargetsCompared) -> bool:
    return event.chance is not None and event.different >= MANY * event.repeats


def _is_troubled(record: Record) -> bool:
    return not dynamics.alternating(record) and dynamics.trend(record).word in (*dynamics.UNHEALTHY, *dynamics.STUCK)


def _is_unrelated(event: TargetsCompared) -> bool:
    """Are targets equal no more often, or no more alike, than chance makes them?"""
    if event.chance is not None:
        agree = 1 - event.different / event.repeats
        error = math.sqrt(event.chance * (1 - event.chance) / event.repeats)
        return event.chance < 1 and agree <= event.chance + SIGMAS * error
    mostly = event.different > 0.9 * event.repeats
    return mostly and event.correlation is not None and abs(event.correlation) < SIGMAS / math.sqrt(event.repeats)


def _unrelated(event: TargetsCompared) -> Finding:
    by_chance = f" (chance: {1 - event.chance:.0%})" if event.chance is not None else ""
    return rule.finding(
        f"The same examples come with other targets: of {event.repeats:,} that came again, {event.different:,} "
        f"({event.different / event.repeats:.0%}) had a different one{by_chance}.",
        cause=SHUFFLED,
        fix=FIX,
        subject=Subject.at("loss", "targets", event.place),
        place=event.place,
        evidence=_evidence(event),
        variant=Conflict.UNRELATED,
    )


def _partly(event: TargetsCompared) -> Finding:
    return rule.finding(
        f"{event.different / event.repeats:.0%} of the examples that came again had another label "
        f"({event.different:,} of {event.repeats:,}).",
        cause="No model can give two answers to one input, so the loss of these examples has a floor well above 0.",
        fix="Look at examples that occur several times and decide on one label; check that labels are joined to "
        "examples by their id and not by their position.",
        subject=Subject.at("loss", "targets", event.place),
        place=event.place,
        evidence=_evidence(event),
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        variant=Conflict.PARTLY,
    )


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """On the batch of `overfit`, equal inputs raise the floor by a good part of what there is to learn; in the whole
    training data, examples are there twice with different targets."""
    yield from _in_data(experiment)
    if experiment.name != "overfit":
        return
    names = ("floor", "apart", "constant", "conflicting", "examples")
    values = [experiment.measures.get(name) for name in names]
    if any(value is None for value in values):
        return
    floor, apart, constant, conflicting, examples = (float(value or 0) for value in values)
    if not conflicting or constant <= apart or floor - apart < RAISED * (constant - apart):
        return
    yield rule.finding(
        f"{conflicting:.0f} of the {examples:.0f} examples of a batch have the input of another example and a "
        f"different target: no model can bring its loss below {floor:.3g} (one answer for all: {constant:.3g}).",
        cause=EQUAL,
        fix=LOOK_UP,
        subject=Subject("loop", "inputs and targets"),
        evidence=[
            Evidence("examples in conflict", conflicting),
            Evidence("lowest possible loss", float(f"{floor:.4g}")),
            Evidence("loss of one answer for all", float(f"{constant:.4g}")),
        ],
        severity=Severity.WARNING,
        variant=Conflict.EQUAL_INPUTS,
    )


def _in_data(experiment: Experiment) -> Iterator[Finding]:
    """Where examples are so detailed that equal ones are copies."""
    training = experiment.data.training if experiment.data is not None else None
    found = training.conflicts if training is not None else None
    if (
        training is None
        or found is None
        or found.natural
        or found.examples < max(FEWEST_COPIES, COPIES * training.read)
    ):
        return
    yield rule.finding(
        f"{found.examples:,} of the {training.read:,} examples of {training.name} equal another one, number by number, "
        "and have a different target.",
        cause=EQUAL,
        fix=LOOK_UP,
        subject=Subject("loop", "inputs and targets"),
        place=training.place,
        evidence=[
            Evidence("examples in conflict", found.examples),
            Evidence("the first pairs", [f"{one} and {other}" for one, other in found.first]),
        ],
        severity=Severity.WARNING,
        variant=Conflict.EQUAL_INPUTS,
    )


def _evidence(event: TargetsCompared) -> list[Evidence]:
    evidence = [
        Evidence("different examples", event.examples),
        Evidence("examples that came again", event.repeats),
        Evidence("with another target than before", event.different),
    ]
    if event.chance is not None:
        evidence.append(Evidence("equal targets by chance", round(event.chance, 3)))
    elif event.correlation is not None:
        evidence.append(Evidence("correlation with the target before", round(event.correlation, 3)))
    return evidence
