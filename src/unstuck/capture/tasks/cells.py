"""Where the numbers that a loss is given come from: the graph above a layer's output, followed cell by cell."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from unstuck.capture.detect.graph import Node, is_see_through, operation, saved, saved_list, shape_of
from unstuck.capture.players.head import Head

_LONGEST = 24
_LARGEST = 2**23
"""Numbers in what a loss is given; it is not followed where there are more."""
_SAME = frozenset({"Clone", "Contiguous", "ToCopy", "Alias", "LogSoftmax", "Softmax", "Sigmoid", "LogSigmoid"})
_RESHAPES = frozenset(
    {"View", "UnsafeView", "Reshape", "ReshapeAlias", "ViewAs", "Squeeze", "Unsqueeze", "Flatten", "Unflatten"}
)
_PICKS = frozenset({"Index", "Gather", "Select", "Slice", "Narrow", "IndexSelect", "MaskedSelect"})


class Whole(Head):
    """A whole graph: any of its nodes can be asked what the loss wants of it."""

    def __init__(self, root: Node, nodes: Sequence[Node]) -> None:
        self._known = set(nodes)
        super().__init__(root)

    def _explore(self) -> None:
        self._nodes = self._known


def signed(value: object) -> int:
    """Negative numbers are kept as unsigned ones."""
    number = int(value) if isinstance(value, int) else 0
    return number - 2**64 if number >= 2**63 else number


def only_child(node: Node) -> Node | None:
    """What made the only input that needs gradients."""
    children = [child for child, _ in node.next_functions if child is not None]
    return children[0] if len(children) == 1 else None


def _hands_on(node: Node) -> bool:
    name = operation(node)
    scaled = name in ("Mul", "Div") and all(saved(node, side) is None for side in ("self", "other"))
    return is_see_through(node) or name in _SAME or name == "MaskedSelect" or scaled


def cells_of(node: Node, grid: tuple[int, int]) -> Tensor | None:
    """For each number that a node returned, the cell of this grid (examples by positions) whose layer output it is.

    None if it cannot be followed down to an output that has the cells of the grid.
    """
    chain: list[Node] = []
    while len(chain) < _LONGEST and _hands_on(node) and (child := only_child(node)) is not None:
        chain.append(node)
        node = child
    index = _numbered(shape_of(node), grid)
    for each in reversed(chain):
        index = None if index is None else _applied(each, index)
    return index


def _numbered(shape: tuple[int, ...], grid: tuple[int, int]) -> Tensor | None:
    """The output of a layer, each number replaced by its cell."""
    count, (examples, length) = math.prod(grid), grid
    if len(shape) < 2 or math.prod(shape) > _LARGEST:
        return None
    numbers = torch.arange(count, dtype=torch.int32)
    if math.prod(shape[:-1]) == count:
        return numbers.reshape(*shape[:-1], 1).expand(shape)
    if shape[0] == examples and math.prod(shape[2:]) == length:
        return numbers.reshape(examples, 1, *shape[2:]).expand(shape)
    return None


def _applied(node: Node, index: Tensor) -> Tensor | None:
    """The same operation, on cells."""
    name = operation(node)
    if name in _SAME or name in ("Mul", "Div"):
        return index
    if name in _RESHAPES:
        shape = shape_of(node)  # which an old torch may not know
        return index.reshape(shape) if math.prod(shape) == index.numel() else None
    if name == "T":
        return index.t()
    if name == "Transpose":
        return index.transpose(signed(node._saved_dim0), signed(node._saved_dim1))
    if name == "Permute":
        return index.permute([signed(side) for side in node._saved_dims])
    if name == "Select":
        return index.select(signed(node._saved_dim), signed(node._saved_index))
    if name == "Slice":
        chosen = slice(signed(node._saved_start), signed(node._saved_end), signed(node._saved_step))
        axis = signed(node._saved_dim) % index.dim()
        return index[(slice(None),) * axis + (chosen,)]
    if name == "Index":
        indices = saved_list(node, "indices")
        return index[tuple(slice(None) if one is None else one for one in indices)] if indices else None
    mask = saved(node, "mask") if name == "MaskedSelect" else None
    return index[mask] if mask is not None and mask.shape == index.shape else None


def before_picks(node: Node) -> Node:
    """The first node below all choices of rows or positions: all that a model has answered."""
    found = node
    for _ in range(_LONGEST):
        child = only_child(node)
        if child is None or not (is_see_through(node) or operation(node) in _PICKS):
            break
        if operation(node) in _PICKS:
            found = child
        node = child
    return found
