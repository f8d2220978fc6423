"""O20 in the source: `model.load_state_dict(state, strict=False)` as a statement of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unstuck.events import Place
from unstuck.findings import Finding, Subject
from unstuck.rules.convergence.strict_false_load import SILENT, Load, rule
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, fix_with
from unstuck.source.facts import Called
from unstuck.source.reader import knowledge
from unstuck.source.reader.scope import dotted
from unstuck.source.values import UNKNOWN, Const, Instance, alternatives


def find(script: Script) -> Iterator[Finding]:
    """One finding for each line."""
    reported: set[Place] = set()
    for called in script.facts.calls:
        if called.name != ".load_state_dict" or not called.discarded or called.place in reported:
            continue
        # `len(state)` elsewhere: the script checks how much there is to load.
        state = dotted(called.node.args[0]) if called.node.args else ""
        if not _is_not_strict(called) or (state and f"len({state})" in script.text):
            continue
        reported.add(called.place)
        func = called.node.func
        name = ast.unparse(func.value) if isinstance(func, ast.Attribute) else "the model"
        yield rule.finding(
            f"The keys that load_state_dict(strict=False) skips in {name} are never checked.",
            cause=SILENT,
            fix=fix_with(
                "Print the result (it lists the missing and the unexpected keys), or check it.",
                Editor(script).wrap(called.place, "print({})"),
                "safe",
            ),
            subject=Subject.at("call", "load_state_dict", called.place),
            place=called.place,
            variant=Load.UNCHECKED,
        )


def _is_not_strict(called: Called) -> bool:
    """Is strict=False passed to something that may be a model?"""
    strict = called.args[1] if len(called.args) > 1 else called.kwargs.get("strict")
    return strict == Const(False) and any(
        option is UNKNOWN or (isinstance(option, Instance) and knowledge.is_module(option))
        for option in alternatives(called.receiver or UNKNOWN)
    )
