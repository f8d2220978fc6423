"""Losses that are a product at heart, and the same thing taken apart in log space."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unstuck.findings.surface import Array
from unstuck.surface.field import Field, quiet
from unstuck.surface.loss import Loss

_SIGNS = ("SignBackward", "SgnBackward")
EPSILON = 1e-6
"""Keeps the logarithm finite where a factor is exactly 0."""


def factors_of(field: Field, point: Array, names: list[str]) -> tuple[str, str] | None:
    """On which axes the two factors depend, if the loss is a product of two things that both depend on one."""
    with quiet():
        try:
            leaves = [torch.tensor([float(value)] * 2, dtype=field.dtype).requires_grad_() for value in point]
            node = _product_node(field.loss(*leaves).grad_fn)
        except Exception:
            return None
    if node is None:
        return None
    one, other = (" and ".join(_axes_below(child, leaves, names)) for child, _ in node.next_functions)
    return one, other


def log_space(loss: Loss, points: Array) -> Loss | None:
    """`log|A| + log|B|` for a loss that rises, or falls, with `A * B`: each factor gets its own gradient."""
    direction, signed = _direction(loss, points)
    if not direction:
        return None
    # log|A| is a wall where A changes its sign; log(1 + |A|) is not, and is as independent of B.
    shift = 1.0 if signed else EPSILON

    def evaluate(*coordinates: Tensor) -> Tensor:
        _, one, other = _taken_apart(loss, *coordinates)
        sign = direction * torch.sign(one * other).detach() if signed else direction
        value: Tensor = sign * (torch.log(one.abs() + shift) + torch.log(other.abs() + shift))
        return value

    return Loss(f"{loss.name} in log space", evaluate, loss.place, loss.fixed_elements)


def _taken_apart(loss: Loss, *coordinates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    value = loss(*coordinates)
    node = _product_node(value.grad_fn)
    if node is None:
        raise ValueError("no product")
    return value, node._saved_self, node._saved_other


def _direction(loss: Loss, points: Array) -> tuple[int, bool]:
    """1 if the loss rises with the product, -1 if it falls, 0 if it does both; and whether a factor is negative."""
    leaves = [torch.from_numpy(column.copy()).requires_grad_() for column in points.T]
    with quiet():
        try:
            value, one, other = _taken_apart(loss, *leaves)
        except Exception:
            return 0, False
    changes = value.detach()[torch.argsort((one * other).detach())].diff()
    rises, falls = bool((changes > 1e-9).any()), bool((changes < -1e-9).any())
    return int(rises) - int(falls), bool((one < 0).any() or (other < 0).any())


def _product_node(node: Any) -> Any:
    """The multiplication of two tensors with history, seen through everything that has one such input only."""
    while node is not None:
        # A sign is constant wherever it has a gradient, so `sign(z) * f(z)` is no product.
        children = [c for c, _ in node.next_functions if c is not None and not str(c.name()).startswith(_SIGNS)]
        if str(node.name()).startswith("MulBackward") and len(children) == 2:
            return node if children[0] is not children[1] and all(map(_reaches_leaf, children)) else None
        if len(children) != 1:
            children = [child for child in children if _reaches_leaf(child)]
            if len(children) != 1:
                return None
        node = children[0]
    return None


def _reaches_leaf(node: Any) -> bool:
    return any(hasattr(below, "variable") for below in _below(node))


def _axes_below(node: Any, leaves: list[Tensor], names: list[str]) -> list[str]:
    found = {id(below.variable) for below in _below(node) if hasattr(below, "variable")}
    return [name for leaf, name in zip(leaves, names, strict=True) if id(leaf) in found]


def _below(node: Any) -> set[Any]:
    stack, seen = [node], set()
    while stack:
        current = stack.pop()
        if current is not None and current not in seen:
            seen.add(current)
            stack += [child for child, _ in current.next_functions]
    return seen
