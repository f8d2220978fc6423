"""M23: a reshape between model and loss puts other numbers where the loss expects the classes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from unstuck.events import Backward, LossCall, Place
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Remedies, Rule

rule = Rule(
    code="M23",
    name="scrambled-classes",
    title="scores reshaped for the loss without moving their class axis",
    severity=Severity.ERROR,
    explains=("M13", "O01", "O07", "R01", "R03", "R08"),
    needs=(LossCall,),
)

PICKED = "rows given to the loss"


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """A loss whose second axis is not the one that held the classes before a view or reshape."""
    calls: dict[tuple[str, Place | None], list[LossCall]] = {}
    for call in record.of(LossCall):
        if call.classes_were is not None and call.output_requires_grad:
            calls.setdefault((call.loss, call.place), []).append(call)
    for (loss, place), found in calls.items():
        if (were := found[-1].classes_were) is not None:
            given = found[-1].input.shape if found[-1].input else ()
            picked = bool(given) and math.prod(given) != math.prod(were[0])
            yield _finding(loss, place, *were, len(given) or 2, len(found), picked=picked)
    written: dict[Place | None, list[tuple[tuple[int, ...], int]]] = {}
    for backward in record.of(Backward) if not calls else ():
        if backward.graph is not None and backward.graph.classes_were is not None:
            written.setdefault(backward.place, []).append(backward.graph.classes_were)
    for place, shapes in written.items():
        yield _finding("the loss", place, *shapes[-1], 2, len(shapes))


def _finding(
    loss: str, place: Place | None, before: tuple[int, ...], axis: int, sides: int, count: int, *, picked: bool = False
) -> Finding:
    classes = before[axis]
    flat = " flattened and" if sides == 2 else ""
    return rule.finding(
        f"Scores of shape {list(before)} are{flat} given to {loss} by a view or reshape: axis 1 should hold the "
        f"{classes} classes of axis {axis}, and holds neighbouring numbers of axis {len(before) - 1} instead.",
        cause="view and reshape keep the numbers in their order in memory and only cut them up differently. They do "
        "not move an axis, so the loss compares each target with scores of other positions and classes.",
        fix=_fix(before, axis, sides),
        subject=Subject("call", loss),
        place=place,
        evidence=[
            Evidence("scores before", str(list(before))),
            Evidence("losses seen", count),
            *([Evidence(PICKED, "some of all")] if picked else []),
        ],
    )


def _fix(before: Sequence[int], axis: int, sides: int) -> str:
    if sides > 2:
        return "Bring the classes to axis 1 with permute or transpose, not with view or reshape."
    order = [*(index for index in range(len(before)) if index != axis), axis]
    return (
        f"Move the classes to the end before flattening: scores.permute({', '.join(map(str, order))})"
        f".reshape(-1, {before[axis]})."
    )


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """Give the loss, or the softmax in it, the scores with their classes on the second axis."""
    from unstuck.interventions import GiveLoss

    if any(evidence.name == PICKED for evidence in finding.evidence):
        return  # the others are gone by the time the loss is called
    yield (GiveLoss("classes-in-place"),)
