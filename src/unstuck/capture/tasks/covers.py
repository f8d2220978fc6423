"""Reconstructions of an input of which the model sees a part: is the loss taken over the part that it sees?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from unstuck.capture.detect.graph import Node, nodes_from, operation, saved, saved_list, shape_of
from unstuck.capture.tasks.cells import Whole, before_picks, only_child
from unstuck.capture.tasks.sequences import Wanted
from unstuck.events import Cover, CoverScored, Place

_NEAR = 40
"""Nodes: a difference further from the loss is the model's own."""
_MOST_BELOW = 3000
_LOSSES = frozenset({"MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss"})
_CLOSE = 1e-4
_FEWEST_CELLS = 64
_FEW = 0.02
"""The smallest share of cells that must be hidden, and shown."""


def answers_compared(nodes: Sequence[Node]) -> Iterator[tuple[Node, Tensor | None]]:
    """Outputs that are compared with numbers near the end of a graph, and the difference where autograd kept it."""
    for node in nodes[:_NEAR]:
        name = operation(node)
        if name in _LOSSES and node.next_functions and node.next_functions[0][0] is not None:
            yield before_picks(node.next_functions[0][0]), None
        elif name == "Abs" or (name == "Pow" and getattr(node, "_saved_exponent", None) == 2):
            difference = node.next_functions[0][0]
            answer = only_child(difference) if difference is not None and operation(difference) == "Sub" else None
            if answer is not None:
                kept = saved(node, "self")
                yield before_picks(answer), kept if kept is not None and _sign(difference) > 0 else None


def _sign(difference: Node) -> int:
    return 1 if difference.next_functions[0][0] is not None else -1


def covered(
    whole: Whole,
    nodes: Sequence[Node],
    wanted: Sequence[Wanted],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    step: int,
    place: Place | None,
) -> CoverScored | None:
    """The first reconstruction whose input is covered in part."""
    for answer, difference in answers_compared(nodes):
        asked = whole.pulls([answer]).get(answer)
        if asked is None or asked.dim() < 2 or not bool((asked != 0).any()):
            continue
        found = _inside(answer, asked) or _before(asked, difference, wanted, inputs, outputs)
        if found is not None:
            cover, shown, scored = found
            cells = shown.numel()
            if cells >= _FEWEST_CELLS and _FEW < float(shown.double().mean()) < 1 - _FEW:
                return CoverScored(
                    step=step,
                    place=place,
                    cover=cover,
                    cells=cells,
                    shown=int(shown.sum()),
                    scored=int(scored.sum()),
                    both=int((shown & scored).sum()),
                )
    return None


def _inside(answer: Node, asked: Tensor) -> tuple[Cover, Tensor, Tensor] | None:
    """Positions that the model itself leaves out, or multiplies by zero: the lowest of such nodes counts."""
    if asked.dim() != 3:
        return None
    examples, length = asked.shape[:2]
    scored = (asked != 0).any(2)
    for node in reversed(nodes_from(answer, _MOST_BELOW)):
        name = operation(node)
        shown = None
        if name in ("Gather", "Index", "IndexSelect"):
            shown, cover = _chosen(node, name, examples, length), Cover.LEFT_OUT
        elif name == "Mul":
            shown, cover = _multiplied(node, examples, length), Cover.MULTIPLIED
        if shown is not None and bool((shown != shown[:1]).any()):
            return cover, shown, scored
    return None


def _chosen(node: Node, name: str, examples: int, length: int) -> Tensor | None:
    """The positions that were kept of [examples, length, ...], if those of some were not."""
    child = only_child(node)
    if child is None or shape_of(child)[:2] != (examples, length):
        return None
    shown = torch.zeros(examples, length, dtype=torch.bool)
    if name == "Gather":
        index = saved(node, "index")
        if index is None or index.dim() < 2 or len(index) != examples or getattr(node, "_saved_dim", 1) != 1:
            return None
        index = index.reshape(examples, index.shape[1], -1)[..., 0]
        shown.scatter_(1, index.long(), True)
    elif name == "Index":
        indices = [one for one in saved_list(node, "indices") if one is not None]
        if len(indices) == 1 and indices[0].dtype is torch.bool and indices[0].shape == shown.shape:
            shown = indices[0].clone()
        elif len(indices) == 2 and all(not one.is_floating_point() for one in indices):
            shown[indices[0].long(), indices[1].long()] = True
        else:
            return None
    else:
        return None
    return None if bool(shown.all()) else shown


def _multiplied(node: Node, examples: int, length: int) -> Tensor | None:
    """The positions that were not multiplied by 0, where what was multiplied comes from the input."""
    child = only_child(node)
    if child is None or operation(child) in ("Expand", "AccumulateGrad", "torch::autograd::AccumulateGrad"):
        return None
    for side in ("self", "other"):
        factor = saved(node, side)
        if factor is None or factor.dim() != 3 or factor.shape[:2] != (examples, length) or factor.shape[2] != 1:
            continue
        whole = bool(((factor == 0) | (factor == 1)).all())
        return (factor != 0)[..., 0] if whole and not bool((factor != 0).all()) else None
    return None


def _before(
    asked: Tensor,
    difference: Tensor | None,
    wanted: Sequence[Wanted],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> tuple[Cover, Tensor, Tensor] | None:
    """Numbers of the input that were replaced by one value, where the target still has them."""
    target = next((one.target for one in wanted if one.target.shape == asked.shape), None)
    if target is None and difference is not None and difference.shape == asked.shape:
        target = next((one - difference for one in outputs if one.shape == asked.shape), None)
    if target is None or not target.is_floating_point():
        return None
    for given in inputs:
        if given.shape != target.shape:
            continue
        scale = float(target.double().std())
        shown = (given - target).abs() <= _CLOSE * max(scale, 1e-12)
        rest = given[~shown]
        if not rest.numel() or scale == 0:
            return None
        value = rest.flatten().mode().values
        if float((rest == value).double().mean()) > 0.95 and float(target[~shown].double().std()) > 0.1 * scale:
            return Cover.FILLED, shown, asked != 0
    return None
