"""O30: ctc_loss given targets that contain its blank, or scores that are not log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import LossCall, Place
from unstuck.findings import Evidence, Finding, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Rule


class Given(Variant):
    """What ctc_loss is given."""

    BLANK = "blank-in-targets", "ctc_loss gets the blank as a label"
    SCORES = "raw-scores", "ctc_loss gets raw scores instead of log-probabilities"


rule = Rule(
    code="O30",
    name="ctc-inputs",
    title="ctc_loss given the blank as a label, or raw scores instead of log-probabilities",
    severity=Severity.ERROR,
    explains=("M13", "O01", "O07", "O28", "P21", "R03", "R08"),
    needs=(LossCall,),
    variants=Given.titles(),
)

FEWEST = 3
NORMALIZED = 0.01
"""How far the logarithm of a sum of probabilities may be from 0 by rounding."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Calls of `ctc_loss` in which either is true most of the time."""
    calls: dict[Place | None, list[LossCall]] = {}
    for call in record.of(LossCall):
        if call.loss == "ctc_loss" and call.output_requires_grad:
            calls.setdefault(call.place, []).append(call)
    for place, found in calls.items():
        if len(found) < FEWEST:
            continue
        blanks = sorted(call.blanks or 0.0 for call in found)[len(found) // 2]
        total = sorted(call.log_total or 0.0 for call in found)[len(found) // 2]
        if blanks > 0:
            yield rule.finding(
                f"{100 * blanks:.2g} % of the labels given to ctc_loss are its blank.",
                cause="The blank stands for no label at all. A label with the same number can never be output, and a "
                "target that contains it asks for an alignment that does not exist.",
                fix="Keep one number for the blank: count the labels from 1 (with blank=0), or put the blank last with "
                "blank=len(labels), and give the model one output more.",
                subject=Subject("call", "ctc_loss"),
                place=place,
                variant=Given.BLANK,
                evidence=[Evidence("labels that are the blank", blanks), Evidence("calls seen", len(found))],
            )
        if total > NORMALIZED:
            yield rule.finding(
                f"ctc_loss is given scores that are not log-probabilities: the logarithm of their sum is {total:.3g} "
                "on average, and should be 0.",
                cause="ctc_loss adds up the probabilities of alignments and does not normalize its input itself. Raw "
                "scores lower the loss without bound by growing all together.",
                fix="Apply log_softmax over the classes: F.ctc_loss(scores.log_softmax(-1), ...).",
                subject=Subject("call", "ctc_loss"),
                place=place,
                variant=Given.SCORES,
                evidence=[Evidence("logarithm of the sum", total), Evidence("calls seen", len(found))],
            )
