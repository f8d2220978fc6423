"""M03: a sum or list of losses that keeps the graph of every step alive."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import msgspec

from unstuck.events import Backward, Gauges, GraphsKept, Place
from unstuck.findings import Evidence, Finding, Fix, Severity, Subject
from unstuck.lazy import pattern
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, fix_with
from unstuck.source.flow import behind
from unstuck.source.reader import knowledge
from unstuck.source.reader.scope import dotted
from unstuck.source.trace import Happened, Loop, events_in
from unstuck.source.values import Const, Instance, Tensor, Value, alternatives

rule = Rule(
    code="M03",
    name="graph-kept-alive",
    title="a running sum or list that keeps the graph of every step",
    severity=Severity.WARNING,
    hygiene=True,
    explains=("M21",),
    needs=(Backward,),
)

CAUSE = (
    "A loss tensor references the graph of its step. A sum or list of losses keeps all these graphs, so "
    "memory grows with every step."
)
TERMS = frozenset("scale add sub mult div neg mean sum".split())
SHOWS = pattern(r"^(print|len|str|float|format|round|np\.\w+|numpy\.\w+|plt\.\w+|.*\.(add_scalar|plot))$")
"""Calls that take a number as well as a tensor and do not return a tensor."""


class _Keeper(msgspec.Struct, eq=False):
    """A sum or list that outlives an iteration and collects a tensor."""

    name: str
    value: Value
    given: ast.expr
    place: Place
    loop: Loop
    how: str


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Sums and lists that collect what the same iteration has back-propagated."""
    told: set[Place] = set()
    again = {called.place for called in script.facts.calls if called.last == "backward" and _retains(called.kwargs)}
    for keeper in _keepers(script):
        if keeper.place in told:
            continue
        spent = _backwards(keeper.loop, again)
        backward = next((item for item in spent if _hangs_on(keeper.value, item)), None)
        if backward is not None and _outlives(keeper) and not _is_reset(keeper):
            told.add(keeper.place)
            yield _finding(script, keeper, backward.event.place)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The graphs of many consecutive steps were in memory at once."""
    most = max(record.of(GraphsKept), key=lambda event: event.alive, default=None)
    if most is None:
        return
    memory = [gauge.memory for gauge in record.of(Gauges) if gauge.memory]
    grown = (memory[-1] - memory[len(memory) // 10]) / 2**20 if memory else 0.0
    yield rule.finding(
        f"The graphs of {most.alive} consecutive recorded steps were still in memory at step {most.step}.",
        cause=CAUSE,
        fix="Find what stores or adds up the loss (or what it was computed from), and use loss.item() or "
        "loss.detach() there.",
        subject=Subject.at("call", "graphs", most.place, word="of"),
        place=most.place,
        evidence=[
            Evidence("graphs alive at once", most.alive),
            *([Evidence("memory gained", round(grown, 1), "MB")] if grown >= 1 else []),
        ],
    )


def _keepers(script: Script) -> Iterator[_Keeper]:
    for kept in script.facts.running_sums:
        given = kept.node.value
        if isinstance(kept.node, ast.Assign) and isinstance(given, ast.BinOp):
            given = given.left if dotted(given.right) == kept.name else given.right
        if kept.recording:
            yield _Keeper(kept.name, kept.value, given, kept.place, kept.loops[-1], "adds up")
    for called in script.facts.calls:
        if called.name == ".append" and called.recording and called.loops and len(called.args) == 1:
            whose = called.node.func
            name = _name(whose.value) if isinstance(whose, ast.Attribute) else ""
            limited = isinstance(called.receiver, Instance) or _is_limited(script, name)
            if name and not limited and called.discarded:
                place, loop = called.place, called.loops[-1]
                yield _Keeper(name, called.args[0], called.node.args[0], place, loop, "collects")


def _name(node: ast.expr) -> str:
    """`losses`, `self.losses` or `history['loss']` as a name, else nothing."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and dotted(node.value):
        return ast.unparse(node)
    return dotted(node)


def _is_limited(script: Script, name: str) -> bool:
    """`last = deque(maxlen=5)` drops old entries."""
    made = rf"\b{re.escape(name)}\s*(:[^=\n]*)?=\s*[\w.]*deque\([^\n]*(maxlen|,)"
    return "deque(" in script.text and re.search(made, script.text) is not None


def _backwards(loop: Loop, again: set[Place]) -> list[Happened]:
    """What one iteration back-propagates; `again` are backwards that keep the graph."""
    items = [item for item in events_in(loop.body, nested_loops=False) if isinstance(item.event, Backward)]
    return [] if any(item.event.place in again for item in items) else items


