"""O09: gradients of N micro-batches are added up and the losses are not divided by N."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import Backward, Clip, OptimizerStep
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rule import Rule
from unstuck.rules.convergence import _accumulated_in_run as measured
from unstuck.rules.shared.accumulation import MICRO_STEPS, Window, close, windows
from unstuck.source.edits.edit import Editor, Edits, fix_with
from unstuck.source.flow import behind
from unstuck.source.reader.knowledge import LOSS_FUNCTIONS, SAME_VALUES
from unstuck.source.trace import Happened
from unstuck.source.values import Choice, Const, Instance, Method, Tensor, Value, alternatives

if TYPE_CHECKING:
    from unstuck.interventions import Intervention
    from unstuck.record import Record
    from unstuck.source import Script

rule = Rule(
    code="O09",
    name="accumulation-not-divided",
    title="gradients of N micro-batches summed, with no division by N or by another number",
    severity=Severity.ERROR,
    explains=("G05", "G08", "G10", "G18", "M14", "O07", "O22", "O25", "R08"),
    needs=(Backward, OptimizerStep),
)

CAUSE = (
    "backward() adds to the gradients, so a step applies the sum of {every} mean losses: a gradient {times} times as "
    "large as that of one big batch, which acts like a learning rate {times} times as large."
)
CLIPPED = (
    "backward() adds to the gradients, so clipping sees the sum of {every} of them and cuts {times} times as early."
)
ADAPTIVE = (
    "backward() adds to the gradients. {kind} divides a constant factor out again, so updates hardly change; eps, "
    "logged gradient norms and a later change of optimizer or clipping do."
)
WRONG = (
    "A step applies the sum of {every} gradients, each divided by {divisor}: {factor:g} times that of one big batch."
)
SUMS_ARE_EQUAL = frozenset(
    "Adam AdamW Adamax NAdam RAdam Adagrad Adadelta RMSprop Rprop SparseAdam Adafactor Lion Lamb LAMB AdaBelief "
    "RAdamW Muon SophiaG".split()
)
"""Optimizers that divide by the size of the gradients, so that a constant factor falls out."""
PASSES = SAME_VALUES | {"scale", "mean", "nan_to_num"}
ONLY_LOGGED = pattern(
    r"(\b(running|total|epoch|avg|average|mean|log|tr|tot|cum)_?\w*|item\(\)|len\([^()]*\)|steps|batches|size)\s*$"
)
"""What stands in front of a division that does not touch the training."""
IN_PLACE = pattern(
    r"(grad|loss|\bg\b)[^\n]*\.(div_|mul_|true_divide_)\(|\._foreach_(div|mul)_\(|\.grad\b[^\n=]*[*/]=|register_hook"
)
"""Gradients or losses changed by hand; `.mul_()` on other tensors is an average of weights, say."""

WRITES_WEIGHTS = frozenset({"mul_", "add_", "sub_", "div_", "copy_", "lerp_", "clamp_", "clip_"})


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """A window whose backward reaches a mean loss of torch without any division, or with another one."""
    for window in windows(script):
        if not _gradients_are_read(script, window) or IN_PLACE.search(script.text):
            continue
        for backward in window.backwards:
            item = backward.item
            if item.value is None or not _plain_backward(script, item):
                continue
            divisor, number = _divisor(item.value), _number(script, window.every)
            if (
                _undivided(item.value)
                and _mean_losses(script, item.value)
                and not _divides_elsewhere(script.text, window.every)
                and not (number and re.search(rf"(lr|rate)\w*\s*=[^,\n]*/\s*{number}\b", script.text))
            ):
                yield _missing(script, window, item)
            elif divisor and number and divisor != number and _counts(window, item.value, divisor):
                yield _other_number(window, item, divisor, number)


def _gradients_are_read(script: Script, window: Window) -> bool:
    """Does nothing unread happen in the window but weights being written to, such as those of an average?"""
    spots = [hidden.place for hidden in window.hidden]
    if not spots:
        return True
    editor = Editor(script)
    calls = [editor.call_at(spot) if spot is not None and spot.path == script.path else None for spot in spots]
    return all(call is not None and getattr(call.func, "attr", "") in WRITES_WEIGHTS for call in calls)


def _plain_backward(script: Script, item: Happened) -> bool:
    """`backward()` without a gradient of its own, which may hold the factor."""
    call = Editor(script).call_at(item.event.place) if item.event.place is not None else None
    allowed = ("retain_graph", "create_graph")
    return call is not None and not call.args and all(keyword.arg in allowed for keyword in call.keywords)


def _undivided(value: Value) -> bool:
    """Does a mean loss of torch certainly arrive here as it is, alone or as a term of a sum?"""
    if isinstance(value, Choice):
        return all(map(_undivided, value.options))
    if isinstance(value, Method):
        # `outputs.loss` of a model of transformers, which is a mean as well; the caller knows whether it is one.
        return value.name == "loss"
    if not isinstance(value, Tensor) or value.cut:
        return False
    if value.op in LOSS_FUNCTIONS:
        reduction = value.options.get("reduction", Const("mean"))
        return reduction == Const("mean") and "size_average" not in value.options
    if value.op == "add":
        return any(map(_undivided, value.inputs))
    return value.op in PASSES and bool(value.inputs) and _undivided(value.inputs[0])


def _mean_losses(script: Script, value: Value) -> bool:
    """No loss behind the value comes out of an unknown model, unless that is one of transformers."""
    unknown = any(isinstance(item, Method) for item in behind(value))
    return not unknown or re.search(r"^\s*(from|import) transformers\b", script.text, re.M) is not None


def _divisor(value: Value) -> int | None:
    """The number by which a mean loss is divided last of all. A sum of terms may be divided to average them: None."""
    while isinstance(value, Tensor) and value.op in PASSES and value.inputs:
        value = value.inputs[0]
    if not isinstance(value, Tensor) or value.op != "div" or len(value.inputs) != 2:
        return None
    loss, by = value.inputs
    whole = isinstance(loss, Tensor) and loss.op != "add" and _undivided(loss)
    number = by.value if isinstance(by, Const) else None
    return int(number) if whole and isinstance(number, int | float) and number > 1 and number == int(number) else None


def _counts(window: Window, value: Value, divisor: int) -> bool:
    """Is the divisor meant as a number of micro-batches, by its name or that of N? Half a loss is a habit."""
    divisions = [part.node for part in behind(value) if isinstance(part, Tensor) and part.op == "div"]
    names = " ".join(ast.unparse(node) for node in divisions if node is not None)
    return MICRO_STEPS.search(names) is not None or (divisor > 2 and MICRO_STEPS.search(window.every) is not None)


def _divides_elsewhere(text: str, every: str) -> bool:
    """Is anything but a count or a logged sum divided by N, such as the learning rate or the gradients?"""
    name = re.escape(every.rpartition(".")[2])
    found = re.finditer(rf"^(?P<before>.*?)(?<!/)/=?\s*(\w+\.|float\(|\()*{name}\b", text, re.M)
    return any(not ONLY_LOGGED.search(match["before"]) for match in found)


def _number(script: Script, every: str) -> int | None:
    """N as a number: a literal, or a name that the file sets to one and the same literal everywhere."""
    if every.isdigit():
        return int(every)
    stored, values = 0, []
    for node in ast.walk(script.tree) if every.isidentifier() else ():
        stored += isinstance(node, ast.Name) and node.id == every and isinstance(node.ctx, ast.Store)
        stored += isinstance(node, ast.arg) and node.arg == every
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and ast.unparse(node.targets[0]) == every:
            values.append(node.value.value if isinstance(node.value, ast.Constant) else None)
    number = values[0] if values and stored == len(values) and len(set(values)) == 1 else None
    return number if isinstance(number, int) else None


def _missing(script: Script, window: Window, item: Happened) -> Finding:
    kinds = {option.last for step in window.once(OptimizerStep) for option in _optimizers(step.item.subject)}
    clips = bool([*window.once(Clip), *window.every_iteration(Clip)])
    every = window.every
    cause, severity = _harm(kinds, clips, every)
    text = f"Divide the loss by {every} before backward()."
    return rule.finding(
        f"The gradients of {every} micro-batches are added up, and the loss is never divided by {every}.",
        cause=cause,
        fix=fix_with(text, _division(script, window, item), "unsafe"),
        subject=Subject("loop", f"accumulation at {window.loop.place}"),
        place=item.event.place,
        related=[step.item.event.place for step in window.once(OptimizerStep)],
        severity=severity,
        confidence=Confidence.LIKELY,
    )


def _harm(kinds: set[str], clips: bool, every: str) -> tuple[str, Severity]:
    """What a sum of N gradients does to these optimizers, and how loud to be about it."""
    if not kinds or not kinds <= SUMS_ARE_EQUAL:
        return CAUSE.format(every=every, times=every), Severity.WARNING
    if clips:
        return CLIPPED.format(every=every, times=every), Severity.WARNING
    return ADAPTIVE.format(kind=min(kinds)), Severity.ADVICE


def _optimizers(value: Value | None) -> list[Instance]:
    return [option for option in alternatives(value) if isinstance(option, Instance)] if value is not None else []


def _division(script: Script, window: Window, item: Happened) -> Edits | None:
    """`(loss / N).backward()`, or `scale(loss / N)`, if N is known where backward is called."""
    place, editor = item.event.place, Editor(script)
    call = editor.call_at(place) if place is not None else None
    here = place is not None and place.function == window.loop.place.function
    if call is None or not here or not isinstance(call.func, ast.Attribute):
        return None
    loss = call.func.value
    if isinstance(loss, ast.Call) and isinstance(loss.func, ast.Attribute) and loss.func.attr == "scale" and loss.args:
        loss = loss.args[0]
    plain = re.fullmatch(r"[\w.]+", window.every)
    return editor.wrap(loss, "{} / " + (window.every if plain else f"({window.every})"))


def _other_number(window: Window, item: Happened, divisor: int, number: int) -> Finding:
    named = "" if window.every.isdigit() else f" ({window.every})"
    return rule.finding(
        f"The loss is divided by {divisor}, but {number}{named} backward passes are added up for each step.",
        cause=WRONG.format(every=number, divisor=divisor, factor=number / divisor),
        fix=f"Divide the loss by {window.every}, the number that also stands in the condition of the step.",
        subject=Subject("loop", f"accumulation at {window.loop.place}"),
        place=item.event.place,
        related=[step.item.event.place for step in window.once(OptimizerStep)],
    )


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The loss that reached backward against the one the loss function returned, and how many were added up."""
    found = measured.accumulated(record)
    if found is None:
        return
    every, divisor, whole = found.every, found.divisor, round(found.divisor)
    if close(divisor, 1.0):
        cause, severity = _harm({found.kind}, found.cuts, str(every))
        message = f"{every} mean losses are added up for each step, and none of them is divided."
        fix = f"Divide the loss by {every} before backward()."
        yield _in_run(found, message, cause, fix, severity)
    elif close(divisor, float(whole)) and whole > 2 and whole % every:
        message = f"The loss is divided by {whole}, but {every} backward passes are added up for each step."
        cause = WRONG.format(every=every, divisor=whole, factor=every / whole)
        yield _in_run(found, message, cause, f"Divide the loss by {every}.", Severity.WARNING)
    elif close(divisor, float(every)) and (ends := measured.unequal(found)) is not None:
        yield _unequal(found, *ends)


