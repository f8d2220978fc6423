"""G16: deep stacks of sigmoid or tanh, or more than 20 layers, without normalisation or skip connections."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from unstuck.events import ModelSeen, Place, Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rule import Rule
from unstuck.rules.shared import objects
from unstuck.source import Script
from unstuck.source.reader.knowledge import is_module_class
from unstuck.source.reader.scope import SourceFile, dotted
from unstuck.source.values import UserClass

rule = Rule(
    code="G16",
    name="saturating-depth",
    title="a deep stack of sigmoid or tanh, or over 20 layers, without normalisation or skips",
    severity=Severity.WARNING,
    explains=("G09", "G18", "O07", "O22", "O25", "O26", "R08"),
)

LAYERS = pattern(r"(^|\.)(Lazy)?(Linear|Conv[123]d)$")
LIMITS = {"sigmoid": 5, "tanh": 15, "layers": 21}
"""At this depth, with torch's initialisation, the first layer gets under a thousandth of the last layer's gradient."""
WORDS = {"sigmoid": "sigmoid activations", "tanh": "tanh activations", "layers": "layers"}
DEEP = pattern(r"[sS]igmoid|[tT]anh|range\(\d\d|Sequential")
"""A script without any of these has nothing to count."""
HELPED = pattern(r"Norm|norm\(|init\.|SELU|selu|residual|skip|cat\(", re.I)
CAUSE = {
    "sigmoid": "A sigmoid passes on at most a quarter of the gradient, so five of them leave at most a thousandth and "
    "the first layers do not learn.",
    "tanh": "Each tanh passes on less gradient than it receives; after this many, almost none is left for the first "
    "layers.",
    "layers": "Without normalisation or skips the gradient shrinks or grows by a factor per layer, and over twenty "
    "factors multiply.",
}
FIX = "Use ReLU or GELU with a normalisation layer (LayerNorm, BatchNorm) in each block, and add skip connections."


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Count in module classes and in nn.Sequential elsewhere; repetitions count if they are a plain number."""
    if not DEEP.search(script.text):
        return
    lines = SourceFile(script.path, script.lines)
    for stack, name in _stacks(script):
        text = _text(script, stack)
        if HELPED.search(text) or not DEEP.search(text):
            continue
        counts = _counts(stack)
        guilty = next((kind for kind, limit in LIMITS.items() if counts[kind] >= limit), "")
        if guilty and not _has_skips(stack):
            yield _finding(guilty, counts[guilty], name, lines.place(stack))


def _stacks(script: Script) -> Iterator[tuple[ast.AST, str]]:
    """Module classes, and calls of nn.Sequential outside of them with the function around them."""
    classes = {module.cls.node: module.cls for module in script.facts.modules if module.cls is not None}
    for node in script.tree.body:
        if isinstance(node, ast.ClassDef):
            cls = classes.get(node)
            if isinstance(cls, UserClass) and is_module_class(cls):
                yield node, node.name
        elif isinstance(node, ast.FunctionDef | ast.Assign) and "Sequential" in _text(script, node):
            yield node, getattr(node, "name", "nn.Sequential")


def _text(script: Script, node: ast.AST) -> str:
    return "\n".join(script.lines[getattr(node, "lineno", 1) - 1 : getattr(node, "end_lineno", 1)])


def _counts(stack: ast.AST) -> Counter[str]:
    """How many of each the longest chain in the stack has, at least. Parallel branches are not a chain."""
    lists = dict(_repeated_lists(stack))
    chains = [_in_chain(node, 1, {}) for node in ast.walk(stack) if _is_sequential(node)]
    for node in ast.walk(stack):
        if isinstance(node, ast.FunctionDef) and _unpacks_into_sequential(node):
            chains.append(_in_chain(node, 1, {}))
        elif isinstance(node, ast.For) and _passes_on(node):
            repeats = _length(node.iter, lists)
            chains.append(_in_chain(node, repeats, {}) + Counter({"layers": repeats}))
    longest: Counter[str] = Counter()
    for chain in chains:
        longest |= chain
    return longest


