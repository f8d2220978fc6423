"""M28 in the source: `optimizer.step`, `torch.no_grad()` and `self.dropout(x)` as whole statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unstuck.findings import Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rules.shared.not_called import EFFECTS, named_only
from unstuck.rules.wiring.statement_without_effect import Idle, rule
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, fix_with
from unstuck.source.facts import Called
from unstuck.source.nodes import parts_of
from unstuck.source.reader import knowledge
from unstuck.source.reader.scope import SourceFile
from unstuck.source.values import Const, Instance, Tensor, Value

SWITCHES = frozenset({"no_grad", "inference_mode", "enable_grad", "autocast"})
LAYERS = frozenset(
    "Dropout Dropout1d Dropout2d Dropout3d AlphaDropout ReLU ReLU6 LeakyReLU ELU SELU GELU SiLU Sigmoid Tanh Softmax "
    "LogSoftmax Softplus Hardtanh Linear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d "
    "LayerNorm GroupNorm MaxPool1d MaxPool2d AvgPool2d Flatten Embedding".split()
)
"""Layers that change nothing but what they return. BatchNorm also changes its statistics."""
FUNCTIONS = frozenset(
    "dropout dropout2d relu leaky_relu elu gelu silu sigmoid tanh softmax log_softmax softplus normalize layer_norm "
    "max_pool2d avg_pool2d interpolate pad one_hot".split()
)
IN_PLACE_AT = {
    "ReLU": 0, "ReLU6": 0, "SELU": 0, "SiLU": 0, "relu": 0, "selu": 0, "silu": 0, "Dropout": 1, "Dropout1d": 1,
    "Dropout2d": 1, "Dropout3d": 1, "AlphaDropout": 1, "LeakyReLU": 1, "ELU": 1, "leaky_relu": 1, "elu": 1,
    "Hardtanh": 2, "dropout": 2, "dropout2d": 2,
}  # fmt: skip
"""Where `inplace` stands among the arguments by position; of a function, after its input."""
HOOKS = pattern(r"register_\w*(forward|backward)\w*hook")
SPREAD = pattern(r"[(,]\s*\*")
"""`nn.ReLU(*args)` and `nn.ReLU(**options)`: whether in place is among them is not known."""
METHODS_OF_TENSORS = frozenset(
    "view reshape permute transpose squeeze unsqueeze flatten contiguous float half double to cuda relu sigmoid tanh "
    "softmax log_softmax clamp masked_fill detach".split()
)


def find(script: Script) -> Iterator[Finding]:
    """Each statement that certainly does nothing."""
    yield from _not_called(script)
    tried: set[tuple[int, int]] | None = None
    for called in script.facts.calls:
        if called.discarded and called.place.path == script.path:
            if called.name.startswith("torch.") and called.last in SWITCHES:
                yield _not_entered(called)
            elif called.function == "forward" and knowledge.is_module(called.owner or called.result):
                tried = _tried(script.tree) if tried is None else tried
                asked = (called.node.lineno, called.node.col_offset) in tried
                if not asked and not _is_hooked(script, called) and not _is_told_elsewhere(script, called):
                    yield from _unused(called)


def _tried(tree: ast.Module) -> set[tuple[int, int]]:
    """Where the calls stand that a `try` makes: whether one fails is what it asks."""
    tries = (node for node in parts_of(tree) if isinstance(node, ast.Try | ast.TryStar))
    parts = (part for node in tries for statement in node.body for part in parts_of(statement))
    return {(part.lineno, part.col_offset) for part in parts if isinstance(part, ast.Call)}


def _is_hooked(script: Script, called: Called) -> bool:
    """May a hook take what the layer returns?"""
    return isinstance(called.receiver, Instance) and HOOKS.search(script.text) is not None


def _is_told_elsewhere(script: Script, called: Called) -> bool:
    """Are some arguments of the call, or of the layer when it was made, in a list or a dict?"""
    text = ast.unparse(called.node)
    made = called.receiver.place if isinstance(called.receiver, Instance) else None
    if made is not None and made.path == script.path:
        text += "\n".join(script.lines[made.line - 1 : made.end_line])
    return SPREAD.search(text) is not None


def _not_called(script: Script) -> Iterator[Finding]:
    for bare in named_only(script) if script.facts.calls else ():
        name = ast.unparse(bare)
        yield rule.finding(
            f"{name} is not called: {EFFECTS[bare.attr]}.",
            cause="Without parentheses Python looks the method up and does nothing with it.",
            fix=fix_with(f"Write {name}().", Editor(script).replace(bare, f"{name}()")),
            subject=Subject("call", name),
            place=SourceFile(script.path, script.lines).place(bare),
            variant=Idle.NOT_CALLED,
        )


def _not_entered(called: Called) -> Finding:
    return rule.finding(
        f"{called.last}() has no effect here.",
        cause="It is a context manager: it works inside `with`, or as a decorator, not as a statement of its own.",
        fix=f"Write `with {ast.unparse(called.node)}:` and indent what it is meant for.",
        subject=Subject("call", called.last),
        place=called.place,
        variant=Idle.NOT_ENTERED,
        severity=Severity.WARNING,
    )


def _unused(called: Called) -> Iterator[Finding]:
    if _is_pure(called):
        name = ast.unparse(called.node.func)
        target = (
            ast.unparse(called.node.args[0]) if called.node.args and not isinstance(called.receiver, Tensor) else ""
        )
        yield rule.finding(
            f"The result of {name}(...) is not used, so it has no effect.",
            cause="It returns a new tensor and leaves its input as it is.",
            fix=f"Assign the result: {target or 'x'} = {ast.unparse(called.node)}.",
            subject=Subject("call", name),
            place=called.place,
            variant=Idle.RESULT_UNUSED,
            severity=Severity.WARNING,
        )


def _is_pure(called: Called) -> bool:
    """Does the call do nothing but return a value?"""
    receiver = called.receiver
    if isinstance(receiver, Instance) and not called.name.startswith("."):
        # A layer is called: whether it works in place was said where it was made.
        pure = receiver.kind.startswith("torch.nn.") and receiver.cls is None and receiver.last in LAYERS
        return pure and _leaves_input(receiver.last, receiver.args, receiver.kwargs)
    if called.name.startswith("torch.nn.functional."):
        return called.last in FUNCTIONS and _leaves_input(called.last, called.args[1:], called.kwargs)
    if called.name.startswith(".") and isinstance(receiver, Tensor):
        return called.last in METHODS_OF_TENSORS
    return False


def _leaves_input(name: str, args: tuple[Value, ...], options: dict[str, Value]) -> bool:
    """Is `inplace` certainly off?"""
    at = IN_PLACE_AT.get(name)
    told = at is not None and len(args) > at and args[at] != Const(False)
    return not told and not {"inplace", "out"} & options.keys() and Const(True) not in args
