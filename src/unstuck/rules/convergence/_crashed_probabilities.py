"""The crash of `binary_cross_entropy` over numbers that are no probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.events import Crash, InputFact
from unstuck.findings import Finding, Subject
from unstuck.rules.shared.crashes import Explanation, called, crash_of, evidence_of, given

if TYPE_CHECKING:
    from unstuck.record import Record
    from unstuck.rule import Rule

LOSS = "binary_cross_entropy"
ROUNDING = 1e-3
BETWEEN = "It takes the logarithm of probabilities, so that both it is given must lie from 0 to 1."


def explain(record: Record, rule: Rule) -> Iterator[Finding]:
    """The finding, if the values could be read and are finite: NaN has a rule of its own."""
    for name, explanation in (("input", _prediction), ("target", _target)):
        crash = crash_of(record, f"all elements of {name} should be between 0 and 1")
        fact = given(crash, name) if crash is not None else None
        if crash is None or fact is None or fact.broken or fact.low is None or fact.high is None:
            continue
        said = explanation(crash, fact, fact.low, fact.high)
        yield rule.finding(
            said.message,
            cause=said.cause,
            fix=said.fix,
            subject=Subject("target" if name == "target" else "call", f"{LOSS} at {crash.place}"),
            place=crash.place,
            evidence=evidence_of(crash, "input", "target"),
        )


def _prediction(crash: Crash, fact: InputFact, low: float, high: float) -> Explanation:
    fix = (
        "If these are raw scores, give them to binary_cross_entropy_with_logits (nn.BCEWithLogitsLoss), which applies "
        "sigmoid itself; else end the model with a sigmoid."
    )
    if low >= -ROUNDING and high <= 1 + ROUNDING:
        fix = f"It leaves 0 to 1 by rounding only: pass `{crash.names.get('input', 'prediction')}.clamp(0, 1)`."
    return Explanation(
        f"{LOSS} is given {called(crash, 'input', 'a prediction')} from {low:.4g} to {high:.4g}, which are no "
        "probabilities.",
        BETWEEN,
        fix,
    )


def _target(crash: Crash, fact: InputFact, low: float, high: float) -> Explanation:
    name = crash.names.get("target", "target")
    fix = "Bring the targets into 0 to 1; for class ids of more than two classes use cross_entropy."
    if (low, high) == (1, 2):
        fix = f"If the classes are numbered 1 and 2, pass `{name} - 1`."
    elif (low, high) == (-1, 1):
        fix = f"If the classes are -1 and 1, pass `({name} + 1) / 2`."
    elif low >= 0 and 1 < high <= 255 and high > 100:
        fix = f"If these are pixels of 0 to 255, pass `{name} / 255`."
    return Explanation(
        f"{LOSS} is given {called(crash, 'target', 'targets')} from {low:.4g} to {high:.4g}, which are no "
        "probabilities.",
        BETWEEN,
        fix,
    )