def _retains(options: dict[str, Value]) -> bool:
    return any(options.get(name, Const(False)) != Const(False) for name in ("retain_graph", "create_graph"))


def _hangs_on(value: Value, backward: Happened) -> bool:
    """Was the value, or something it was computed from without detaching, back-propagated?"""
    spent = _spent(backward.value or Const(None))
    return bool(spent) and all(any(id(part) in spent for part in behind(option)) for option in alternatives(value))


def _spent(value: Value) -> set[int]:
    """ids of the losses that `value` is the sum, mean or multiple of, and of itself."""
    found: set[int] = set()
    waiting = list(alternatives(value))
    while waiting:
        part = waiting.pop()
        if isinstance(part, Tensor) and not part.cut and id(part) not in found:
            found.add(id(part))
            if part.op in TERMS:
                waiting += [option for given in part.inputs for option in alternatives(given) if _is_loss(option)]
    return found


def _is_loss(value: Value) -> bool:
    return isinstance(value, Tensor) and (value.op in TERMS or value.op in knowledge.LOSS_FUNCTIONS)


def _outlives(keeper: _Keeper) -> bool:
    """Does it survive until the next iteration? Not if it is local to a function that the loop calls."""
    inside = any(node is keeper.given for node in ast.walk(keeper.loop.node))
    return inside or ("." in keeper.name and keeper.place.function in ("update", "add", "append", "log"))


def _is_reset(keeper: _Keeper) -> bool:
    """Does the loop itself reset the sum or list?"""
    whole = keeper.name.partition("[")[0]
    given = {dotted(part) for part in ast.walk(keeper.given) if isinstance(part, ast.Name | ast.Attribute)}
    for node in ast.walk(keeper.loop.node):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [part for target in targets for part in ast.walk(target) if isinstance(part, ast.expr)]
            own = node.value is not None and any(part is keeper.given for part in ast.walk(node.value))
            if not own and any(_name(part) in (keeper.name, whole) for part in names if _is_stored(part)):
                return True
        elif isinstance(node, ast.Attribute) and node.attr == "detach_" and dotted(node.value) in given:
            return True
        elif isinstance(node, ast.Attribute) and _name(node.value) == keeper.name:
            if node.attr in ("clear", "pop", "popleft", "detach_", "reset"):
                return True
        elif isinstance(node, ast.Delete) and any(_name(part) in (keeper.name, whole) for part in node.targets):
            return True
    return False


def _is_stored(node: ast.expr) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store)


def _finding(script: Script, keeper: _Keeper, backward: Place | None) -> Finding:
    given = ast.unparse(keeper.given)
    return rule.finding(
        f"{keeper.name} {keeper.how} {given} with its graph in every iteration.",
        cause=CAUSE,
        fix=_fix(script, keeper),
        subject=Subject.at("call", keeper.name, keeper.place),
        place=keeper.place,
        related=(backward,),
    )


def _fix(script: Script, keeper: _Keeper) -> Fix:
    readable = keeper.name.isidentifier() and keeper.place.path == script.path
    shown = "item" if readable and _only_shown(script.tree, keeper) else "detach"
    edits = Editor(script).wrap(keeper.given, f"{{}}.{shown}()") if keeper.place.path == script.path else None
    text = ast.unparse(keeper.given)
    text = f"({text})" if isinstance(keeper.given, ast.BinOp | ast.UnaryOp | ast.IfExp) else text
    return fix_with(f"Use {text}.{shown}() instead.", edits, "safe")


def _only_shown(tree: ast.AST, keeper: _Keeper) -> bool:
    """Is the sum or list only printed or plotted later, so that plain numbers are enough?"""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    names = (node for node in parents if isinstance(node, ast.Name) and node.id == keeper.name)
    return all(_is_stored(name) or _is_shown(name, parents, keeper) for name in names)


def _is_shown(name: ast.Name, parents: dict[ast.AST, ast.AST], keeper: _Keeper) -> bool:
    node: ast.AST = name
    while node in parents:
        below, node = node, parents[node]
        if isinstance(node, ast.FormattedValue) or (isinstance(node, ast.Call) and SHOWS.match(dotted(node.func))):
            return True
        if isinstance(node, ast.Attribute) and node.attr == "append":
            return isinstance(parents.get(node), ast.Call)
        if isinstance(node, ast.Assign | ast.AugAssign):
            return keeper.given in ast.walk(node)
        divided = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mult | ast.Add | ast.Mod)
        summed = isinstance(node, ast.Call) and dotted(node.func) in ("sum", "max", "min") and below in node.args
        if not (divided or summed or isinstance(node, ast.Tuple | ast.keyword)):
            return False
    return False
