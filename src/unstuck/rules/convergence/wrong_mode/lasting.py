"""Whether the `eval()` of a model of which only the name is known lasts until the loop trains that model once more."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.events import OptimizerSeen
from unstuck.rules.shared import modes
from unstuck.source.nodes import parts_of
from unstuck.source.reader.everyday import ability_of_name, is_observer
from unstuck.source.reader.scope import dotted
from unstuck.source.trace import Ability, Loop, events_in

if TYPE_CHECKING:
    from unstuck.source import Script
    from unstuck.source.facts import Called

LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
EXITS = frozenset({"exit", "quit", "_exit"})


def lasts(script: Script, loop: Loop, called: Called, name: str) -> bool:
    """Does the loop come to train this very model, in the mode in which an evaluation left it?"""
    return (
        not _is_new(script, loop, called, name)
        and not _is_left(loop, called)
        and not _may_be_switched(script, loop, name)
        and _evaluates_next(script, loop, called, name)
    )


def _is_new(script: Script, loop: Loop, called: Called, name: str) -> bool:
    """Is the name bound in each iteration, or does each iteration make an optimizer, as for another fold?"""
    if any(isinstance(item.event, OptimizerSeen) for item in events_in(loop.body)):
        return True
    bound = _bound_in(loop.node)
    if _is_bound(name, bound):
        return True
    if _contains(loop.node, called.node):
        return False
    function = next((f for f in parts_of(script.tree) if isinstance(f, FUNCTIONS) and _contains(f, called.node)), None)
    if function is None:
        return False
    if _is_bound(name, _bound_in(function)):
        return True
    given = (_given(function, call, name.partition(".")[0]) for call in _calls_of(loop.node, called.function))
    return any(_is_bound(of, bound) for of in given if of)


def _bound_in(node: ast.AST) -> set[str]:
    return {
        dotted(part)
        for part in ast.walk(node)
        if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Store)
    }


def _is_bound(name: str, bound: set[str]) -> bool:
    """Is the name bound, or the object that it is an attribute of?"""
    parts = name.split(".")
    return any(".".join(parts[:count]) in bound for count in range(1, len(parts) + 1))


def _given(function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call, parameter: str) -> str:
    """What a call gives for a parameter, by its dotted name."""
    names = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
    if names[:1] in (["self"], ["cls"]) and isinstance(call.func, ast.Attribute):
        if parameter == names[0]:
            return dotted(call.func.value)
        names = names[1:]
    by_name = next((item.value for item in call.keywords if item.arg == parameter), None)
    if by_name is None and parameter in names and names.index(parameter) < len(call.args):
        by_name = call.args[names.index(parameter)]
    return dotted(by_name) if by_name is not None else ""


def _is_left(loop: Loop, called: Called) -> bool:
    """Does control leave the loop after each evaluation?"""
    inside = _contains(loop.node, called.node)
    sites = [called.node] if inside else list(_calls_of(loop.node, called.function))
    return bool(sites) and all(_leaves(loop.node, site) for site in sites)


def _leaves(loop: ast.AST, site: ast.Call) -> bool:
    node = inner = loop
    while True:
        found = next(((b, at) for b in _blocks(node) for at, part in enumerate(b) if _contains(part, site)), None)
        if found is None:
            return False
        block, at = found
        if isinstance(block[at], FUNCTIONS):
            return False
        if isinstance(block[at], ast.Return) or any(_is_exit(later, inner is loop) for later in block[at + 1 :]):
            return True
        node = block[at]
        inner = node if isinstance(node, LOOPS) else inner


def _is_exit(statement: ast.stmt, breaks: bool) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return dotted(statement.value.func).rpartition(".")[2] in EXITS
    return isinstance(statement, ast.Return | ast.Raise) or (breaks and isinstance(statement, ast.Break))


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            yield block
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def _may_be_switched(script: Script, loop: Loop, name: str) -> bool:
    """Does the loop give the model to code that cannot be read and may put it into train mode?"""
    read = {called.function for called in script.facts.calls}
    last = name.rpartition(".")[2]
    for called in script.facts.calls:
        known = called.name.startswith(("torch.", "builtins.")) or is_observer(called.name) or called.last in read
        if known or loop not in called.loops:
            continue
        given = (*called.node.args, *(item.value for item in called.node.keywords))
        if any(dotted(part).rpartition(".")[2] == last for part in given):
            holder = dotted(called.node.func).rpartition(".")[0]
            if ability_of_name(called.last, holder) & Ability.SWITCH:
                return True
    return False


def _evaluates_next(script: Script, loop: Loop, called: Called, name: str) -> bool:
    """Is the model run next to evaluate it? Else the loop trains it in eval mode on purpose, with fixed statistics."""
    last = name.rpartition(".")[2]
    runs = (
        other
        for other in script.facts.calls
        if other.time > called.time
        and loop in other.loops
        and dotted(other.node.func).removesuffix(".forward").rpartition(".")[2] == last
    )
    following = min(runs, key=lambda other: other.time, default=None)
    return following is not None and (not following.recording or modes.evaluates(following))


def _calls_of(node: ast.AST, function: str) -> Iterator[ast.Call]:
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and dotted(part.func).rpartition(".")[2] == function:
            yield part


def _contains(node: ast.AST, part: ast.AST) -> bool:
    return any(inside is part for inside in ast.walk(node))
