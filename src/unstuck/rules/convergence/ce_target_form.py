"""O14: cross_entropy given targets in a form it does not take: one-hot, float, (N, 1), or ids outside 0..C-1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import LossCall, ModelSeen, Setup
from unstuck.findings import Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.rules.convergence import _crashed_targets
from unstuck.rules.convergence._odd_targets import odd_targets
from unstuck.rules.shared.shapes import shape_of
from unstuck.source.edits.edit import Editor, Edits, fix_with
from unstuck.source.flow import argument, behind
from unstuck.source.trace import Happened
from unstuck.source.values import Const, Tensor, Value

if TYPE_CHECKING:
    from unstuck.record import Record
    from unstuck.source import Script

rule = Rule(
    code="O14",
    name="ce-target-form",
    title="cross_entropy given one-hot, float, (N, 1) or out-of-range targets",
    severity=Severity.ERROR,
)

FLOATS = frozenset({"float", "double", "half", "bfloat16"})
CASTS = FLOATS | frozenset({"long", "int", "to", "cuda", "cpu", "contiguous", "clone", "detach", "type"})
ROWS = frozenset({"data", "batch", "part"})
"""What a loader yields."""


class Complaint(msgspec.Struct, frozen=True):
    """What is wrong with a target, and what to write instead."""

    message: str
    cause: str
    fix: str
    edit: str = ""
    """The target as it should be, `{}` standing for what the user wrote."""
    severity: Severity = Severity.ERROR


ONE_HOT = Complaint(
    "{loss} is given one-hot targets of integers.",
    "Targets with the shape of the scores are read as probabilities, which must be floats: the call raises an error.",
    "Pass the class ids themselves, without one_hot.",
)
ONE_HOT_FLOAT = Complaint(
    "{loss} is given one-hot targets.",
    "One-hot rows are read as probabilities: the same loss as with class ids, with C times the memory and no check "
    "that the ids are in range.",
    "Pass the class ids themselves, without one_hot.",
    severity=Severity.ADVICE,
)
COLUMN = Complaint(
    "{loss} is given a target with an extra axis, (N, 1) instead of (N,).",
    "It wants one class id per row of scores; the extra axis raises an error about multi-target or 1D targets.",
    "Pass the ids without the extra axis: `.squeeze(1)`, or leave the unsqueeze away.",
    "{}.squeeze(1)",
)
AS_FLOAT = Complaint(
    "{loss} is given class ids cast to float.",
    "Class ids must be integers (torch.long); floats of this shape raise an error about the expected scalar type.",
    "Leave the cast away, or use `.long()`.",
    "{}.long()",
)
OUT_OF_RANGE = Complaint(
    "{loss} is given class ids up to {highest} for {classes} classes.",
    "Ids must lie in 0..{last}; an id of {classes} or more raises an index error, on a GPU a device-side assert.",
    "Number the classes from 0 (subtract 1 if they start at 1), or give the last layer more outputs.",
)


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Judged by the operations that made the target and the shapes that are written down."""
    for call in script.facts.losses:
        event = call.event
        if isinstance(event, LossCall) and event.loss in ("cross_entropy", "nll_loss"):
            complaint = _complaint(call, event.loss)
            if complaint is not None:
                yield _finding(script, event, call, complaint)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """What a crash tells of it, and targets that pass without one."""
    yield from _crashed_targets.explain(record, rule)
    yield from odd_targets(record.of(LossCall), record.of(ModelSeen), rule)


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Targets of the probed batch that pass without an error."""
    yield from odd_targets(setup.losses, setup.models, rule)


def _complaint(call: Happened, loss: str) -> Complaint | None:
    target = call.subject
    if not isinstance(target, Tensor):
        return None
    origin, casts = _under_casts(target)
    if origin.op == "one_hot":
        return _of_one_hot(casts, loss)
    if _is_extra_axis(origin) and isinstance(call.value, Tensor) and call.value.op == "Linear":
        return COLUMN
    if casts & FLOATS and "long" not in casts and shape_of(target).rank == 1 and loss == "cross_entropy":
        return AS_FLOAT
    return _out_of_range(origin, call.value)


def _of_one_hot(casts: set[str], loss: str) -> Complaint | None:
    if casts & FLOATS:
        return ONE_HOT_FLOAT if loss == "cross_entropy" else ONE_HOT
    return None if "to" in casts or "type" in casts else ONE_HOT


def _under_casts(target: Tensor) -> tuple[Tensor, set[str]]:
    """The tensor below all casts, and the casts."""
    casts: set[str] = set()
    while target.op in CASTS and target.inputs and isinstance(target.inputs[0], Tensor):
        casts.add(target.op)
        target = target.inputs[0]
    return target, casts


def _is_extra_axis(target: Tensor) -> bool:
    """`y.unsqueeze(1)` or `y.view(-1, 1)`, where y has one class id per row."""
    inner = target.inputs[0] if target.inputs else None
    if not isinstance(inner, Tensor) or (inner.op not in ROWS and shape_of(inner).rank != 1):
        return False
    if target.op == "unsqueeze":
        return argument(target, "dim", 0) in (Const(1), Const(-1))
    shape = shape_of(target)
    return target.op in ("view", "reshape") and shape.rank == 2 and shape.last == 1


def _out_of_range(target: Tensor, prediction: Value | None) -> Complaint | None:
    classes = shape_of(prediction).last if shape_of(target).rank == 1 else None
    made = next((v for v in behind(target, through_cuts=True) if isinstance(v, Tensor) and v.op == "randint"), None)
    path = {v.op for v in behind(target, through_cuts=True) if isinstance(v, Tensor)}
    if made is None or classes is None or classes < 2 or path - {"randint", "batch", "data", "getitem"} - CASTS:
        return None
    numbers = [value.value for value in made.inputs if isinstance(value, Const) and isinstance(value.value, int)]
    ends = numbers[:2] if len(numbers) > 1 else [0, *numbers]
    if not numbers or ends[-1] - 1 < classes:
        return None
    words = {"highest": ends[-1] - 1, "classes": classes, "last": classes - 1, "loss": "{loss}"}
    return msgspec.structs.replace(
        OUT_OF_RANGE, message=OUT_OF_RANGE.message.format(**words), cause=OUT_OF_RANGE.cause.format(**words)
    )


def _finding(script: Script, event: LossCall, call: Happened, complaint: Complaint) -> Finding:
    return rule.finding(
        complaint.message.format(loss=event.loss),
        cause=complaint.cause,
        fix=fix_with(complaint.fix, _edited(script, event, complaint.edit), "safe"),
        subject=Subject("call", f"{event.loss} at {event.place}"),
        place=event.place,
        related=(call.subject.place if isinstance(call.subject, Tensor) else None,),
        severity=complaint.severity,
    )


def _edited(script: Script, event: LossCall, wanted: str) -> Edits | None:
    editor = Editor(script)
    node = editor.call_at(event.place) if event.place and wanted else None
    return editor.wrap(node.args[1], wanted) if node is not None and len(node.args) > 1 else None
