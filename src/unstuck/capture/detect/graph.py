"""Walks the autograd graph by node names: what made a tensor, and what can have made NaN or infinity."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from unstuck.capture.detect.saved import saved as saved
from unstuck.capture.measure.tensors import finite_range, is_finite, is_plain, reading

Node = Any
_MOST_NODES = 20_000
_LONGEST_CHAIN = 32
_MOST_SUSPECTS = 8

_SEE_THROUGH = frozenset(
    {
        "View", "UnsafeView", "Reshape", "ReshapeAlias", "ViewAs", "T", "Transpose", "Permute",
        "Squeeze", "Unsqueeze", "Index", "Select", "Slice", "Gather", "ToCopy", "Clone", "Contiguous",
        "Expand", "Alias", "Narrow", "Flatten", "Unflatten", "SwapAxes", "Movedim", "Copy",
    }
)  # fmt: skip
_RISKY = frozenset(
    {
        "Log", "Log2", "Log10", "Log1P", "Sqrt", "Rsqrt", "Div", "Pow", "Exp", "Exp2", "Expm1",
        "Reciprocal", "LinalgVectorNorm", "Norm", "Std", "Var", "Acos", "Asin", "Acosh", "Atanh",
        "Atan2", "Tan", "Cosh", "Sinh", "Lgamma", "Digamma", "Erfinv", "Logit", "Cdist",
        "LinalgInvEx", "LinalgSolveEx",
    }
)  # fmt: skip
_AGAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "Log": torch.log,
    "Log2": torch.log2,
    "Log10": torch.log10,
    "Log1P": torch.log1p,
    "Sqrt": torch.sqrt,
    "Rsqrt": torch.rsqrt,
    "Reciprocal": torch.reciprocal,
    "Acos": torch.acos,
    "Asin": torch.asin,
    "Acosh": torch.acosh,
    "Atanh": torch.atanh,
    "Exp": torch.exp,
    "Logit": torch.logit,
}


class Token:
    """Lies in the metadata of a node, and goes when the node goes.

    A node outlives its Python object, so a weak reference to that says nothing; what lies in the metadata of a node
    lives exactly as long as the node.
    """

    __slots__ = ("__weakref__",)


def made_by(tensor: Tensor) -> str:
    """The node behind a tensor, seen through reshapes, selections and casts, such as `SoftmaxBackward0`."""
    node = origin(tensor)
    return "" if node is None else str(node.name())


def origin(tensor: Tensor) -> Node:
    """The node that `made_by` names; None for a tensor without history."""
    node: Node = tensor.grad_fn
    for _ in range(_LONGEST_CHAIN):
        if node is None or not is_see_through(node) or not node.next_functions:
            break
        node = node.next_functions[0][0]
    return node


def softmax_axis(node: Node) -> int | None:
    """The axis that a softmax ran over, counted from 0."""
    if node is None or operation(node) not in ("Softmax", "LogSoftmax"):
        return None
    dim: object = getattr(node, "_saved_dim", None)
    if not isinstance(dim, int) or dim < 2**63:
        return dim if isinstance(dim, int) else None
    # A negative axis is kept as an unsigned number.
    shape = shape_of(node)
    result = None if shape else saved(node, "result")
    sides = len(shape) if result is None else result.dim()
    return dim - 2**64 + sides if sides else None


def shape_of(node: Node) -> tuple[int, ...]:
    """The shape of what an operation returned; empty where it had none, or torch does not say."""
    metadata = getattr(node, "_input_metadata", ())
    return tuple(int(side) for side in metadata[0].shape) if metadata else ()


def is_see_through(node: Node) -> bool:
    """Does it hand its numbers on as they are: a reshape, a selection, a cast?"""
    return operation(node) in _SEE_THROUGH


def nodes_from(root: Node, most: int = _MOST_NODES) -> list[Node]:
    """The graph below a node, each node after everything that uses it: nearest to the loss first."""
    finished: list[Node] = []
    seen = {root}
    stack = [(root, iter(root.next_functions))]
    while stack:
        node, children = stack[-1]
        child = next((c for c, _ in children if c is not None and c not in seen), None)
        if child is None:
            stack.pop()
            finished.append(node)
        elif len(seen) < most:
            seen.add(child)
            stack.append((child, iter(child.next_functions)))
    finished.reverse()
    return finished


def risky_operations(root: Node) -> tuple[str, ...]:
    """Operations below a loss that can produce NaN or infinity in the forward pass."""
    return _names(node for node in nodes_from(root) if operation(node) in _RISKY)


def risky_above(root: Node, broken: Sequence[Tensor], healthy: Sequence[Tensor]) -> tuple[str, ...]:
    """Operations whose backward could have spoiled the gradients of all `broken` parameters.

    One that also feeds a `healthy` parameter would have spoiled that as well: named only if no other is left.
    """
    wanted = {id(parameter) for parameter in broken}
    spared = {id(parameter) for parameter in healthy}
    below: dict[Node, frozenset[int]] = {}
    for node in reversed(nodes_from(root)):
        leaf = getattr(node, "variable", None)
        own = frozenset() if leaf is None else frozenset((id(leaf),))
        children = [below[child] for child, _ in node.next_functions if child in below]
        below[node] = own.union(*children)
    suspects = [n for n in nodes_from(root) if operation(n) in _RISKY and wanted <= below[n]]
    exclusive = [node for node in suspects if not spared & below[node]]
    return _names(exclusive or suspects)


class Culprit:
    """An operation whose result is not finite; `low` and `high` bound its input where autograd kept that."""

    def __init__(self, name: str, span: tuple[float, float] | None) -> None:
        self.name = name
        self.low: float | None = span[0] if span else None
        self.high: float | None = span[1] if span else None


def culprit_below(root: Node) -> Culprit | None:
    """The first operation, in the order of execution, that provably made NaN or infinity.

    Reads what autograd saved, so it works before the backward only.
    """
    for node in reversed(nodes_from(root)):
        name = operation(node)
        if name not in _RISKY:
            continue
        result = _saved(node, "result")
        source = _saved(node, "other" if name == "Div" else "self")
        if result is not None and not is_finite(result):
            return Culprit(str(node.name()), None if source is None else finite_range(source))
        if source is not None and result is None and _fails_again(name, source):
            return Culprit(str(node.name()), finite_range(source))
    return None


def _fails_again(name: str, source: Tensor) -> bool:
    if not is_finite(source):
        return False
    with reading():
        if name == "Div":
            return bool((source == 0).any())
        again = _AGAIN.get(name)
        return again is not None and not is_finite(again(source.detach()))


def _saved(node: Node, name: str) -> Tensor | None:
    value = saved(node, name)
    return value if is_plain(value) else None


def operation(node: Node) -> str:
    """The name of a node without its ending: `Softmax` of `SoftmaxBackward0`."""
    return re.sub(r"Backward\d*$", "", str(node.name()))


def _names(nodes: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(node.name()) for node in nodes))[:_MOST_SUSPECTS]
