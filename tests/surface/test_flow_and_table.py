"""Where descent goes, and the gradient-flow table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import unstuck
from unstuck.findings.surface import FlowRow, Surface


def plane(loss: Any, **options: Any) -> Surface:
    return unstuck.surface(loss, ("a", -1, 1), ("b", -1, 1), **options)


def test_flows_start_at_the_marks_and_end_at_the_minimum() -> None:
    surface = plane(lambda a, b: (a - 0.5) ** 2 + (b - 0.5) ** 2, at=[(-0.8, 0.7)])
    first = surface.flows[0]
    assert tuple(first.points[0]) == (-0.8, 0.7)
    assert first.points[-1] == pytest.approx((0.5, 0.5), abs=0.02)
    assert {flow.ended for flow in surface.flows if flow.optimizer == "flow"} == {"minimum"}


def test_sgd_and_adam_are_drawn_from_the_marks() -> None:
    surface = plane(lambda a, b: a**2 + b**2, at=[(0.5, 0.5), (-0.5, 0.2)])
    optimized = [(flow.optimizer, tuple(flow.points[0])) for flow in surface.flows if flow.optimizer != "flow"]
    assert optimized == [("sgd", (0.5, 0.5)), ("sgd", (-0.5, 0.2)), ("adam", (0.5, 0.5)), ("adam", (-0.5, 0.2))]


def test_adam_walks_as_torch_does() -> None:
    surface = plane(lambda a, b: a**2 + 3 * b**2, at=[(0.5, -0.5)])
    (path,) = [flow.points for flow in surface.flows if flow.optimizer == "adam"]
    weights = torch.tensor([0.5, -0.5], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.02)
    for expected in path[1:20]:
        optimizer.zero_grad()
        (weights[0] ** 2 + 3 * weights[1] ** 2).backward()
        optimizer.step()
        assert weights.detach().numpy() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("loss", "ended"),
    [
        (lambda a, b: a**2 + b**2, "minimum"),
        (lambda a, b: a + b, "lowest edge"),
        (lambda a, b: torch.relu(a + 2) * 0 + 1 + 0 * b, "minimum"),
        (lambda a, b: (a.detach() - b.detach()) ** 2, "stuck"),
        (lambda a, b: a / b, "bottomless"),
        (lambda a, b: torch.sqrt(a - 0.2) + b**2, "non-finite"),
    ],
)
def test_how_descent_ends(loss: Any, ended: str) -> None:
    arrivals = plane(loss).arrivals
    assert arrivals is not None
    assert max(arrivals.ended, key=lambda word: arrivals.ended[word]) == ended
    assert sum(arrivals.ended.values()) == pytest.approx(1)


def test_descent_slides_along_the_edge_of_the_plane() -> None:
    surface = plane(lambda a, b: 5 * a + b, desired={"a": (-1, -0.9), "b": (-1, -0.9)})
    assert surface.arrivals is not None
    assert surface.arrivals.ended == {"desired region": 1.0}


def rows(surface: Surface, **wanted: object) -> list[FlowRow]:
    return [row for row in surface.table if all(getattr(row, key) == value for key, value in wanted.items())]


def test_the_table_has_every_component_parameter_and_input() -> None:
    surface = plane(
        lambda pos, neg: F.softplus(neg - pos) + 0.1 * pos**2,
        components={"decay": lambda pos: 0.1 * pos**2},
        at=[(0.3, -0.3)],
    )
    assert {row.component for row in surface.table} == {"loss", "decay"}
    assert {row.parameter for row in surface.table} == {"a", "b"}
    assert {row.label for row in surface.table} == {"operating point", "zero", "small", "converged", "degenerate"}
    (row,) = rows(surface, component="loss", parameter="b", label="operating point")
    assert row.at == (0.3, -0.3)
    assert row.gradient == pytest.approx(float(torch.sigmoid(torch.tensor(-0.6))), rel=1e-4)
    assert row.flag == ""


def test_the_table_flags_what_is_dead_at_init_but_not_what_has_converged() -> None:
    surface = plane(lambda a, b: a * b)
    assert {row.flag for row in rows(surface, label="zero")} == {"zero gradient"}
    bowl = plane(lambda a, b: a**2 + b**2, points=81)
    assert {row.flag for row in bowl.table} == {""}


def test_the_table_flags_what_is_not_finite() -> None:
    def kl(a: Tensor, b: Tensor) -> Tensor:
        return a * torch.log(a) + b**2

    surface = unstuck.surface(kl, ("a", 0, 1), ("b", 0, 1))
    assert {row.flag for row in rows(surface, label="zero")} == {"non-finite loss"}
    root = unstuck.surface(torch.sqrt, ("input", 0, 1))
    assert [row.flag for row in rows(root, label="zero")] == ["non-finite gradient"]
    assert np.isinf(rows(root, label="zero")[0].gradient)
