"""A watched model compiles to the same graphs."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from unstuck.capture import watching
from unstuck.events import Backward, ModelSeen, OptimizerStep
from unstuck.record import read


def train() -> tuple[list[float], int, int]:
    """Losses, number of compiled graphs and of recompilations."""
    torch._dynamo.reset()
    graphs = 0

    def counting(graph, inputs):
        nonlocal graphs
        graphs += 1
        return graph.forward

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss_of(inputs):
        return F.cross_entropy(model(inputs), torch.tensor([0, 1, 0, 1]))

    compiled_model = torch.compile(model, backend=counting, fullgraph=True)
    compiled_loss = torch.compile(loss_of, backend=counting, fullgraph=True)
    losses = []
    for step in range(70):
        optimizer.zero_grad()
        inputs = torch.ones(4, 3) * (step % 3)
        loss = compiled_loss(inputs) + compiled_model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, graphs, len(torch._dynamo.utils.guard_failures)


def test_graphs_and_results_are_the_same(tmp_path: Path):
    bare = train()
    with warnings.catch_warnings(), watching(tmp_path / "run"):
        warnings.filterwarnings("error", message=".*global hooks.*")
        watched = train()
    assert watched == bare
    record = read(tmp_path / "run")
    assert not record.notes
    assert [model.kind for model in record.of(ModelSeen)] == ["Sequential"]
    assert next(parameter.name for parameter in next(record.of(ModelSeen)).parameters) == "0.weight"
    assert next(record.of(OptimizerStep)).with_grad == 4
    assert next(record.of(Backward)).value == pytest.approx(bare[0][0])


@pytest.mark.slow
def test_with_the_real_compiler(tmp_path: Path):
    def run() -> list[float]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = torch.compile(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), fullgraph=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 2))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    try:
        bare = run()
    except Exception as error:
        pytest.skip(f"the compiler does not work here: {type(error).__name__}")
    with watching(tmp_path / "run"):
        assert run() == bare
