"""O13 in a crash: `binary_cross_entropy` given numbers that are not probabilities."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events.torch_errors import TorchError
from unstuck.findings import Finding, Subject
from unstuck.record import Record
from unstuck.rules.convergence.sigmoid_bce import PLAIN, Input, rule
from unstuck.rules.shared.crashes import called, crash_of, evidence_of, given

ROUNDING = 1e-3


def explain(record: Record) -> Iterator[Finding]:
    """The finding, if the values could be read and are finite: NaN has a rule of its own."""
    for name, kind, otherwise, variant in (
        ("input", TorchError.INPUT_NO_PROBABILITY, "a prediction", Input.NOT_PROBABILITIES),
        ("target", TorchError.TARGET_NO_PROBABILITY, "targets", Input.TARGETS_OUT_OF_RANGE),
    ):
        crash = crash_of(record, kind)
        fact = given(crash, name) if crash is not None else None
        if crash is None or fact is None or fact.broken or fact.low is None or fact.high is None:
            continue
        low, high = fact.low, fact.high
        fix = _target_fix if name == "target" else _prediction_fix
        yield rule.finding(
            f"{PLAIN} gets {called(crash, name, otherwise)} from {low:.4g} to {high:.4g}, which are not probabilities.",
            cause="It takes the logarithm of probabilities, so predictions and targets must be between 0 and 1.",
            fix=fix(crash.names.get(name, "prediction" if name == "input" else name), low, high),
            subject=Subject.at("target" if name == "target" else "call", PLAIN, crash.place),
            place=crash.place,
            evidence=evidence_of(crash, "input", "target"),
            variant=variant,
        )


def _prediction_fix(name: str, low: float, high: float) -> str:
    if low >= -ROUNDING and high <= 1 + ROUNDING:
        return f"It is outside 0 to 1 only by rounding: pass `{name}.clamp(0, 1)`."
    return (
        "If these are raw scores, pass them to binary_cross_entropy_with_logits (nn.BCEWithLogitsLoss), which applies "
        "sigmoid itself; otherwise end the model with a sigmoid."
    )


def _target_fix(name: str, low: float, high: float) -> str:
    if (low, high) == (1, 2):
        return f"If the classes are numbered 1 and 2, pass `{name} - 1`."
    if (low, high) == (-1, 1):
        return f"If the classes are -1 and 1, pass `({name} + 1) / 2`."
    if low >= 0 and 100 < high <= 255:
        return f"If these are pixels from 0 to 255, pass `{name} / 255`."
    return "Bring the targets into 0 to 1; for class ids of more than two classes use cross_entropy."
