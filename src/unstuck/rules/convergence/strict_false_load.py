"""O20: weights loaded with strict=False, and nobody looks at what did not fit."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from unstuck.events import Place, StateLoaded
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.rules.convergence import _crashed_loading
from unstuck.source.edits.edit import Editor, fix_with
from unstuck.source.reader import knowledge
from unstuck.source.reader.base import dotted
from unstuck.source.values import UNKNOWN, Const, Instance, Value, alternatives

if TYPE_CHECKING:
    from unstuck.record import Record
    from unstuck.source import Script
    from unstuck.source.facts import Called

rule = Rule(
    code="O20",
    name="strict-false-load",
    title="strict=False, and nobody reads which keys did not match",
    severity=Severity.ADVICE,
    explains=("O19", "R01"),
    needs=(StateLoaded,),
)

CAUSE = (
    "With strict=False keys that do not match are passed over in silence, even if that is all of them, as with a "
    "`module.` prefix: the model then trains from random weights."
)
UNREAD = "Print what load_state_dict returns, and make the names of the two sides meet."
SMALL_SHARE = 0.1
FEWEST_RENAMED = 4
"""A head of another name has fewer tensors than this, and is meant to be left out."""


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


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """What the last loading into each model left out, where that is nearly everything or a matter of prefixes; and
    what a crash tells of it."""
    yield from _crashed_loading.explain(record, rule)
    last = {event.model: event for event in record.of(StateLoaded)}
    for load in last.values():
        if load.strict or load.failed or not load.unexpected_count or not load.missing_count:
            continue
        prefix = _prefix(load)
        if load.matched == 0 or prefix or load.matched < SMALL_SHARE * load.tensors:
            yield _loaded_little(load, prefix)
        elif renamed := _renamed(load):
            yield _loaded_little(load, "", renamed)


def _prefix(load: StateLoaded) -> str:
    """What the names of one side have in front and the other's lack, if that explains most of what is missing."""
    longer, shorter = load.unexpected, set(load.missing)
    if sum(len(name) for name in longer) < sum(len(name) for name in shorter):
        longer, shorter = load.missing, set(load.unexpected)
    for name in longer:
        ends = [name[index + 1 :] for index, letter in enumerate(name) if letter == "."]
        end = next((end for end in ends if end in shorter), "")
        prefix = name.removesuffix(end) if end else ""
        if prefix and 2 * sum(other.removeprefix(prefix) in shorter for other in longer) > len(longer):
            return prefix
    return ""


def _renamed(load: StateLoaded) -> tuple[str, str] | None:
    """What the file and the model call one and the same part, if most of the model is missing for that."""
    if 2 * load.matched >= load.tensors or load.missing_count < FEWEST_RENAMED:
        return None
    given, wanted = _first_parts(load.unexpected), _first_parts(load.missing)
    same = len(given) == len(wanted) == 1 and next(iter(given.values())) == next(iter(wanted.values()))
    return (next(iter(given)), next(iter(wanted))) if same else None


def _first_parts(names: Iterable[str]) -> dict[str, set[str]]:
    """The rest of the names, by what stands before their first dot."""
    found: dict[str, set[str]] = {}
    for name in names:
        first, _, rest = name.partition(".")
        found.setdefault(first, set()).add(rest)
    return found


def _loaded_little(load: StateLoaded, prefix: str, renamed: tuple[str, str] | None = None) -> Finding:
    nothing = load.matched == 0
    what = "none" if nothing else f"only {load.matched}"
    why = f"; the names differ by the prefix {prefix!r}" if prefix else ""
    fix = f"Take the prefix off or put it on: {{key.removeprefix({prefix!r}): value for key, value in state.items()}}."
    if renamed:
        given, wanted = renamed
        why = f"; what the file calls {given!r} is called {wanted!r} in the model"
        fix = f"Rename the keys: {{key.replace('{given}.', '{wanted}.', 1): value for key, value in state.items()}}."
    return rule.finding(
        f"load_state_dict(strict=False) filled {what} of {load.tensors} tensors of the model{why}.",
        cause=CAUSE,
        fix=fix if prefix or renamed else UNREAD,
        subject=Subject("call", f"load_state_dict at {load.place}"),
        place=load.place,
        evidence=[
            Evidence("tensors filled", f"{load.matched} of {load.tensors}"),
            Evidence("missing", ", ".join(load.missing[:3])),
            Evidence("unexpected", ", ".join(load.unexpected[:3])),
        ],
        severity=Severity.ERROR if nothing or prefix else Severity.WARNING,
    )
