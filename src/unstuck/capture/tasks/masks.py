"""Masks of whole numbers that pick rows 0 and 1 instead of the rows that they mark."""

from __future__ import annotations

from collections.abc import Sequence

from unstuck.capture.detect.graph import Node, operation, saved_list
from unstuck.capture.measure.tensors import is_whole
from unstuck.events import MaskIndexed, Place

_FEWEST = 16


def indexed(nodes: Sequence[Node], step: int, place: Place | None) -> MaskIndexed | None:
    """The first index that is as long as what it picks from, and holds nothing but zeros and ones."""
    for node in nodes:
        indices = saved_list(node, "indices") if operation(node) == "Index" else []
        index = indices[0] if len(indices) == 1 else None
        if index is None or not index.is_cpu or not is_whole(index) or index.dim() != 1 or index.dtype.itemsize == 1:
            continue
        sizes = getattr(node, "_saved_self_sym_sizes", ())
        if len(index) < _FEWEST or not sizes or int(sizes[0]) != len(index):
            continue
        if int(index.min()) == 0 and int(index.max()) == 1:
            return MaskIndexed(step=step, place=place, rows=len(index), marked=int(index.sum()))
    return None
