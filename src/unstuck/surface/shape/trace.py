"""Which operation makes a loss non-finite: evaluated step by step at one point, and again with a guard put in."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unstuck.capture.torch_hooks.hooks import FunctionCalls, after_nodes
from unstuck.events import Place
from unstuck.findings.surface import Array, Culprit
from unstuck.surface.field import Field, one_line, quiet

EPSILON = 1e-6
MOST_GUARDS = 3
RAISES = "raises"
"""In the place of an operation: the loss has no value there because it raises."""


class Guard(NamedTuple):
    """A change to one input of an operation that keeps it finite."""

    argument: int
    change: Callable[[Any], Any]
    text: str


def _keep_away_from_zero(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value or EPSILON
    return torch.where(value.abs() < EPSILON, torch.where(value < 0, -EPSILON, EPSILON), value)


def _inside_one(value: Tensor) -> Tensor:
    return value.clamp(-1 + EPSILON, 1 - EPSILON)


_POSITIVE = Guard(0, lambda value: value.clamp_min(EPSILON), "write {0}(x.clamp_min(1e-6)), or a fused function")
_ROOT = Guard(0, lambda value: value.clamp_min(EPSILON), "write {0}(x + 1e-6) or {0}(x.clamp_min(1e-6))")
_QUOTIENT = Guard(1, _keep_away_from_zero, "keep the denominator away from 0: a / (b + 1e-6) or a / b.clamp_min(1e-6)")
_BOUNDED = Guard(0, _inside_one, "write {0}(x.clamp(-1 + 1e-6, 1 - 1e-6))")
_EXPONENT = Guard(0, lambda value: value.clamp_max(80.0), "subtract the largest exponent first, as logsumexp does")
GUARDS = {
    **dict.fromkeys(("log", "log2", "log10"), _POSITIVE),
    **dict.fromkeys(("sqrt", "rsqrt"), _ROOT),
    "div": _QUOTIENT,
    **dict.fromkeys(("rdiv", "reciprocal"), _QUOTIENT._replace(argument=0)),
    **dict.fromkeys(("acos", "asin", "atanh"), _BOUNDED),
    "exp": _EXPONENT,
    "log1p": Guard(0, lambda value: value.clamp_min(EPSILON - 1), "write log1p(x.clamp_min(1e-6 - 1))"),
    "logit": Guard(0, lambda value: value.clamp(EPSILON, 1 - EPSILON), "write logit(x, eps=1e-6)"),
}
_SPELLINGS = {
    "__truediv__": "div",
    "__div__": "div",
    "__rtruediv__": "rdiv",
    "__rdiv__": "rdiv",
    "__pow__": "pow",
    "__mul__": "mul",
    "true_divide": "div",
    "divide": "div",
    "arccos": "acos",
    "arcsin": "asin",
    "arctanh": "atanh",
}


def culprit_at(field: Field, point: Sequence[float]) -> Culprit | None:
    """The first operation, in the order of execution, that turns finite numbers into NaN or infinity there."""
    leaves = [torch.tensor(float(value), dtype=field.dtype).reshape(field.shape) for value in point]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    file = field.loss.place.path if field.loss.place else ""
    with quiet():
        try:
            watch = _Forward(file)
            with watch:
                value = field.loss(*leaves)
            if not bool(torch.isfinite(value).all()):
                return watch.found
            return _in_backward(value)
        except Exception as error:
            return Culprit(RAISES, one_line(error))


class _Forward(FunctionCalls):
    """Looks at what every operation takes and gives."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.found: Culprit | None = None
        self._file = file

    def called(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = function(*args, **kwargs)
        if self.found is None and not _finite(result) and all(_finite(argument) for argument in args):
            operation = _name(function)
            self.found = _culprit(operation, _call(operation, args), self._place())
        return result

    def _place(self) -> Place | None:
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        return Place(self._file, frame.f_lineno, function=frame.f_code.co_name) if frame else None


def _in_backward(value: Tensor) -> Culprit | None:
    """The first node of the graph that is given finite gradients and passes on others."""
    found: list[str] = []

    def look(node: Any, passed_on: Any, given: Any) -> None:
        if not found and all(map(_finite, given)) and not all(map(_finite, passed_on)):
            found.append(re.sub(r"Backward\d*$", "", str(node.name())).lower())

    after_nodes(value.grad_fn, look)
    value.sum().backward()  # type: ignore[no-untyped-call]
    return _culprit(found[0], f"the gradient of {found[0]}", None) if found else None


def _name(function: Any) -> str:
    """`log` for torch.log, Tensor.log and Tensor.log_ alike; `div` for a slash."""
    name = str(getattr(function, "__name__", ""))
    return _SPELLINGS.get(name, name if name.startswith("__") else name.rstrip("_"))


def _culprit(operation: str, shown: str, place: Place | None) -> Culprit:
    guard = GUARDS.get(operation)
    return Culprit(operation, shown, place, guard.text.format(operation) if guard else "")


def _finite(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_finite, value))
    return not isinstance(value, Tensor) or not value.is_floating_point() or bool(torch.isfinite(value).all())


def _call(operation: str, arguments: Sequence[Any]) -> str:
    words = [_word(argument) for argument in arguments]
    if operation in ("div", "rdiv") and len(words) == 2:
        return " / ".join(words if operation == "div" else reversed(words))
    return f"{operation}({', '.join(word for word in words if word)})"


def _word(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.item():.4g}" if value.numel() == 1 else "..."
    return f"{value:.4g}" if isinstance(value, (int, float)) else ""


class _Guarded(FunctionCalls):
    """Puts a guard into every call of some operations."""

    def __init__(self, operations: Collection[str]) -> None:
        super().__init__()
        self._guards = {operation: GUARDS[operation] for operation in operations}

    def called(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        guard = self._guards.get(_name(function))
        if guard and len(args) > guard.argument:
            changed = list(args)
            changed[guard.argument] = guard.change(args[guard.argument])
            args = tuple(changed)
        return function(*args, **kwargs)


def _guarded(field: Field, operations: Collection[str]) -> Field:
    """The same loss with guards put in."""

    def evaluate(coordinates: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        with _Guarded(operations):
            return field.evaluate(coordinates)

    def function(*coordinates: Tensor) -> Any:
        with _Guarded(operations):
            return field.loss(*coordinates)

    return replace(field, loss=replace(field.loss, function=function), evaluate=evaluate, errors={})


def explain(field: Field, points: Array) -> tuple[Culprit | None, float]:
    """What makes these points non-finite, and the share of them that the guards for it do not cure.

    Behind one operation the next may wait: guards are added until nothing new is found.
    """
    found: list[Culprit] = []
    broken = points
    while len(found) < MOST_GUARDS and len(broken):
        known = [culprit.operation for culprit in found]
        culprit = culprit_at(_guarded(field, known), broken[len(broken) // 2])
        if culprit is None or culprit.operation in known:
            break
        found.append(culprit)
        if not culprit.guard:
            break
        value, gradient = _guarded(field, [*known, culprit.operation])(points)
        broken = points[~(np.isfinite(value) & np.isfinite(gradient).all(axis=0))]
    if not found:
        return None, 1.0
    guards = "; ".join(dict.fromkeys(culprit.guard for culprit in found if culprit.guard))
    shown = " and ".join(culprit.shown for culprit in found)
    return replace(found[0], shown=shown, guard=guards), len(broken) / len(points)