def _in_run(found: measured.Accumulated, message: str, cause: str, fix: str, severity: Severity) -> Finding:
    last = found.windows[-1]
    used = getattr(last.step, "grad_norm", None)
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject("loop", f"accumulation at {last.backwards[-1].place}"),
        place=last.backwards[-1].place,
        related=[last.step.place],
        evidence=[
            Evidence("backward passes for each step", found.every),
            Evidence("loss that the loss function returned", found.loss.value or 0.0),
            Evidence("loss that reached backward()", last.backwards[-1].value or 0.0),
            *([Evidence("norm of the gradient at the last step", used)] if used is not None else []),
        ],
        severity=severity,
        confidence=Confidence.LIKELY,
    )


def _unequal(found: measured.Accumulated, smallest: float, largest: float) -> Finding:
    last = found.windows[-1]
    return rule.finding(
        f"The micro-batches of a step hold from {smallest:.0f} to {largest:.0f} targets, and the mean of each counts "
        "the same.",
        cause=f"A target in the smallest weighs {largest / smallest:.1f} times as much as one in the largest; in one "
        "big batch all would weigh the same.",
        fix='Use reduction="sum" and divide by the number of targets of the whole window.',
        subject=Subject("loop", f"accumulation at {last.backwards[-1].place}"),
        place=found.loss.place,
        related=[last.backwards[-1].place],
        evidence=[
            Evidence("backward passes for each step", found.every),
            Evidence("targets in the smallest micro-batch of a usual step", smallest),
            Evidence("targets in the largest", largest),
        ],
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
    )


@rule.remedied_by
def remedied(finding: Finding) -> Iterator[Sequence[Intervention]]:
    """The loss divided by the number of micro-steps."""
    from unstuck.interventions import DivideLoss

    every = finding.number("backward passes for each step")
    if every and every > 1:
        yield (DivideLoss(every),)