def _in_chain(node: ast.AST, times: int, lists: dict[str, int]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for part, often in _repeated(node, times, lists):
        called = dotted(part.func) if isinstance(part, ast.Call) else ""
        last = called.rpartition(".")[2]
        if LAYERS.search(called):
            counts["layers"] += often
        elif last in ("Sigmoid", "Tanh", "sigmoid", "tanh"):
            counts[last.lower()] += often
    # The last activation of a network may be a sigmoid: it is the output, not part of the stack.
    counts["sigmoid"] -= 1
    return counts


def _is_sequential(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "Sequential"


def _unpacks_into_sequential(function: ast.FunctionDef) -> bool:
    """`layers.append(...)` in a loop, and `nn.Sequential(*layers)` at the end: all of it is one chain."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and _is_sequential(node)]
    starred = [arg for call in calls for arg in call.args if isinstance(arg, ast.Starred)]
    return len(calls) == 1 and any(isinstance(arg.value, ast.Name) for arg in starred)


def _passes_on(loop: ast.For) -> bool:
    """`for layer in self.layers: x = f(layer(x))`: each iteration uses the result of the last one."""
    layer = dotted(loop.target)
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and layer:
            names = [part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)]
            if layer in names and node.targets[0].id in names:
                return True
    return False


def _repeated(node: ast.AST, times: int, lists: dict[str, int]) -> Iterator[tuple[ast.AST, int]]:
    """Every node below, with how often it is evaluated, as far as the text shows."""
    waiting = [(node, times)]
    while waiting:
        current, often = waiting.pop()
        yield current, often
        factor = 1
        if isinstance(current, ast.For) and current is not node:
            factor = _length(current.iter, lists)
        elif isinstance(current, ast.ListComp | ast.GeneratorExp):
            factor = _length(current.generators[0].iter, lists)
        waiting += [(child, often * factor) for child in ast.iter_child_nodes(current)]


def _length(iterated: ast.expr, lists: dict[str, int]) -> int:
    """`range(12)` is 12 iterations, and so is a loop over a list built that way; anything else counts as one."""
    if isinstance(iterated, ast.Call) and dotted(iterated.func) == "range" and len(iterated.args) == 1:
        stop = iterated.args[0]
        if isinstance(stop, ast.Constant) and isinstance(stop.value, int):
            return stop.value
    return lists.get(dotted(iterated), 1)


def _repeated_lists(stack: ast.AST) -> Iterator[tuple[str, int]]:
    """`self.layers = nn.ModuleList([... for _ in range(12)])`: its name and length."""
    for node in ast.walk(stack):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args:
            first = node.value.args[0]
            if isinstance(first, ast.ListComp | ast.GeneratorExp):
                yield dotted(node.targets[0]), _length(first.generators[0].iter, {})


def _has_skips(stack: ast.AST) -> bool:
    """Gates, or sums of activations that look like skips."""
    forwards = [node for node in ast.walk(stack) if isinstance(node, ast.FunctionDef) and node.name == "forward"]
    operations = (ast.Add, ast.Mult)
    return any(
        isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, operations)
        for forward in forwards
        for node in ast.walk(forward)
    )


def _finding(kind: str, count: int, name: str, place: Place | None) -> Finding:
    return rule.finding(
        f"{name} stacks {count} {WORDS[kind]} without normalisation or skip connections.",
        cause=CAUSE[kind],
        fix=FIX,
        subject=Subject("module", name),
        place=place,
        evidence=[Evidence(WORDS[kind], count, "", LIMITS[kind] - 1)],
        confidence=Confidence.LIKELY,
    )


PLAIN = frozenset(
    "Linear Conv1d Conv2d Conv3d Sigmoid Tanh ReLU LeakyReLU ELU GELU SiLU Softplus Flatten Identity Dropout MaxPool1d "
    "MaxPool2d AvgPool1d AvgPool2d AdaptiveAvgPool2d Softmax LogSoftmax".split()
)
"""Layers of torch that neither normalise nor skip."""
COUNTED = {"Sigmoid": "sigmoid", "Tanh": "tanh"}


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Count in chains of nn.Sequential without normalisation or skips."""
    for model in setup.models:
        for name in _outermost_chains(model):
            kinds = _chain(model, name) or []
            counts = Counter(COUNTED[kind] for kind in kinds if kind in COUNTED)
            counts["layers"] = sum(LAYERS.search(kind) is not None for kind in kinds)
            guilty = next((kind for kind, limit in LIMITS.items() if counts[kind] >= limit), "")
            if guilty:
                yield _finding(guilty, counts[guilty], name or model.model, None)


def _outermost_chains(model: ModelSeen) -> list[str]:
    chains = [module.name for module in model.modules if module.kind == "Sequential" and _chain(model, module.name)]
    return [name for name in chains if not any(_is_inside(name, other) for other in chains)]


def _is_inside(name: str, other: str) -> bool:
    return name != other and (not other or name.startswith(f"{other}."))


def _chain(model: ModelSeen, name: str) -> list[str] | None:
    """The classes of the layers in a Sequential and in those within it; None if one of them is not plain."""
    found: list[str] = []
    for child in objects.children(model, name):
        inner = _chain(model, child.name) if child.kind == "Sequential" else None
        if inner is None and child.kind not in PLAIN:
            return None
        found += [child.kind] if inner is None else inner
    return found
