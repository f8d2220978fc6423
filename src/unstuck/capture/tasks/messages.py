"""Message passing: are rows summed up where they were picked from?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unstuck.capture.detect.graph import Node, is_see_through, operation, saved, saved_list
from unstuck.events import MessagesReturned, Place

_MOST = 64
_FEWEST = 16
_PASSED = frozenset(
    {
        "Addmm", "Mm", "Relu", "LeakyRelu", "Gelu", "Tanh", "Sigmoid", "Elu", "Silu", "Mul", "Div", "NativeDropout",
        "NativeLayerNorm", "Neg", "T",
    }
)  # fmt: skip


def returned(nodes: Sequence[Node], ids: Sequence[Tensor], step: int, place: Place | None) -> MessagesReturned | None:
    """The first sum by an index whose rows were all picked by the same index."""
    for node in nodes:
        name = operation(node)
        if name not in ("IndexAdd", "ScatterAdd"):
            continue
        index = _column(saved(node, "index"))
        rows = len(torch.unique(index)) if index is not None else 0
        if index is None or len(index) < max(_FEWEST, 2 * rows):
            continue
        source = node.next_functions[1][0] if len(node.next_functions) > 1 else None
        picked = None if source is None else _picks(source)
        if picked and all(one.shape == index.shape and torch.equal(one, index) for one in picked):
            known = any(
                2 in one.shape and one.numel() == 2 * len(index) and bool((one == index).all(1).any())
                for one in (each if len(each) == 2 else each.t() for each in ids)
            )
            return MessagesReturned(step=step, place=place, messages=len(index), rows=rows, known=known)
    return None


def _column(index: Tensor | None) -> Tensor | None:
    if index is None or not index.is_cpu or index.dim() not in (1, 2):
        return None
    return index if index.dim() == 1 else index[:, 0]


def _picks(node: Node) -> list[Tensor] | None:
    """The indices by which the rows below were picked; None if something else reaches them."""
    found: list[Tensor] = []
    waiting, left = [node], _MOST
    while waiting:
        each = waiting.pop()
        left -= 1
        name = operation(each)
        if left < 0:
            return None
        if name in ("Index", "IndexSelect", "Gather"):
            indices = saved_list(each, "indices") if name == "Index" else [saved(each, "index")]
            index = _column(indices[0]) if len(indices) == 1 else None
            if index is None:
                return None
            found.append(index)
        elif "AccumulateGrad" in name:
            continue
        elif name in _PASSED or is_see_through(each):
            waiting += [child for child, _ in each.next_functions if child is not None]
        else:
            return None
    return found
