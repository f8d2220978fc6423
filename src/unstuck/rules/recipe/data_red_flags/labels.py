"""R09 for labels: only one class, or one class in almost all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from unstuck.events import BatchSeen, ClassFact, LossCall, Place
from unstuck.events.losses import BINARY_LOSSES, CLASS_LOSSES
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rules.recipe.data_red_flags import Flag, rule
from unstuck.rules.shared.data import ended_in_first_pass, trained_on, training_losses

FEWEST_CALLS = 5
FEWEST_LABELS = 64
MAJORITY = 0.9
ENOUGH_LABELS = 500
LAST_CALLS = 3
SURE = math.log(1e-6)


def one_label(record: Record) -> Iterator[Finding]:
    """Every label of the classification losses is the same."""
    by_classes: dict[int, list[LossCall]] = {}
    for calls in _by_place(training_losses(record, *CLASS_LOSSES)).values():
        # Two lines for two kinds of examples, as in adversarial training, count together.
        by_classes.setdefault(_classes(calls[0]), []).extend(calls)
    for calls in by_classes.values():
        counts = _counted([call.target.classes for call in calls if call.target is not None])
        if len(counts) == 1 and _is_enough(calls, counts) and _is_not_a_convention(record, next(iter(counts))):
            yield _one_label(calls[0].place, str(next(iter(counts))), sum(counts.values()))
    binary = training_losses(record, *BINARY_LOSSES)
    ends = {end for call in binary if call.target is not None for end in (call.target.low, call.target.high)} - {None}
    labels = sum(math.prod(call.target.shape) for call in binary if call.target is not None)
    if len(binary) >= 2 * FEWEST_CALLS and labels >= FEWEST_LABELS and ends in ({0.0}, {1.0}):
        yield _one_label(binary[0].place, f"{ends.pop():g}", labels)


def imbalance(record: Record) -> Iterator[Finding]:
    """Nearly all labels are of one class, and the model predicts nothing else."""
    for place, calls in _by_place(training_losses(record, *CLASS_LOSSES)).items():
        counts = _counted([call.target.classes for call in calls if call.target is not None])
        total = sum(counts.values())
        if len(counts) < 2 or total < ENOUGH_LABELS or any(call.weighted for call in calls):
            continue
        majority, often = counts.most_common(1)[0]
        predicted = _counted([call.input.classes for call in calls[-LAST_CALLS:] if call.input is not None])
        if often / total < MAJORITY or set(predicted) != {majority} or len(calls) < 2 * LAST_CALLS:
            continue
        yield rule.finding(
            f"{often / total:.1%} of the labels are class {majority}, and the model predicts nothing else.",
            cause="Always predicting the frequent class is nearly right, so the loss gives little reason to learn "
            "the others.",
            fix="Pass class weights to the loss (weight=), or sample the rare classes more often "
            "(WeightedRandomSampler), and measure the accuracy per class.",
            subject=Subject.at("loss", "labels", place),
            place=place,
            evidence=[
                Evidence("labels counted", total),
                Evidence("share of the most frequent class", often / total, threshold=MAJORITY),
                Evidence("classes predicted at the end", len(predicted)),
            ],
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            variant=Flag.IMBALANCE,
        )


def unseen_class(record: Record) -> Iterator[Finding]:
    """Labels that occur in evaluation and never in training, and too often for chance."""
    calls = [call for call in record.of(LossCall) if call.loss in CLASS_LOSSES]
    trained = _counted([call.target.classes for call in calls if call.target is not None and call.output_requires_grad])
    by_place = _by_place([call for call in calls if call.output_requires_grad is False])
    labels = sum(trained.values())
    for place, evaluated in by_place.items():
        counts = _counted([call.target.classes for call in evaluated if call.target is not None])
        total = sum(counts.values())
        facts = [call.target.classes for call in calls if call.target is not None and call.target.classes is not None]
        if not total or not labels or any(fact.distinct > len(fact.counts) for fact in facts):
            continue
        # The chance that training misses a class which is as frequent there as in evaluation.
        unseen = [label for label, count in counts.items() if label not in trained and count > 1]
        unseen = [label for label in unseen if labels * math.log1p(-counts[label] / (total + 1)) < SURE]
        if not unseen:
            continue
        share = sum(counts[label] for label in unseen) / total
        names = ", ".join(str(label) for label in sorted(unseen)[:6])
        yield rule.finding(
            f"{share:.0%} of the labels in evaluation are of a class that training never has: {names}.",
            cause="A model never predicts a class it has not seen, so all these examples are wrong.",
            fix="Split the data at random, or by class (stratify=labels); data sorted by class must be shuffled before "
            "it is cut in two.",
            subject=Subject.at("loss", "classes", place),
            place=place,
            related=[call.place for call in calls if call.output_requires_grad][:1],
            evidence=[Evidence("training labels examined", labels), Evidence("evaluation labels examined", total)],
            variant=Flag.UNSEEN_CLASS,
        )


def _one_label(place: Place | None, label: str, labels: int) -> Finding:
    return rule.finding(
        f"All {labels:,} labels examined are {label}.",
        cause="With one class there is nothing to distinguish: the loss falls to 0 and the model learns one answer.",
        fix="Check how the labels are read and encoded, and whether a filter removed the other classes.",
        subject=Subject.at("loss", "labels", place),
        place=place,
        evidence=[Evidence("labels examined", labels), Evidence("class", label)],
        variant=Flag.ONE_CLASS,
    )


def _by_place(calls: Sequence[LossCall]) -> dict[Place, list[LossCall]]:
    found: dict[Place, list[LossCall]] = {}
    for call in calls:
        if call.place is not None and call.target is not None and call.target.classes is not None:
            found.setdefault(call.place, []).append(call)
    return found


def _counted(facts: Sequence[ClassFact | None]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for fact in facts:
        counts.update(fact.counts if fact is not None else {})
    return counts


def _is_enough(calls: Sequence[LossCall], counts: Counter[int]) -> bool:
    return len(calls) >= FEWEST_CALLS and sum(counts.values()) >= FEWEST_LABELS and _classes(calls[0]) > 1


def _classes(call: LossCall) -> int:
    shape = call.input.shape if call.input is not None else ()
    return shape[1] if len(shape) > 1 else 0


def _is_not_a_convention(record: Record, label: int) -> bool:
    """Contrastive losses have the right answer at 0 by design; then no loader returns such labels.

    Data sorted by class, of a run shorter than one pass, belongs to M04.
    """
    trained = trained_on(record)
    if any(loader.sampler == "SequentialSampler" and ended_in_first_pass(record, loader) for loader in trained):
        return False
    given = {loader.loader for loader in trained}
    batches = [batch for batch in record.of(BatchSeen) if batch.loader in given]
    from_loader = bool(batches) and all(
        any(fact.dtype.startswith("int") and fact.low == fact.high == label for fact in batch.inputs)
        for batch in batches
    )
    return from_loader or label != 0
