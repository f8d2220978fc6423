"""Where in a forward pass NaN or infinity began, read from what autograd saved: for windows that had no hooks."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from unstuck.capture.detect import graph
from unstuck.capture.measure.tensors import finite_range, flaw, is_finite, is_plain, reading

_FURTHEST = 64
_RESULTS = ("result", "output", "result0")
_TURNS = ("T", "Transpose", "Permute", "ToCopy", "View")


class Break(NamedTuple):
    """The first saved value that was not finite lies between two parameters of the model."""

    value: str
    """`nan` or `inf`."""
    after: Tensor | None
    """The last parameter used before it; None if it came into the model so."""
    until: Tensor | None
    """The next parameter used after it."""
    span: tuple[float, float] | None
    """Range of what was finite in it."""


def first_break(root: graph.Node) -> Break | None:
    """The first saved tensor that is broken, by the order of execution. Works before the backward only."""
    nodes = graph.nodes_from(root)[::-1]
    for place, node in enumerate(nodes):
        for name in _saved_names(node.__class__):
            tensor = graph.saved(node, name)
            if tensor is not None and is_plain(tensor) and not is_finite(tensor) and _is_unmeant(tensor):
                made_here = name in _RESULTS
                later = (_own_parameter(used) for used in nodes[place + made_here :])
                until = next((own for own in later if own is not None), None)
                before = [node] if made_here else _makers(node)
                return Break(flaw(tensor), nearest_parameter(before), until, finite_range(tensor))
    return None


@functools.cache
def _saved_names(kind: type) -> tuple[str, ...]:
    start = "_raw_saved_"
    return tuple(name.removeprefix(start) for name in dir(kind) if name.startswith(start))


def _is_unmeant(tensor: Tensor) -> bool:
    """A mask of -inf is meant."""
    with reading():
        return bool((torch.isnan(tensor) | torch.isposinf(tensor)).any())


def _own_parameter(node: graph.Node) -> Tensor | None:
    """The parameter that an operation uses itself, perhaps transposed."""
    children = [child for child, _ in node.next_functions if child is not None]
    leaves = (_leaf(child) for child in children)
    own: Tensor | None = next((leaf for leaf in leaves if leaf is not None), None)
    return own


def _makers(node: graph.Node) -> list[graph.Node]:
    """What made the inputs of an operation, without its own parameters."""
    return [child for child, _ in node.next_functions if child is not None and _leaf(child) is None]


def _leaf(node: graph.Node) -> Tensor | None:
    for _ in range(3):
        leaf: Tensor | None = getattr(node, "variable", None)
        inner = [child for child, _ in node.next_functions if child is not None]
        if leaf is not None or len(inner) != 1 or graph.operation(node) not in _TURNS:
            return leaf
        node = inner[0]
    return None


def nearest_parameter(nodes: list[graph.Node], furthest: int = _FURTHEST) -> Tensor | None:
    """The nearest parameter at or below these nodes, breadth first."""
    waiting, seen = list(nodes), 0
    while waiting and seen < furthest:
        node, seen = waiting.pop(0), seen + 1
        own = _own_parameter(node)
        if own is not None:
            return own
        waiting += _makers(node)
    return None
