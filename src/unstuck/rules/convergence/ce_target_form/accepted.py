"""O14 without a crash: targets that cross_entropy accepts although they are not what it should get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from unstuck.events import LossCall, ModelSeen
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rules.convergence.ce_target_form import ONE_HOT_CAUSE, PASS_IDS, Form, rule
from unstuck.rules.shared import losses

LABELS_PER_CLASS = 20
"""This many labels per class must have been seen before a missing class means something."""
SLACK = 0.05
MOST_CLASSES = 64
"""With more classes, the mean of the targets is measured on some of them only."""
NOT_A_DISTRIBUTION = (
    "Float targets are read as class probabilities. A row that does not sum to 1 scales the loss of its example, and "
    "several ones in a row (multi-label) ask for what a softmax cannot give."
)
UNUSED = "An output that is never a target is only ever pushed down: it costs memory and time, and learns nothing."


def find(calls: Iterable[LossCall], models: Iterable[ModelSeen]) -> Iterator[Finding]:
    """Float targets that are one-hot or not probabilities, and ids that leave outputs unused."""
    vocabularies = {module.numbers["num_embeddings"] for module in losses.embeddings(models)}
    for group in losses.trained(calls, ("cross_entropy",)):
        read = [call for call in losses.looked_at(group) if not call.weighted]
        if read and all("float" in losses.wanted(call).dtype for call in read):
            yield from _floats(read)
        elif read and losses.classes_of(read[0]) not in vocabularies:
            yield from _ids(read)


def _floats(calls: Sequence[LossCall]) -> Iterator[Finding]:
    targets = [losses.wanted(call) for call in calls]
    classes = losses.classes_of(calls[0])
    if all(target.sums_to_one and losses.is_binary(target) for target in targets):
        message = "cross_entropy gets one-hot targets."
        yield _finding(Form.ONE_HOT, calls[0], message, ONE_HOT_CAUSE, PASS_IDS, Severity.ADVICE)
        return
    totals = [classes * target.mean for target in targets if target.mean is not None]
    if not totals or classes > MOST_CLASSES or any(abs(total - 1) < SLACK for total in totals):
        return
    yield _finding(
        Form.NOT_PROBABILITIES,
        calls[0],
        f"cross_entropy gets float targets whose rows sum to {totals[0]:.3g} on average, not to 1.",
        NOT_A_DISTRIBUTION,
        "Divide each row by its sum; with several classes per example use binary_cross_entropy_with_logits; with one "
        "class per example pass its id.",
        Severity.WARNING,
    )


def _ids(calls: Sequence[LossCall]) -> Iterator[Finding]:
    seen, classes = losses.labels(calls), losses.classes_of(calls[0])
    if seen is None or classes < 3 or sum(seen.values()) < LABELS_PER_CLASS * classes:
        return
    if any(call.ignored for call in calls) or max(seen) != classes - 1:
        return
    if set(seen) == set(range(1, classes)):
        message = f"The labels run from 1 to {classes - 1} for {classes} outputs: class 0 never occurs."
        fix = f"Number the classes from 0 (subtract 1) and give the last layer {classes - 1} outputs."
        yield _finding(Form.UNUSED_OUTPUTS, calls[0], message, UNUSED, fix, Severity.ADVICE, seen)
    elif len(seen) <= classes // 2:
        some = ", ".join(str(label) for label in sorted(seen)[:5])
        message = f"Only {len(seen)} of {classes} class ids occur: {some}{', ...' if len(seen) > 5 else ''}."
        fix = "Renumber the ids that occur from 0: ids, labels = torch.unique(labels, return_inverse=True)."
        yield _finding(Form.UNUSED_OUTPUTS, calls[0], message, UNUSED, fix, Severity.ADVICE, seen)


def _finding(
    variant: Form,
    call: LossCall,
    message: str,
    cause: str,
    fix: str,
    severity: Severity,
    labels: Counter[int] | None = None,
) -> Finding:
    evidence = [
        Evidence("scores", str(list(losses.given(call).shape))),
        Evidence("target", str(list(losses.wanted(call).shape))),
    ]
    if labels is not None:
        evidence.append(Evidence("labels seen", sum(labels.values())))
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject.at("call", call.loss, call.place),
        place=call.place,
        evidence=evidence,
        severity=severity,
        confidence=Confidence.CERTAIN if labels is None else Confidence.LIKELY,
        variant=variant,
    )
