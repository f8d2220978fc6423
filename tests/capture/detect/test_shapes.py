"""Shapes read from what nodes saved are right or empty: compared with what this torch itself knows of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unstuck.capture.detect.graph import nodes_from, saved
from unstuck.capture.detect.shapes import note_inputs, shape_from_saved
from unstuck.capture.torch_hooks.internals import has_shapes

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a square": lambda p, y: (p - y).pow(2).mean(),
    "a column and a row": lambda p, y: (p[:, :1] - y[:, 0]).square().mean(),
    "a column and a row, squeezed": lambda p, y: (p[:, :1].squeeze(-1) - y[:, :1]).abs().sum(),
    "two powers": lambda p, y: ((p - y).abs() ** p.sigmoid()).mean(),
    "limits of several kinds": lambda p, y: (p.clamp(max=1) + p.clamp(min=y) + p.clamp_min(0.1)).sum(),
    "a masked mean": lambda p, y: ((p - y).pow(2) * (y > 0).float()).mean(),
    "means of means": lambda p, y: p.mean(0).sum() + p.mean(-1, keepdim=True).mean() + p.sum(dim=(0, 1)),
    "all axes, kept": lambda p, y: p.sum((0, 1), keepdim=True).squeeze(),
    "a part": lambda p, y: p[1:5:2, -2:].sum() + p[0].mean() + p.select(1, -1).sum(),
    "reshapes": lambda p, y: p.reshape(3, -1).view(-1).unsqueeze(0).log_softmax(1)[:, 2].neg().sum(),
    "axes moved": lambda p, y: p.t().contiguous().view(6, 5).softmax(1).transpose(0, 1).log().mean(),
    "picked": lambda p, y: -p.log_softmax(1).gather(1, torch.zeros(6, 1, dtype=torch.int64)).mean(),
    "classes": lambda p, y: F.cross_entropy(p, torch.arange(6) % 5),
    "several results": lambda p, y: sum((part.exp().sum() for part in p.chunk(2, 1)), p.max(1)[0].sum()),
    "broadcast products": lambda p, y: (p.unsqueeze(1) * p * 2 / p.sum()).mean() + torch.maximum(p, p[:1]).sum(),
    "casts": lambda p, y: (p.double() - y.double()).abs().float().mean(),
    "products of tables": lambda p, y: (p @ y.t() @ p).sum() + (p.expand(2, 6, 5) @ y.t()).relu().sum(),
    "pieces put together": lambda p, y: torch.cat([p, p]).sum() + torch.stack([p, p]).norm(dim=1).sum(),
    "nothing left": lambda p, y: p[:0].sum() + p[:, 7:].mean(1).sum(),
}
LEAST_SHARE = 0.6


@pytest.mark.skipif(not has_shapes, reason="this torch has nothing to compare with")
@pytest.mark.parametrize("name", LOSSES)
def test_right_or_empty(name: str) -> None:
    torch.manual_seed(0)
    nodes = nodes_from(LOSSES[name](nn.Linear(8, 5)(torch.randn(6, 8)), torch.randn(6, 5)).grad_fn)
    for node in nodes:
        note_inputs(node, saved)
    found = [(shape_from_saved(node, saved), tuple(node._input_metadata[0].shape), node.name()) for node in nodes]
    assert [each for each in found if each[0] not in ((), each[1])] == []
    with_shape = [shape for shape, true, _ in found if true]
    assert sum(bool(shape) for shape in with_shape) >= LEAST_SHARE * len(with_shape), found
