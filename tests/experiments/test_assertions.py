"""`unstuck.isolate`, `assert_learns` and `assert_relations` on live objects, which stay as they were."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import unstuck
from tests.check.test_pytest_plugin import run_pytest
from unstuck.experiments.notebook import Answer, why_not_learned
from unstuck.findings.relations import Relation, State
from unstuck.findings.results import Experiment, ExperimentVerdict

TESTS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(1024, 8)
y = x[:, :3].argmax(1)
loader = DataLoader(TensorDataset(x, y), 64, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))


def test_learns(unstuck_isolate):
    unstuck_isolate(model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=1e-2), loader)


def test_uphill(unstuck_relations):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    unstuck_relations(model, lambda output, target: -nn.functional.cross_entropy(output, target), optimizer, loader)
"""


class Mean(nn.Module):
    """Gives every example the same answer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean over the batch."""
        h = self.norm(self.first(x)).relu()
        answer: torch.Tensor = self.last(h.mean(0, keepdim=True).expand_as(h))
        return answer


def parts(model: nn.Module) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    x = torch.randn(1024, 8, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), 64, shuffle=True)
    return model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=1e-2), loader


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    return (
        {name: value.clone() for name, value in model.state_dict().items()},
        copy.deepcopy(optimizer.state_dict()),
        [parameter.grad for parameter in model.parameters()],
        [list(vars(module)) for module in model.modules()],
        [module.training for module in model.modules()],
        torch.get_rng_state(),
    )


@pytest.mark.slow
def test_isolate_corners_a_model_and_leaves_it_as_it_was() -> None:
    torch.manual_seed(0)
    model, loss_fn, optimizer, loader = parts(Mean())
    loss_fn(model(torch.randn(8, 8)), torch.zeros(8).long()).backward()
    optimizer.step()
    before = state(model, optimizer)
    answer = unstuck.isolate(model, loss_fn, optimizer, loader, seconds=120)
    after = state(model, optimizer)
    assert before[0].keys() == after[0].keys()
    assert all(torch.equal(value, after[0][name]) for name, value in before[0].items())
    torch.testing.assert_close(before[1]["state"], after[1]["state"], rtol=0, atol=0)
    assert all(one is other for one, other in zip(before[2], after[2], strict=True))
    assert before[1]["param_groups"] == after[1]["param_groups"]
    assert before[3:5] == after[3:5]
    assert torch.equal(before[5], after[5])
    assert answer.experiment.measures["part"] == "model"
    assert [finding.code for finding in answer.findings] == ["P21"]


def test_what_learns_passes() -> None:
    torch.manual_seed(0)
    good = parts(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)))
    unstuck.assert_learns(*good, seconds=90)
    unstuck.assert_relations(*good, seconds=90)


def test_what_cannot_be_judged_is_no_pass() -> None:
    model, _, optimizer, loader = parts(nn.Sequential(nn.Linear(8, 3)))
    with pytest.raises(ValueError, match=r"It cannot be said whether it learns\. No optimizer step"):
        unstuck.assert_learns(model, lambda output, _: output.detach().mean(), optimizer, loader, seconds=20)


class Potential(nn.Module):
    """Differentiates by itself, which fails where gradients are off, and keeps a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores and their slope."""
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * x.detach().abs().mean(0)
        x = x.detach().requires_grad_()
        scores: torch.Tensor = self.net(x / self.scale)
        slope = torch.autograd.grad(scores.sum(), x, create_graph=True)[0]
        return scores + slope[:, :3]


def test_a_test_of_ours_that_fails_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSTUCK_RAISE")
    answer = unstuck.relations(*parts(Potential()), seconds=30)
    said = {one.relation: one for one in answer.experiment.relations}
    assert said[Relation.TARGETS].state is State.HOLDS
    for relation in (Relation.STEADY, Relation.STATE):
        assert said[relation].state is State.DOES_NOT_APPLY
        assert said[relation].sentence.startswith("Not tested: the test failed (RuntimeError: element 0")
    assert answer.findings == []


def isolated(**measures: Any) -> Answer:
    """What `isolate` found out about a run that it cornered."""
    rows = {"as_it_is": "does not learn: 19% right (a guess: 19%)", "part": "update", "certain": True}
    return Answer(
        Experiment(
            name="isolate",
            verdict=ExperimentVerdict.CORNERED,
            sentence="The fault is in the update.",
            method="3 seeds",
            measures=rows | measures,
        )
    )


def test_a_run_that_only_is_slow_passes() -> None:
    assert why_not_learned(isolated(steps=300, still_falls=False))
    assert not why_not_learned(isolated(steps=300, still_falls=True))
    assert not why_not_learned(isolated(steps=120, still_falls=True))
    with pytest.raises(ValueError, match="only 120 of 300 steps fit; give more seconds"):
        why_not_learned(isolated(steps=120, still_falls=False))


def test_assert_relations_raises_with_the_report() -> None:
    torch.manual_seed(0)
    model, _, optimizer, loader = parts(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)))
    with pytest.raises(AssertionError, match="Sequential breaks what must hold for any model:\n\nerror P11"):
        unstuck.assert_relations(
            model, lambda output, target: -nn.functional.cross_entropy(output, target), optimizer, loader, seconds=30
        )


def test_fixtures_fail_with_the_report(tmp_path: Path) -> None:
    (tmp_path / "test_training.py").write_text(TESTS, encoding="utf-8")
    done = run_pytest(tmp_path, "test_training.py")
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "unstuck relations of Sequential" in done.stdout
    assert "loss-points-away" in done.stdout
    assert "notebook.py" not in done.stdout
