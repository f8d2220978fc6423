"""M23: a reshape between model and loss puts other numbers where the loss expects the classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import LossCall
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.rule import Rule

if TYPE_CHECKING:
    from unstuck.events import Place
    from unstuck.interventions import Intervention
    from unstuck.record import Record

rule = Rule(
    code="M23",
    name="scrambled-classes",
    title="scores reshaped for the loss without moving their class axis",
    severity=Severity.ERROR,
    explains=("M13", "O01", "O07", "R01", "R03", "R08"),
    needs=(LossCall,),
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """A loss whose second axis is not the one that held the classes before a view or reshape."""
    found: dict[tuple[str, Place | None], list[LossCall]] = {}
    for call in record.of(LossCall):
        if call.classes_were is not None and call.input is not None and call.output_requires_grad:
            found.setdefault((call.loss, call.place), []).append(call)
    for (loss, place), calls in found.items():
        last = calls[-1]
        assert last.classes_were is not None
        assert last.input is not None
        (before, axis), given = last.classes_were, last.input.shape
        yield rule.finding(
            f"{loss} is given scores of shape {list(before)} reshaped to {list(given)}: axis 1 should hold the "
            f"{given[1]} classes, and holds neighbouring numbers of axis {len(before) - 1} instead.",
            cause="view and reshape keep the numbers in their order in memory and only cut them up differently. They "
            "do not move an axis, so the loss compares each target with scores of other positions and classes.",
            fix=_fix(before, axis, given),
            subject=Subject("call", loss),
            place=place,
            evidence=[
                Evidence("scores before", str(list(before))),
                Evidence("scores in the loss", str(list(given))),
                Evidence("calls seen", len(calls)),
            ],
        )


def _fix(before: Sequence[int], axis: int, given: Sequence[int]) -> str:
    if len(given) == 2:
        order = [*(index for index in range(len(before)) if index != axis), axis]
        return (
            f"Move the classes to the end before flattening: scores.permute({', '.join(map(str, order))})"
            f".reshape(-1, {given[1]}). Or give the loss scores of shape [N, {given[1]}, ...] as they are."
        )
    return "Use permute or transpose to bring the classes to axis 1, not view or reshape."


@rule.remedied_by
def remedied(finding: Finding) -> Iterator[Sequence[Intervention]]:
    """Give the loss the scores with their classes on the second axis."""
    from unstuck.interventions import GiveLoss

    yield (GiveLoss("classes-in-place"),)
