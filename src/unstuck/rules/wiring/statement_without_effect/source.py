"""M28 in the source: `optimizer.step`, `torch.no_grad()` and `self.dropout(x)` as whole statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Finding, Severity, Subject
from unstuck.rules.shared.not_called import EFFECTS, named_only
from unstuck.rules.wiring.statement_without_effect import Idle, rule
from unstuck.source.edits.edit import Editor, fix_with
from unstuck.source.reader import knowledge
from unstuck.source.reader.scope import SourceFile
from unstuck.source.values import Const, Instance, Tensor

if TYPE_CHECKING:
    from unstuck.source import Script
    from unstuck.source.facts import Called

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
METHODS_OF_TENSORS = frozenset(
    "view reshape permute transpose squeeze unsqueeze flatten contiguous float half double to cuda relu sigmoid tanh "
    "softmax log_softmax clamp masked_fill detach".split()
)


def find(script: Script) -> Iterator[Finding]:
    """Each statement that certainly does nothing."""
    yield from _not_called(script)
    for called in script.facts.calls:
        if called.discarded and called.place.path == script.path:
            if called.name.startswith("torch.") and called.last in SWITCHES:
                yield _not_entered(called)
            elif called.function == "forward" and knowledge.is_module(called.owner or called.result):
                yield from _unused(called)


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
    receiver, options = called.receiver, dict(called.kwargs)
    if isinstance(receiver, Instance) and not called.name.startswith("."):
        # A layer is called: whether it works in place was said where it was made.
        options.update(receiver.kwargs)
        in_place = any(value in (Const(True),) for value in receiver.args)
        pure = receiver.kind.startswith("torch.nn.") and receiver.cls is None and receiver.last in LAYERS
        return pure and not in_place and "inplace" not in options
    if called.name.startswith("torch.nn.functional."):
        return called.last in FUNCTIONS and "inplace" not in options and Const(True) not in called.args[1:]
    if called.name.startswith(".") and isinstance(receiver, Tensor):
        return called.last in METHODS_OF_TENSORS
    return False
