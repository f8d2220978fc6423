"""Graphs that were put into one batch: to which of them do the edges belong that a model is given?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unstuck.capture.measure.tensors import is_plain, is_whole, reading

_FEWEST_GRAPHS = 4
_FEWEST_EDGES = 8
_MOST_EDGES = 2**20


class Graphs(NamedTuple):
    """What the edges of a batch say."""

    input: str
    nodes: int
    edges: int
    graphs: int
    largest: int
    """Nodes of the largest graph."""
    highest: int
    """The highest number of a node in an edge."""
    with_edges: int
    """Graphs with at least one edge."""
    repeated: int
    """Edges that join the same two nodes as another one."""


def graphs_in(given: list[tuple[str, Tensor]]) -> Graphs | None:
    """Among the inputs of a model: nodes [N, F], the number of the graph of each node [N], and edges [2, E]."""
    sizes = {len(each) for _, each in given if each.dim() == 2 and is_plain(each)}
    owners = [each for _, each in given if each.dim() == 1 and len(each) in sizes and _is_index(each)]
    pairs = [(name, each) for name, each in given if each.dim() == 2 and len(each) == 2 and _is_index(each)]
    if not owners or not pairs:
        return None
    with reading():
        for owner in owners:
            if int(owner[0]) != 0 or int(owner.diff().min()) < 0 or int(owner.diff().max()) > 1:
                continue
            nodes = torch.bincount(owner)
            for name, edges in pairs:
                many = _FEWEST_EDGES <= edges.shape[1] <= _MOST_EDGES and len(nodes) >= _FEWEST_GRAPHS
                if many and int(edges.min()) >= 0 and int(edges.max()) < len(owner):
                    return Graphs(
                        name,
                        nodes=len(owner),
                        edges=edges.shape[1],
                        graphs=len(nodes),
                        largest=int(nodes.max()),
                        highest=int(edges.max()),
                        repeated=edges.shape[1] - len(torch.unique(edges.long().t() @ _pair(len(owner)))),
                        with_edges=int((torch.bincount(owner[edges.reshape(-1)]) > 0).sum()),
                    )
    return None


def _pair(nodes: int) -> Tensor:
    return torch.tensor([nodes, 1])


def _is_index(tensor: Tensor) -> bool:
    return is_whole(tensor) and tensor.dtype in (torch.int64, torch.int32) and tensor.is_cpu and tensor.numel() > 1
