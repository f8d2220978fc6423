"""O20: weights loaded with strict=False, and nobody looks at what did not fit."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.events import Place
from unstuck.findings import Finding, Severity, Subject, Witness
from unstuck.rule import Rule
from unstuck.source import knowledge
from unstuck.source.base import dotted
from unstuck.source.edit import Editor, fix_with
from unstuck.source.values import UNKNOWN, Const, Instance, Value, alternatives

if TYPE_CHECKING:
    from unstuck.source import Script
    from unstuck.source.facts import Called

rule = Rule(
    code="O20",
    name="strict-false-load",
    title="strict=False, and nobody reads which keys did not match",
    severity=Severity.ADVICE,
    explains=("O19", "R01"),
)

CAUSE = (
    "With strict=False keys that do not match are passed over in silence, even if that is all of them, as with a "
    "`module.` prefix: the model then trains from random weights."
)


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """`model.load_state_dict(state, strict=False)` as a statement of its own."""
    told: set[Place] = set()
    for called in script.facts.calls:
        if called.name == ".load_state_dict" and called.discarded and called.place not in told and _is_lax(called):
            if _is_counted(script, called):
                continue
            told.add(called.place)
            yield _finding(script, called)


def _is_lax(called: Called) -> bool:
    strict = called.args[1] if len(called.args) > 1 else called.kwargs.get("strict")
    receiver = called.receiver or UNKNOWN
    return strict == Const(False) and any(_may_be_model(option) for option in alternatives(receiver))


def _is_counted(script: Script, called: Called) -> bool:
    """`len(state)` is told elsewhere: somebody looks at how much there is to load."""
    state = dotted(called.node.args[0]) if called.node.args else ""
    return bool(state) and f"len({state})" in script.text


def _may_be_model(value: Value) -> bool:
    return value is UNKNOWN or (isinstance(value, Instance) and knowledge.is_module(value))


def _finding(script: Script, called: Called) -> Finding:
    func = called.node.func
    name = ast.unparse(func.value) if isinstance(func, ast.Attribute) else "the model"
    return rule.finding(
        Witness.SOURCE,
        f"Nobody reads which keys load_state_dict(strict=False) left out of {name}.",
        cause=CAUSE,
        fix=fix_with(
            "Print the result (it names the missing and the unexpected keys), or check it.",
            Editor(script).wrap(called.place, "print({})"),
            "safe",
        ),
        subject=Subject("call", f"load_state_dict at {called.place}"),
        place=called.place,
    )
