"""O14 in the source: the operations that made the target, and the shapes that are written down."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from unstuck.events import LossCall
from unstuck.events.losses import CLASS_LOSSES
from unstuck.findings import Finding, Severity, Subject
from unstuck.rules.convergence.ce_target_form import ONE_HOT_CAUSE, PASS_IDS, Form, rule
from unstuck.rules.shared.shapes import shape_of
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, fix_with
from unstuck.source.flow import argument, behind
from unstuck.source.trace import Happened
from unstuck.source.values import Const, Tensor, Value

FLOATS = frozenset({"float", "double", "half", "bfloat16"})
CASTS = FLOATS | frozenset({"long", "int", "to", "cuda", "cpu", "contiguous", "clone", "detach", "type"})
ROWS = frozenset({"data", "batch", "part"})
"""What a loader yields."""


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a target, and what to write instead."""

    variant: Form
    message: str
    """After the name of the loss."""
    cause: str
    fix: str
    edit: str = ""
    """The target as it should be, with `{}` for what the user wrote."""
    severity: Severity = Severity.ERROR


ONE_HOT = Problem(
    Form.ONE_HOT,
    "gets one-hot integer targets.",
    "Targets with the shape of the scores are read as probabilities, which must be floats: the call raises an error.",
    PASS_IDS,
)
ONE_HOT_FLOAT = Problem(Form.ONE_HOT, "gets one-hot targets.", ONE_HOT_CAUSE, PASS_IDS, severity=Severity.ADVICE)
COLUMN = Problem(
    Form.EXTRA_DIMENSION,
    "gets a target with an extra dimension, (N, 1) instead of (N,).",
    "It takes one class id per row of scores; with an extra dimension it raises an error about multi-target or 1D "
    "targets.",
    "Drop the extra dimension: `.squeeze(1)`, or no unsqueeze.",
    "{}.squeeze(1)",
)
FLOAT_IDS = Problem(
    Form.WRONG_TYPE,
    "gets class ids cast to float.",
    "Class ids must be integers (torch.long); floats of this shape raise an error about the expected scalar type.",
    "Drop the cast, or use `.long()`.",
    "{}.long()",
)


def find(script: Script) -> Iterator[Finding]:
    """One finding for each loss call with a wrong target."""
    for call in script.facts.losses:
        event = call.event
        if not isinstance(event, LossCall) or event.loss not in CLASS_LOSSES:
            continue
        problem = _problem(call, event.loss)
        if problem is None:
            continue
        editor = Editor(script)
        node = editor.call_at(event.place) if event.place and problem.edit else None
        edits = editor.wrap(node.args[1], problem.edit) if node is not None and len(node.args) > 1 else None
        yield rule.finding(
            f"{event.loss} {problem.message}",
            cause=problem.cause,
            fix=fix_with(problem.fix, edits, "safe"),
            subject=Subject.at("call", event.loss, event.place),
            place=event.place,
            related=(call.subject.place if isinstance(call.subject, Tensor) else None,),
            severity=problem.severity,
            variant=problem.variant,
        )


def _problem(call: Happened, loss: str) -> Problem | None:
    target = call.subject
    if not isinstance(target, Tensor):
        return None
    origin, casts = target, set[str]()
    while origin.op in CASTS and origin.inputs and isinstance(origin.inputs[0], Tensor):
        casts.add(origin.op)
        origin = origin.inputs[0]
    if origin.op == "one_hot":
        if casts & FLOATS:
            return ONE_HOT_FLOAT if loss == "cross_entropy" else ONE_HOT
        return None if "to" in casts or "type" in casts else ONE_HOT
    if _has_extra_dimension(origin) and isinstance(call.value, Tensor) and call.value.op == "Linear":
        return COLUMN
    if casts & FLOATS and "long" not in casts and shape_of(target).rank == 1 and loss == "cross_entropy":
        return FLOAT_IDS
    return _out_of_range(origin, call.value)


def _has_extra_dimension(target: Tensor) -> bool:
    """Is it `y.unsqueeze(1)` or `y.view(-1, 1)`, where y has one class id per row?"""
    inner = target.inputs[0] if target.inputs else None
    if not isinstance(inner, Tensor) or (inner.op not in ROWS and shape_of(inner).rank != 1):
        return False
    if target.op == "unsqueeze":
        return argument(target, "dim", 0) in (Const(1), Const(-1))
    shape = shape_of(target)
    return target.op in ("view", "reshape") and shape.rank == 2 and shape.last == 1


def _out_of_range(target: Tensor, prediction: Value | None) -> Problem | None:
    classes = shape_of(prediction).last if shape_of(target).rank == 1 else None
    history = [value for value in behind(target, through_cuts=True) if isinstance(value, Tensor)]
    made = next((value for value in history if value.op == "randint"), None)
    other = {value.op for value in history} - {"randint", "batch", "data", "getitem"} - CASTS
    if made is None or classes is None or classes < 2 or other:
        return None
    numbers = [value.value for value in made.inputs if isinstance(value, Const) and isinstance(value.value, int)]
    ends = numbers[:2] if len(numbers) > 1 else [0, *numbers]
    if not numbers or ends[-1] - 1 < classes:
        return None
    return Problem(
        Form.OUT_OF_RANGE,
        f"gets class ids up to {ends[-1] - 1} for {classes} classes.",
        f"Ids must be in 0..{classes - 1}; an id of {classes} or more raises an index error, or a device-side assert "
        "on a GPU.",
        "Number the classes from 0 (subtract 1 if they start at 1), or give the last layer more outputs.",
    )
