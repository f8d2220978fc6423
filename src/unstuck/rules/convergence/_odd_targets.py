"""Targets that cross_entropy takes without an error and that are still not what it wants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import LossCall, ModelSeen
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rules.shared import losses as loss_calls

if TYPE_CHECKING:
    from unstuck.rule import Rule

LABELS_PER_CLASS = 20
"""So many labels for each class must have been seen before one that is missing says something."""
SLACK = 0.05
ONE_HOT = (
    "One-hot rows are read as probabilities: the same loss as with class ids, with C times the memory and no check "
    "that the ids are in range."
)
NO_DISTRIBUTION = (
    "Float targets are read as the probabilities of the classes. Rows that do not sum to 1 scale the loss of their "
    "example, and several ones in a row (multi-label) ask for what a softmax cannot give."
)
UNUSED = "An output that is never a target is only ever pushed down: it costs memory and time, and teaches nothing."


def odd_targets(calls: Iterable[LossCall], models: Iterable[ModelSeen], rule: Rule) -> Iterator[Finding]:
    """Float targets that are one-hot or no probabilities, and ids that leave outputs unused."""
    vocabularies = {module.numbers["num_embeddings"] for module in loss_calls.embeddings(models)}
    for group in loss_calls.trained(calls, ("cross_entropy",)):
        read = [call for call in loss_calls.looked_at(group) if not call.weighted]
        if read and all("float" in loss_calls.wanted(call).dtype for call in read):
            yield from _soft(read, rule)
        elif read and loss_calls.classes_of(read[0]) not in vocabularies:
            yield from _ids(read, rule)


def _soft(calls: Sequence[LossCall], rule: Rule) -> Iterator[Finding]:
    first = calls[0]
    targets = [loss_calls.wanted(call) for call in calls]
    classes = loss_calls.classes_of(first)
    if all(target.sums_to_one and loss_calls.is_binary(target) for target in targets):
        fix = "Pass the class ids themselves, without one_hot."
        yield _finding(rule, first, "cross_entropy is given one-hot targets.", ONE_HOT, fix, Severity.ADVICE)
        return
    totals = [classes * target.mean for target in targets if target.mean is not None]
    if not totals or classes > _MOST_CLASSES or any(abs(total - 1) < SLACK for total in totals):
        return
    message = f"cross_entropy is given float targets whose rows sum to {totals[0]:.3g} on average, not to 1."
    fix = (
        "Divide each row by its sum; for several classes per example use binary_cross_entropy_with_logits, and for one "
        "class per example pass its id."
    )
    yield _finding(rule, first, message, NO_DISTRIBUTION, fix, Severity.WARNING)


_MOST_CLASSES = 64
"""With more the mean of the targets rests on a part of the classes."""


def _ids(calls: Sequence[LossCall], rule: Rule) -> Iterator[Finding]:
    seen, classes = loss_calls.labels(calls), loss_calls.classes_of(calls[0])
    if (
        seen is None
        or classes < 3
        or sum(seen.values()) < LABELS_PER_CLASS * classes
        or any(_ignores(c) for c in calls)
    ):
        return
    if max(seen) != classes - 1:
        return
    if set(seen) == set(range(1, classes)):
        message = f"The labels run from 1 to {classes - 1} for {classes} outputs: class 0 never occurs."
        fix = f"Number the classes from 0 (subtract 1) and give the last layer {classes - 1} outputs."
        yield _finding(rule, calls[0], message, UNUSED, fix, Severity.ADVICE, seen)
    elif len(seen) <= classes // 2:
        some = ", ".join(str(label) for label in sorted(seen)[:5])
        message = f"Only {len(seen)} of {classes} class ids occur: {some}{', ...' if len(seen) > 5 else ''}."
        fix = "Number the ids that occur from 0: ids, labels = torch.unique(labels, return_inverse=True)."
        yield _finding(rule, calls[0], message, UNUSED, fix, Severity.ADVICE, seen)


def _ignores(call: LossCall) -> bool:
    return bool(call.ignored)


def _finding(
    rule: Rule,
    call: LossCall,
    message: str,
    cause: str,
    fix: str,
    severity: Severity,
    seen: Counter[int] | None = None,
) -> Finding:
    target = loss_calls.wanted(call)
    evidence = [
        Evidence("scores", str(list(loss_calls.given(call).shape))),
        Evidence("target", str(list(target.shape))),
    ]
    if seen is not None:
        evidence.append(Evidence("labels seen", sum(seen.values())))
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject("call", f"{call.loss} at {call.place}"),
        place=call.place,
        evidence=evidence,
        severity=severity,
        confidence=Confidence.CERTAIN if seen is None else Confidence.LIKELY,
    )
