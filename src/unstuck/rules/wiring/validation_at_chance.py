"""M13: training succeeds but validation is no better than guessing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from unstuck.events import Evaluated, Place
from unstuck.events.losses import BINARY_LOSSES, CLASS_LOSSES
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.record.outcome import Achieved
from unstuck.rule import Rule
from unstuck.rules.shared.data import training_losses
from unstuck.rules.shared.dynamics import median, outcome

rule = Rule(
    code="M13",
    name="validation-at-chance",
    title="training loss falls while validation stays at chance",
    severity=Severity.WARNING,
    needs=(Evaluated,),
)

FEWEST_LABELS = 50
MANY_LABELS = 200
LEARNED = 0.6
"""A training loss below this share of the loss of guessing has learned something."""
GUESSED = 0.95
"""A validation loss above this share of it has not."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The last evaluations on one line are no better than guessing, while the training loss is far better."""
    by_place: dict[Place | None, list[Evaluated]] = {}
    shares: dict[Place | None, list[Evaluated]] = {}
    for event in record.of(Evaluated):
        if event.accuracy is not None and event.examples >= FEWEST_LABELS:
            (by_place if event.value is not None else shares).setdefault(event.place, []).append(event)
    yield from _by_shares(record, shares)
    for place, events in by_place.items():
        late = events[len(events) // 2 :]
        trained = _training_loss(record, events[-1].loss)
        chance = math.log(events[-1].classes) if events[-1].classes > 1 else 0.0
        if not _is_enough(events) or trained is None or trained > LEARNED * chance or chance == 0.0:
            continue
        if all(_guesses(event, chance) for event in late):
            yield _finding(
                place,
                late[-1],
                f"The training loss fell to {trained:.3g}",
                [
                    Evidence("training loss", trained),
                    Evidence("validation loss", late[-1].value or math.nan, threshold=round(chance, 3)),
                    Evidence("evaluations", len(events)),
                ],
            )


def _is_enough(events: list[Evaluated]) -> bool:
    """Several evaluations, or one of many examples."""
    return len(events) > 1 or events[-1].examples >= MANY_LABELS


def _by_shares(record: Record, shares: dict[Place | None, list[Evaluated]]) -> Iterator[Finding]:
    """Where the script computes no loss in evaluation, by the share that is right, against that of training."""
    found = outcome(record) if shares else None
    if found is None or found.word is not Achieved.MEMORIZES or found.right is None or found.right_guess is None:
        return
    for place, events in shares.items():
        late = events[len(events) // 2 :]
        noise = math.sqrt(found.right_guess * (1 - found.right_guess) / late[-1].examples)
        at_chance = all((event.accuracy or 0.0) <= found.right_guess + 3 * noise for event in late)
        if _is_enough(events) and at_chance:
            yield _finding(
                place,
                late[-1],
                f"In training {found.right:.0%} of the answers are right",
                [
                    Evidence("right in training", found.right, threshold=round(found.right_guess, 3)),
                    Evidence("examples in evaluation", late[-1].examples),
                    Evidence("evaluations", len(events)),
                ],
            )


def _training_loss(record: Record, loss: str) -> float | None:
    """The median over the last quarter of the training steps on record."""
    if loss not in (*CLASS_LOSSES, *BINARY_LOSSES):
        return None
    calls = [call for call in training_losses(record, loss) if call.reduction in ("", "mean")]
    values = [call.value for call in calls if call.value is not None]
    return median(values[-max(5, len(values) // 4) :]) if len(values) >= 5 else None


def _guesses(event: Evaluated, chance: float) -> bool:
    if event.value is None or event.accuracy is None:
        return False
    share = 1 / event.classes
    noise = math.sqrt(share * (1 - share) / event.examples)
    return event.value >= GUESSED * chance and abs(event.accuracy - share) <= 3 * noise


def _finding(place: Place | None, last: Evaluated, trained: str, evidence: list[Evidence]) -> Finding:
    return rule.finding(
        f"{trained}, but validation is at chance: {last.accuracy:.1%} right among {last.classes} classes.",
        cause="What the model learned does not apply to these examples: their labels do not match their inputs, "
        "they are preprocessed differently, or the model memorized the training set.",
        fix="Check that inputs and labels are shuffled and split together, in training and in validation, and "
        "preprocessed alike. Then evaluate on part of the training set: if that is at chance, too, check the "
        "evaluation code.",
        subject=Subject.at("call", "evaluation", place),
        place=place,
        evidence=[*evidence, Evidence("validation accuracy", last.accuracy or 0.0)],
        confidence=Confidence.LIKELY,
    )
