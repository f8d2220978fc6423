"""R30: examples and their labels, each shuffled with an order of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unstuck.findings import Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rule import Rule
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
LABELS = pattern(r"(^|[._])(y|ys|labels?|targets?|answers)(?=$|_)", re.I)
ORDERS = frozenset({"permutation", "randperm"})
SAME_ORDER = pattern(r"seed|state|generator", re.I)
"""What may make the next call draw the same order again."""
HANDED = pattern(r"^(zip|\w*dataset|from_tensor_slices|(partial_)?fit)$|loss|criterion|cross_entropy|mse|bce|nll", re.I)
"""Functions that take examples and their labels, by the end of their names."""
ON_PURPOSE = pattern(r"null|permut|unpair|unalign|control|independen|chance|scrambl|destroy|baseline|bootstrap", re.I)
"""Functions in which examples and labels are torn apart to see what is left without them."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class _Block(NamedTuple):
    statements: list[ast.stmt]
    function: ast.AST
    """The function or module it is in."""
    cls: ast.AST | None


class _Shuffle(NamedTuple):
    name: str
    """What is shuffled."""
    drawn_by: str
    """The function that draws the order."""
    node: ast.stmt


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Two shuffles in one block, of examples and of their labels, that are used as pairs afterwards."""
    if not MENTIONED.search(script.text):
        return
    place = SourceFile(script.path, script.lines).place
    for block in _blocks(script.tree):
        for first, second in _pairs(block.statements):
            examples, labels = sorted((first.name, second.name), key=lambda name: bool(LABELS.search(name)))
            if not _are_handed_together(block, examples, labels, second.node):
                continue
            yield rule.finding(
                f"{first.name} and {second.name} are shuffled in different orders.",
                cause=CAUSE,
                fix=FIX.format(examples=examples, labels=labels),
                subject=Subject("call", f"shuffle of {second.name}"),
                place=place(second.node),
                related=(place(first.node),),
            )


def _blocks(tree: ast.Module) -> Iterator[_Block]:
    """Every list of statements, without those of functions that tear pairs apart on purpose."""
    waiting: list[tuple[ast.AST, ast.AST, ast.AST | None]] = [(tree, tree, None)]
    while waiting:
        node, function, cls = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if ON_PURPOSE.search(node.name):
                continue
            function = node
        elif isinstance(node, ast.ClassDef):
            function = cls = node
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(block, list):
                yield _Block(block, function, cls)
        waiting += [(child, function, cls) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


def _pairs(block: Sequence[ast.stmt]) -> Iterator[tuple[_Shuffle, _Shuffle]]:
    waiting: list[_Shuffle] = []
    for statement in block:
        shuffle = _shuffle(statement)
        if shuffle is None:
            if not isinstance(statement, ast.Assign) or SAME_ORDER.search(ast.unparse(statement)):
                waiting = []
            else:
                bound = {dotted(part) for target in statement.targets for part in _elements(target)}
                owners = tuple(f"{name}." for name in bound if name)
                waiting = [other for other in waiting if not other.drawn_by.startswith(owners)]
            continue
        partner = next((other for other in waiting if _belong_together(other, shuffle)), None)
        if partner is not None:
            yield partner, shuffle
        waiting.append(shuffle)


def _are_handed_together(block: _Block, examples: str, labels: str, shuffled: ast.stmt) -> bool:
    """Are both later cut alike, or given to something that takes examples with their labels?"""
    of_object = block.cls is not None and examples.startswith("self.") and labels.startswith("self.")
    whole = block.cls if of_object and block.cls is not None else block.function
    sides = ({examples}, {labels})
    cuts: tuple[set[str], set[str]] = (set(), set())
    for node in _in_order(whole, functions=of_object):
        if not of_object and node.lineno <= (shuffled.end_lineno or shuffled.lineno):
            continue
        if isinstance(node, ast.For | ast.AsyncFor | ast.Assign):
            if not of_object and _loses(node, examples, labels):
                return False
            if isinstance(node, ast.Assign):
                _follow(node, sides)
        elif isinstance(node, ast.Call) and _takes_pairs(node, sides):
            return True
        elif isinstance(node, ast.Subscript) and any(isinstance(n, ast.Name | ast.Slice) for n in ast.walk(node.slice)):
            for side, cut in zip(sides, cuts, strict=True):
                if dotted(node.value) in side:
                    cut.add(ast.unparse(node.slice))
            if cuts[0] & cuts[1]:
                return True
    return False


def _in_order(whole: ast.AST, *, functions: bool) -> list[ast.stmt | ast.expr]:
    """The statements and expressions of a function, of a module without its `functions`, or of a class."""
    found: list[ast.stmt | ast.expr] = []
    waiting = list(ast.iter_child_nodes(whole))
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not functions:
            continue
        if isinstance(node, ast.stmt | ast.expr):
            found.append(node)
        waiting += ast.iter_child_nodes(node)
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def _loses(node: ast.For | ast.AsyncFor | ast.Assign, *names: str) -> bool:
    """Does a name get something else that is not made of it?"""
    if isinstance(node, ast.Assign):
        return any(dotted(target) in names and not _mentions(value, {dotted(target)}) for target, value in _bound(node))
    return any(dotted(part) in names for part in _elements(node.target))


def _follow(node: ast.Assign, sides: tuple[set[str], set[str]]) -> None:
    """`inputs, targets = torch.from_numpy(x), torch.from_numpy(y)`: other names for the same rows."""
    for target, value in _bound(node):
        made_of = [side for side in sides if _mentions(value, side)]
        if len(made_of) == 1 and dotted(target) and not re.search(r"\blen\(|\.shape|\.size", ast.unparse(value)):
            made_of[0].add(dotted(target))


def _bound(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in node.targets:
        targets, values = _elements(target), _elements(node.value)
        if len(targets) != len(values):
            values = [node.value] * len(targets)
        yield from zip(targets, values, strict=True)


def _elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple | ast.List) else [node]


def _takes_pairs(call: ast.Call, sides: tuple[set[str], set[str]]) -> bool:
    function = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)
    if isinstance(call.func, ast.Call):
        function = dotted(call.func.func).rpartition(".")[2]  # nn.CrossEntropyLoss()(model(x), y)
    if not HANDED.search(function):
        return False
    args = [part for arg in (*call.args, *(item.value for item in call.keywords)) for part in _elements(arg)]
    kinds = {tuple(_mentions(arg, side) for side in sides) for arg in args}
    return {(True, False), (False, True)} <= kinds


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(part, ast.Name | ast.Attribute) and dotted(part) in names for part in ast.walk(node))


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
