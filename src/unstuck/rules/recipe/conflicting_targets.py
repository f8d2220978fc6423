"""R13: the same example comes with different targets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.events import LossCall, TargetsCompared
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics, losses

if TYPE_CHECKING:
    from unstuck.record import Record


class Conflict(Variant):
    """How targets and inputs disagree."""

    UNRELATED = "unrelated", "an example gets another target every time, as if inputs and targets were shuffled apart"
    PARTLY = "partly", "some examples come with different labels"


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
GUESSED = 0.85
"""A loss above this share of that of the best constant answer has learned nothing from the inputs."""
FEWEST_LOSSES = 20
SHUFFLED = (
    "The targets have nothing to do with the inputs they come with, so there is nothing to learn but their "
    "average: inputs and targets are shuffled, sorted or indexed independently."
)
FIX = (
    "Shuffle inputs and targets with one permutation (order = torch.randperm(n); x[order], y[order]), and index both "
    "with the same index."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Examples that came more than once, and how often their target was another one."""
    last = {event.place: event for event in record.of(TargetsCompared)}
    for event in last.values():
        if event.repeats < FEWEST or not event.different:
            continue
        calls = [call for call in record.of(LossCall) if call.place == event.place and call.output_requires_grad]
        if _is_unrelated(event) and _guesses(calls):
            yield _unrelated(event)
        elif _is_partly(event) and _are_classes(calls) and _is_troubled(record):
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


def _guesses(calls: list[LossCall]) -> bool:
    """Does the loss end where the best constant answer would, or above? Labels of an episode change and are learned
    all the same, as in few-shot learning."""
    values = [call.value for call in calls if call.value is not None]
    guess, late = _guess(calls), values[len(values) // 2 :]
    return guess is not None and len(values) >= FEWEST_LOSSES and sum(late) / len(late) >= GUESSED * guess


def _guess(calls: list[LossCall]) -> float | None:
    if _are_classes(calls):
        counts = losses.labels(calls)
        return losses.entropy(counts.values()) if counts else None
    targets = [losses.wanted(call) for call in calls]
    spreads = [fact.spread for fact in targets if fact.spread is not None]
    spread = dynamics.median(spreads)
    squared = bool(calls) and calls[0].loss == "mse_loss" and calls[0].reduction in ("", "mean")
    return spread**2 if squared and spread else None


def _are_classes(calls: list[LossCall]) -> bool:
    return any(losses.wanted(call).classes is not None for call in calls)


def _unrelated(event: TargetsCompared) -> Finding:
    by_chance = f" (chance: {1 - event.chance:.0%})" if event.chance is not None else ""
    return rule.finding(
        f"The same examples come with other targets: of {event.repeats:,} that came again, {event.different:,} "
        f"({event.different / event.repeats:.0%}) had a different one{by_chance}.",
        cause=SHUFFLED,
        fix=FIX,
        subject=Subject("loss", f"targets at {event.place}"),
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
        subject=Subject("loss", f"targets at {event.place}"),
        place=event.place,
        evidence=_evidence(event),
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        variant=Conflict.PARTLY,
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
