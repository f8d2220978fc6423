"""O09 in the source: a backward inside an accumulation window on a mean loss that is not divided by N."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from unstuck.events import Clip, OptimizerStep
from unstuck.findings import Confidence, Finding, Subject
from unstuck.lazy import pattern
from unstuck.rules.convergence.accumulation_not_divided import Division, harm, rule, wrong_divisor
from unstuck.rules.shared.accumulation import MICRO_STEPS, Window, windows
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits, fix_with
from unstuck.source.flow import behind
from unstuck.source.reader.knowledge import LOSS_FUNCTIONS, SAME_VALUES
from unstuck.source.trace import Happened
from unstuck.source.values import Choice, Const, Instance, Method, Tensor, Value, alternatives

PASSES = SAME_VALUES | {"scale", "mean", "nan_to_num"}
ONLY_LOGGED = pattern(
    r"(\b(running|total|epoch|avg|average|mean|log|tr|tot|cum)_?\w*|item\(\)|len\([^()]*\)|steps|batches|size)\s*$"
)
"""What comes before a division that does not affect the training."""
IN_PLACE = pattern(
    r"(grad|loss|\bg\b)[^\n]*\.(div_|mul_|true_divide_)\(|\._foreach_(div|mul)_\(|\.grad\b[^\n=]*[*/]=|register_hook"
)
"""Gradients or losses changed by hand; `.mul_()` on other tensors may be an average of weights."""
WRITES_WEIGHTS = frozenset({"mul_", "add_", "sub_", "div_", "copy_", "lerp_", "clamp_", "clip_"})


def find(script: Script) -> Iterator[Finding]:
    """One finding for each backward in an accumulation window."""
    for window in windows(script):
        if not _gradients_are_read(script, window) or IN_PLACE.search(script.text):
            continue
        for backward in window.backwards:
            item = backward.item
            if item.value is None or not _is_plain_backward(script, item):
                continue
            divisor, number = _divisor(item.value), _number(script, window.every)
            if (
                _is_undivided(item.value)
                and _is_mean_loss(script, item.value)
                and not _divides_elsewhere(script.text, window.every)
                and not (number and re.search(rf"(lr|rate)\w*\s*=[^,\n]*/\s*{number}\b", script.text))
            ):
                yield _not_divided(script, window, item)
            elif divisor and number and divisor != number and _counts_micro_batches(window, item.value, divisor):
                named = "" if window.every.isdigit() else f" ({window.every})"
                yield rule.finding(
                    f"The loss is divided by {divisor}, but each step adds up {number}{named} backward passes.",
                    cause=wrong_divisor(number, divisor),
                    fix=f"Divide the loss by {window.every}, the number in the condition of the step.",
                    subject=Subject.at("loop", "accumulation", window.loop.place),
                    place=item.event.place,
                    related=[step.item.event.place for step in window.once(OptimizerStep)],
                    variant=Division.WRONG_DIVISOR,
                )


def _gradients_are_read(script: Script, window: Window) -> bool:
    """Is everything in the window understood, apart from writes to weights, such as a moving average?"""
    spots = [hidden.place for hidden in window.hidden]
    if not spots:
        return True
    editor = Editor(script)
    calls = [editor.call_at(spot) if spot is not None and spot.path == script.path else None for spot in spots]
    return all(call is not None and getattr(call.func, "attr", "") in WRITES_WEIGHTS for call in calls)


def _is_plain_backward(script: Script, item: Happened) -> bool:
    """Is it `backward()` without a gradient argument, which may contain the factor?"""
    call = Editor(script).call_at(item.event.place) if item.event.place is not None else None
    allowed = ("retain_graph", "create_graph")
    return call is not None and not call.args and all(keyword.arg in allowed for keyword in call.keywords)


def _is_undivided(value: Value) -> bool:
    """Is it certainly a mean loss of torch, unchanged, alone or as a term of a sum?"""
    if isinstance(value, Choice):
        return all(map(_is_undivided, value.options))
    if isinstance(value, Method):
        # `outputs.loss` of a transformers model is a mean too; the caller checks that it is one.
        return value.name == "loss"
    if not isinstance(value, Tensor) or value.cut:
        return False
    if value.op in LOSS_FUNCTIONS:
        reduction = value.options.get("reduction", Const("mean"))
        return reduction == Const("mean") and "size_average" not in value.options
    if value.op == "add":
        return any(map(_is_undivided, value.inputs))
    return value.op in PASSES and bool(value.inputs) and _is_undivided(value.inputs[0])


def _is_mean_loss(script: Script, value: Value) -> bool:
    """Does no loss come from an unknown model, unless it is one of transformers?"""
    unknown = any(isinstance(item, Method) for item in behind(value))
    return not unknown or re.search(r"^\s*(from|import) transformers\b", script.text, re.M) is not None


def _divisor(value: Value) -> int | None:
    """The last number a mean loss is divided by. None for a sum of terms, which may be divided to average them."""
    while isinstance(value, Tensor) and value.op in PASSES and value.inputs:
        value = value.inputs[0]
    if not isinstance(value, Tensor) or value.op != "div" or len(value.inputs) != 2:
        return None
    loss, by = value.inputs
    whole = isinstance(loss, Tensor) and loss.op != "add" and _is_undivided(loss)
    number = by.value if isinstance(by, Const) else None
    return int(number) if whole and isinstance(number, int | float) and number > 1 and number == int(number) else None


def _counts_micro_batches(window: Window, value: Value, divisor: int) -> bool:
    """Is the divisor meant as a number of micro-batches, by its name or that of N? Halving a loss is a habit."""
    divisions = [part.node for part in behind(value) if isinstance(part, Tensor) and part.op == "div"]
    names = " ".join(ast.unparse(node) for node in divisions if node is not None)
    return MICRO_STEPS.search(names) is not None or (divisor > 2 and MICRO_STEPS.search(window.every) is not None)


def _divides_elsewhere(text: str, every: str) -> bool:
    """Is anything but a count or a logged sum divided by N, such as the learning rate or the gradients?"""
    name = re.escape(every.rpartition(".")[2])
    found = re.finditer(rf"^(?P<before>.*?)(?<!/)/=?\s*(\w+\.|float\(|\()*{name}(?!\w)", text, re.M)
    return any(not ONLY_LOGGED.search(match["before"]) for match in found)


def _number(script: Script, every: str) -> int | None:
    """N as a number: a literal, or a name that the file always sets to the same literal."""
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


def _not_divided(script: Script, window: Window, item: Happened) -> Finding:
    steps = window.once(OptimizerStep)
    subjects = [step.item.subject for step in steps if step.item.subject is not None]
    optimizers = {
        option.last for subject in subjects for option in alternatives(subject) if isinstance(option, Instance)
    }
    clips = bool([*window.once(Clip), *window.every_iteration(Clip)])
    cause, severity = harm(optimizers, clips, window.every)
    fix = f"Divide the loss by {window.every} before backward()."
    return rule.finding(
        f"The gradients of {window.every} micro-batches add up, and the loss is never divided by {window.every}.",
        cause=cause,
        fix=fix_with(fix, _division(script, window, item), "unsafe"),
        subject=Subject.at("loop", "accumulation", window.loop.place),
        place=item.event.place,
        related=[step.item.event.place for step in steps],
        severity=severity,
        confidence=Confidence.LIKELY,
        variant=Division.NOT_DIVIDED,
    )


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
