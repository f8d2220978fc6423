"""R30: examples and their labels, each shuffled with an order of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unstuck.findings import Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rule import Rule
from unstuck.source.nodes import parts_of
from unstuck.source.reader.scope import SourceFile, dotted

if TYPE_CHECKING:
    from unstuck.source import Script

rule = Rule(
    code="R30",
    name="shuffled-apart",
    title="examples and labels are shuffled in different orders",
    severity=Severity.ERROR,
    explains=("P31",),
)

CAUSE = "Every call draws an order of its own, so examples no longer stand next to their labels."
FIX = "Draw one order for both: order = torch.randperm(len({labels})), then {examples}[order] and {labels}[order]."
MENTIONED = pattern(r"shuffle\(|permutation\(|randperm\(")
EXAMPLES = pattern(r"(^|[._])(x|xs|inputs?|images?|imgs?|data|features?|samples?|texts?|sentences)(?=$|_)", re.I)
LABELS = pattern(r"(^|[._])(y|ys|labels?|targets?|classes|answers)(?=$|_)", re.I)
ORDERS = frozenset({"permutation", "randperm"})


class _Shuffle(NamedTuple):
    name: str
    """What is shuffled."""
    drawn_by: str
    """The function that draws the order."""
    node: ast.stmt


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Two shuffles in one block, of examples and of their labels, with no seed set in between."""
    if not MENTIONED.search(script.text):
        return
    place = SourceFile(script.path, script.lines).place
    for node in parts_of(script.tree):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            for first, second in _pairs(block) if isinstance(block, list) else ():
                examples, labels = sorted((first.name, second.name), key=lambda name: bool(LABELS.search(name)))
                yield rule.finding(
                    f"{first.name} and {second.name} are shuffled in different orders.",
                    cause=CAUSE,
                    fix=FIX.format(examples=examples, labels=labels),
                    subject=Subject("call", f"shuffle of {second.name}"),
                    place=place(second.node),
                    related=(place(first.node),),
                )


def _pairs(block: Sequence[ast.stmt]) -> Iterator[tuple[_Shuffle, _Shuffle]]:
    waiting: list[_Shuffle] = []
    for statement in block:
        shuffle = _shuffle(statement)
        if shuffle is None:
            if "seed" in ast.unparse(statement) or not isinstance(statement, ast.Expr | ast.Assign):
                waiting = []
            continue
        partner = next((other for other in waiting if _belong_together(other, shuffle)), None)
        if partner is not None:
            yield partner, shuffle
        waiting.append(shuffle)


def _belong_together(one: _Shuffle, other: _Shuffle) -> bool:
    """Are they examples and labels of the same part (`x_train` and `y_train`), shuffled by the same generator?"""
    labels = [bool(LABELS.search(shuffle.name)) for shuffle in (one, other)]
    examples = [bool(EXAMPLES.search(shuffle.name)) for shuffle in (one, other)]
    kinds = sorted(zip(labels, examples, strict=True)) == [(False, True), (True, False)]
    return kinds and one.drawn_by == other.drawn_by and _part(one.name) == _part(other.name)


def _part(name: str) -> str:
    """`_train` of `x_train`."""
    rest: str = LABELS.sub("", EXAMPLES.sub("", name.lower()))
    return rest.strip("_.")


def _shuffle(statement: ast.stmt) -> _Shuffle | None:
    """`np.random.shuffle(x)`, `x = x[torch.randperm(n)]` or `x = rng.permutation(x)`."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function, args = dotted(statement.value.func), statement.value.args
        name = dotted(args[0]) if len(args) == 1 and not statement.value.keywords else ""
        return _Shuffle(name, function, statement) if name and function.endswith(".shuffle") else None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    name, value = dotted(statement.targets[0]), statement.value
    drawn = value.slice if isinstance(value, ast.Subscript) else value
    if not name or not isinstance(drawn, ast.Call) or drawn.keywords:
        return None
    of = dotted(value.value) if isinstance(value, ast.Subscript) else dotted(drawn.args[0]) if drawn.args else ""
    function = dotted(drawn.func)
    draws = function.rpartition(".")[2] in ORDERS and function.rpartition(".")[2] != function
    return _Shuffle(name, function, statement) if draws and of == name else None
