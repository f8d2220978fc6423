"""P08: the targets of a sequence belong to other positions than those they are compared with."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import TargetsPlaced
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.findings.relations import Relation
from unstuck.findings.results import Experiment
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import broken_relations, objects


class Shift(Variant):
    """How it shows."""

    SHIFTED = "shifted", "the target is an input that is not the next one: shifted twice, or the wrong way"
    MISALIGNED = "misaligned", "targets fit the inputs of another position much better"
    ACROSS = "across", "the next token is sought along one axis, while the text runs along the other"
    TURNED = "turned", "masks or grids of targets are flipped, turned or transposed, compared with their images"


rule = Rule(
    code="P08",
    name="shifted-target",
    title="targets belong to other positions than those they are compared with",
    severity=Severity.WARNING,
    explains=("O01", "O07", "R03", "R08", "M13"),
    variants=Shift.titles(),
    needs=(),
)

FEWEST = 3
NEARLY_ALL = 0.98
ALL = 0.95
"""Targets of which so much is the image, turned, are meant to be that, if they are learned."""
CLEARLY_LESS = 0.9
"""Targets that are inputs of several shifts at once repeat themselves."""

CAUSES = {
    Shift.SHIFTED: "A prediction of the next element is compared with the wrong one: inputs or targets were shifted "
    "twice (by the script and by the model or the loss), or the wrong way.",
    Shift.MISALIGNED: "Inputs and targets are off by some positions, so a prediction is compared with the answer to "
    "another question.",
    Shift.ACROSS: "A text that is cut by view(steps, batch) runs along the batch. It has to be cut into rows, by "
    "view(batch, steps), and then transposed. As it is, a token and its target are far apart in the text.",
    Shift.TURNED: "Rows and columns were exchanged, or an image was moved without its target: `grid[x, y]` instead of "
    "`grid[y, x]` has the right shape, and asks for an object where there is none.",
}
FIXES = {
    Shift.SHIFTED: "Shift once: give the model tokens[:, :-1] and compare with tokens[:, 1:].",
    Shift.MISALIGNED: "Move the targets back by as many positions; look at slices, padding and delays in the pipeline.",
    Shift.ACROSS: "Write data.view(batch, -1).t() where the text is cut, and print a column to read it.",
    Shift.TURNED: "Draw one image with its target on top. Look at the order of indices (row first, then column) and at "
    "what flips or transposes only one of the two.",
}


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Every target is the input two or more positions on. A head that looks further ahead than another is meant to."""
    lines = objects.by_place(record.of(TargetsPlaced))
    if any(event.shift == 1 and event.share >= NEARLY_ALL for events in lines.values() for event in events):
        return
    for events in lines.values():
        last = events[-1]
        alike = [event for event in events if event.share >= NEARLY_ALL and event.next_best < CLEARLY_LESS]
        if (
            len(events) < FEWEST
            or alike != events
            or last.shift < 2
            or {event.shift for event in events} != {last.shift}
        ):
            continue
        yield rule.finding(
            f"The target of a position is the input {last.shift} positions after it, not the next one "
            f"({last.share:.0%} of {last.scored:,} targets, sequences of {last.length}).",
            cause=CAUSES[Shift.SHIFTED],
            fix=FIXES[Shift.SHIFTED],
            subject=Subject("loss", "targets"),
            place=last.place,
            evidence=[
                Evidence("shift", last.shift),
                Evidence("share", last.share),
                Evidence("best other shift", last.next_best),
                Evidence("loss", last.loss),
            ],
            severity=Severity.ERROR,
            variant=Shift.SHIFTED,
        )


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`relations` compared targets with the inputs of other positions."""
    for answer in broken_relations.broken_in(experiment, Relation.ALIGNMENT):
        variant = Shift(answer.form)
        is_certain = variant in (Shift.ACROSS, Shift.TURNED)
        is_all = variant is Shift.TURNED and float(answer.measures.get("fit") or 0.0) >= ALL
        if (is_all or not is_certain) and broken_relations.learns(experiment):
            continue  # a delay that the model can make up for, or that is the task
        yield rule.finding(
            answer.sentence,
            cause=CAUSES[variant],
            fix=FIXES[variant],
            subject=Subject("loss", answer.subject),
            place=answer.place,
            evidence=broken_relations.evidence(answer, ("shift", "axis", "turn", "share", "fit", "fit as it is")),
            severity=Severity.ERROR if is_certain else None,
            confidence=Confidence.CERTAIN if is_certain else Confidence.LIKELY,
            variant=variant,
        )
