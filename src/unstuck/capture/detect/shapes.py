"""The shapes in an autograd graph, for a torch whose nodes do not know theirs: read from what they saved.

What cannot be known exactly stays unknown, which is an empty shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor

Node = Any
Shape = tuple[int, ...]
Read = Callable[[Node, str], Tensor | None]
"""Reads what a node saved under a name, None if it cannot be had."""

_KEY = "unstuck.shape"
_DEEPEST = 8
_TWO_SIDED = frozenset({"Mul", "Div", "Minimum", "Maximum"})
"""Operations that save both of their inputs as `self` and `other`."""
_ELEMENTWISE = frozenset(
    {
        "Neg", "Clone", "ToCopy", "Alias", "Pow", "Abs", "Clamp", "ClampMin", "ClampMax", "Log", "Log2", "Log10",
        "Log1P", "LogSigmoid", "Softplus", "Gelu", "Silu", "LeakyRelu", "Hardtanh", "Sin", "Cos",
    }
)  # fmt: skip
"""Those that return as many numbers as they were given, where they have one input."""
_SAVE_RESULT = frozenset({"Softmax", "SafeSoftmax", "LogSoftmax", "Exp", "Relu", "Sigmoid", "Tanh", "Sqrt", "Rsqrt"})
"""Those of them that save what they return."""


def note_inputs(node: Node, read: Read) -> None:
    """Note the shapes of what a node was given at the nodes that made it."""
    edges = node.next_functions
    if edges and edges[0][0] is not None:
        _note(edges[0], _first_input(node, read))
    if len(edges) > 1 and edges[1][0] is not None and _operation(node) in _TWO_SIDED:
        other = read(node, "other")
        _note(edges[1], () if other is None else tuple(other.shape))


def shape_from_saved(node: Node, read: Read, depth: int = _DEEPEST) -> Shape:
    """The shape of what a node returned first; empty if that is a single number, or not known."""
    shape: Shape | None = node.metadata.get(_KEY)
    if shape is not None:
        return shape
    values = (read(node, "result"), getattr(node, "variable", None))
    value = next((value for value in values if isinstance(value, Tensor)), None)
    if value is not None:
        return tuple(value.shape)
    name = _operation(node)
    if name == "Gather":
        index = read(node, "index")
        return () if index is None else tuple(index.shape)
    if name in ("Addmm", "Mm"):
        rows, columns = _sizes(node, "mat1" if name == "Addmm" else "self"), _sizes(node, "mat2")
        return (rows[0], columns[1]) if len(rows) == len(columns) == 2 else ()
    if name in _ELEMENTWISE and len(node.next_functions) == 1:
        child = node.next_functions[0][0]
        own = _first_input(node, read)
        return own or (shape_from_saved(child, read, depth - 1) if child is not None and depth else ())
    return _part(node, name, _sizes(node, "self"))


def _part(node: Node, name: str, whole: Shape) -> Shape:
    """What a reduction or a selection leaves of the shape it was given."""
    axes = _axes(node, len(whole))
    if not whole or axes is None:
        return ()
    if name in ("Sum", "Mean"):
        axes = axes or set(range(len(whole)))
        is_kept = bool(getattr(node, "_saved_keepdim", False))
        return tuple(1 if axis in axes else side for axis, side in enumerate(whole) if is_kept or axis not in axes)
    if name == "Squeeze":
        gone = {axis for axis, side in enumerate(whole) if side == 1 and (not axes or axis in axes)}
        return tuple(side for axis, side in enumerate(whole) if axis not in gone)
    if name == "Select" and axes:
        return tuple(side for axis, side in enumerate(whole) if axis not in axes)
    if name == "Slice" and axes:
        chosen = slice(_signed(node._saved_start), _signed(node._saved_end), _signed(node._saved_step))
        return tuple(len(range(side)[chosen]) if axis in axes else side for axis, side in enumerate(whole))
    return ()


def _note(edge: tuple[Node, int], shape: Shape) -> None:
    child, place = edge
    if shape and place == 0:
        child.metadata[_KEY] = shape


def _first_input(node: Node, read: Read) -> Shape:
    sizes = _sizes(node, "self")
    value = None if sizes else read(node, "result" if _operation(node) in _SAVE_RESULT else "self")
    return sizes if value is None else tuple(value.shape)


def _sizes(node: Node, name: str) -> Shape:
    sizes: object = getattr(node, f"_saved_{name}_sym_sizes", ())
    if not isinstance(sizes, tuple) or not all(isinstance(side, int) for side in sizes):  # of a nested tensor
        return ()
    return sizes


def _axes(node: Node, sides: int) -> set[int] | None:
    """Those that an operation is about, counted from 0: none for all of them. None if that is not clear."""
    dim: object = getattr(node, "_saved_dim", ())
    given = dim if isinstance(dim, tuple) else (dim,)
    numbers = [_signed(axis) for axis in given if isinstance(axis, int)]
    is_clear = sides > 0 and all(-sides <= axis < sides for axis in numbers)
    return {axis % sides for axis in numbers} if is_clear else None


def _signed(number: int) -> int:
    """A negative number is kept as an unsigned one."""
    return number - 2**64 if number >= 2**63 else number


def _operation(node: Node) -> str:
    return re.sub(r"Backward\d*$", "", str(node.name()))
