"""O05: training in eval mode, evaluating in train mode, or dropout that no mode can switch off."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Confidence, Finding, Severity, Subject, Witness
from unstuck.rule import Rule
from unstuck.rules.convergence import _always_on_dropout as dropout
from unstuck.rules.convergence import _mode_in_loops as loops
from unstuck.source.edit import Editor, Edits, fix_with

if TYPE_CHECKING:
    from unstuck.source import Script

rule = Rule(
    code="O05",
    name="wrong-mode",
    title="training in eval mode, evaluating in train mode, or dropout that ignores the mode",
    severity=Severity.ERROR,
    explains=("O01", "O07", "M13", "R08"),
)


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Modes that a loop leaves behind, evaluation without eval(), and dropout that never hears of either."""
    stuck = list(_stuck_in_eval(script))
    yield from stuck or _begun_in_eval(script)
    yield from _never_in_eval(script)
    yield from _always_on(script)


def _stuck_in_eval(script: Script) -> Iterator[Finding]:
    for stuck in loops.stuck_in_eval(script):
        name = stuck.model.label or stuck.model.last
        yield rule.finding(
            Witness.SOURCE,
            f"No {name}.train() follows this {name}.eval(): from the next turn on {name} trains in eval mode.",
            cause=_in_eval_mode(stuck.layer),
            fix=fix_with(f"Call {name}.train() before every turn that trains.", _train_again(script, stuck), "safe"),
            subject=Subject("module", f"mode of {name}"),
            place=stuck.eval_place,
            severity=Severity.ERROR if stuck.certain else Severity.WARNING,
            confidence=Confidence.CERTAIN if stuck.certain else Confidence.LIKELY,
            related=(stuck.forward_place, stuck.step_place),
        )


def _begun_in_eval(script: Script) -> Iterator[Finding]:
    for begun in loops.begun_in_eval(script):
        name = begun.model.label or begun.model.last
        yield rule.finding(
            Witness.SOURCE,
            f"{name} trains in eval mode: {name}.eval() stands before the training and nothing calls {name}.train().",
            cause=_in_eval_mode(begun.layer),
            fix=f"Call {name}.train() before the training.",
            subject=Subject("module", f"mode of {name}"),
            place=begun.eval_place,
            related=(begun.step_place,),
        )


def _in_eval_mode(layer: str) -> str:
    if "Norm" in layer:
        return f"In eval mode {layer} uses its stored statistics and no longer updates them."
    if "Dropout" in layer:
        return f"In eval mode {layer} drops nothing, so the training goes on without it."
    return f"In eval mode the Dropout in {layer} drops nothing and BatchNorm uses its stored statistics."


def _in_train_mode(layer: str) -> str:
    if "Norm" in layer:
        return f"In train mode {layer} uses the statistics of the batch and shifts its stored ones towards them."
    if "Dropout" in layer:
        return f"In train mode {layer} drops units at random, so the same input gives another output each time."
    return f"In train mode the Dropout in {layer} drops units at random and BatchNorm uses the statistics of the batch."


def _train_again(script: Script, stuck: loops.Stuck) -> Edits | None:
    editor = Editor(script)
    call = editor.call_at(stuck.forward_place) if stuck.forward_place else None
    text = editor.text_of(call.func) if call else None
    node = stuck.loop.node
    if not text or not isinstance(call, ast.Call) or not isinstance(node, ast.For | ast.While):
        return None
    return editor.insert_before(node.body[0] if stuck.outermost else node, f"{text}.train()")


def _never_in_eval(script: Script) -> Iterator[Finding]:
    for model, layer, called in loops.never_in_eval(script):
        name = model.label or model.last
        yield rule.finding(
            Witness.SOURCE,
            f"{name} is evaluated here in train mode: nothing ever calls {name}.eval().",
            cause=_in_train_mode(layer),
            fix=f"Call {name}.eval() before the evaluation and {name}.train() before the training goes on.",
            subject=Subject("module", f"mode of {name}"),
            place=called.place,
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
        )


def _always_on(script: Script) -> Iterator[Finding]:
    editor = Editor(script)
    for spot in dropout.always_on(script):
        yield rule.finding(
            Witness.SOURCE,
            f"{spot.name} in {spot.where} stays on in eval mode.",
            cause=spot.cause,
            fix=fix_with(spot.fix, spot.edits(editor), "safe"),
            subject=Subject("call", f"{spot.name} at {spot.place}"),
            place=spot.place,
        )
