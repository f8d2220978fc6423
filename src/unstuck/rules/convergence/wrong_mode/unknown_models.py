"""O05 in the source, where nothing is known of a model: a loop evaluates and trains it, and nothing calls `train()`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.events import Backward, OptimizerStep
from unstuck.findings import Confidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rules.convergence.wrong_mode import Mode, lasting, rule
from unstuck.rules.shared import loop_order, modes
from unstuck.source.reader import knowledge
from unstuck.source.reader.scope import dotted
from unstuck.source.trace import Loop, events_in
from unstuck.source.values import Instance

if TYPE_CHECKING:
    from unstuck.events import Place
    from unstuck.source import Script
    from unstuck.source.facts import Called

COMPARES = pattern(r"[<>]|==|\bin\b|last|final|end|best|done|stop")
"""Words of a condition that may hold only once."""
SWITCHES = pattern(
    r"(?<!trainer)(?<!runner)(?<!exp)\.train\(\s*(True|mode|training|flag|\w*mode\s*=[^)]*)?\s*\)|\.training\s*=(?!=)|"
    r"train_mode|set_train|set_mode|switch_mode|getattr\([^)]*(mode|train|eval)",
    re.I,
)
"""What may put a model back into train mode."""
EFFECT = (
    "eval() turns dropout off and makes BatchNorm use its running averages. If the model has such layers, they stay "
    "like that in every later iteration that trains."
)


def find(script: Script) -> Iterator[Finding]:
    """The first `eval()` of each model that a loop both trains and evaluates."""
    if ".eval()" not in script.text or SWITCHES.search(script.text) or loop_order.uses_framework(script):
        return
    reported: set[str] = set()
    for called in script.facts.calls:
        name = _evaluated(script, called)
        if name in reported or not name or called.place.path != script.path:
            continue
        around = [loop for loop in called.loops if _comes_again(loop, called)]
        trained = next(
            (
                place
                for loop in around
                if (place := _trained_in(script, loop, name)) and lasting.lasts(script, loop, called, name)
            ),
            None,
        )
        if trained is None:
            continue
        reported.add(name)
        yield rule.finding(
            f"{name}.eval() is never followed by {name}.train(): every later iteration trains in eval mode.",
            cause=EFFECT,
            fix=f"Call {name}.train() before every iteration that trains.",
            subject=Subject("module", f"mode of {name}"),
            place=called.place,
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            related=(trained,),
            variant=Mode.STAYS_IN_EVAL,
        )


def _evaluated(script: Script, called: Called) -> str:
    """The name of a model of which nothing is known, that is put into eval mode and is in an optimizer."""
    if called.last != "eval" or called.args or called.kwargs:
        return ""
    if isinstance(called.receiver, Instance) and knowledge.is_module(called.receiver):
        return ""  # its layers are known
    name = dotted(called.node.func).removesuffix(".eval")
    last = name.rpartition(".")[2]
    given = last and re.search(rf"\b{re.escape(last)}(\.module)?\.(named_)?parameters\(", script.text)
    return name if given else ""


def _trained_in(script: Script, loop: Loop, name: str) -> Place | None:
    """Where a loop around the evaluation runs the model for a backward pass and a step."""
    if not any(isinstance(item.event, OptimizerStep) for item in events_in(loop.body)):
        return None
    last = name.rpartition(".")[2]
    for called in script.facts.calls:
        runs = dotted(called.node.func).rpartition(".")[2] == last and called.recording and loop in called.loops
        if runs and not modes.evaluates(called) and _trains(called.loops[-1]):
            return called.place
    return None


def _trains(loop: Loop) -> bool:
    return any(isinstance(item.event, Backward) for item in events_in(loop.body, nested_loops=False))


def _comes_again(loop: Loop, called: Called) -> bool:
    """Is another iteration sure to follow the evaluation? Not if it is under `if epoch == last`."""
    for node in ast.walk(loop.node):
        if isinstance(node, ast.If) and "%" not in ast.unparse(node.test) and COMPARES.search(ast.unparse(node.test)):
            inside = "\n".join(map(ast.unparse, node.body))
            if ast.unparse(called.node) in inside or f"{called.function}(" in inside:
                return False
    return True
