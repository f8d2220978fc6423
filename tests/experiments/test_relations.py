"""Relations: asked of unmodified scripts and of live objects."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import unstuck
from unstuck.capture.trial.model_probe import Called, Compared
from unstuck.capture.trial.relations.inputs import Exchange
from unstuck.capture.trial.relations.loop_probe import Reply, Training
from unstuck.capture.trial.relations.loop_relations import NO_TIME, Loop, of_inputs, of_order
from unstuck.capture.trial.relations.towards import Pull, answer as towards_answer, pull_of
from unstuck.diagnose.script import diagnose
from unstuck.experiments.relations import reconciled
from unstuck.findings.relations import Answer, Relation, State, worst
from unstuck.findings.results import Experiment, ExperimentVerdict, ProofVerdict
from unstuck.testing.experiments import experiment_on
from unstuck.trials.runner import Program

GAN = """
import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
first = torch.optim.Adam(D.parameters(), lr=1e-3)
second = torch.optim.Adam(G.parameters(), lr=1e-3)
bce = nn.BCEWithLogitsLoss()
data = torch.randn(1000, 2) * 0.3 + torch.tensor([2.0, -1.0])
for _ in range(60):
    real = data[torch.randint(1000, (64,))]
    fake = G(torch.randn(64, 4))
    first.zero_grad()
    loss = bce(D(real), torch.ones(64, 1)) + bce(D(fake.detach()), torch.zeros(64, 1))
    loss.backward()
    first.step()
    second.zero_grad()
    bce(D(fake), torch.ones(64, 1)).backward()
    second.step()
"""

GRAPH = """
import torch
from torch import nn

torch.manual_seed(0)
nodes, edges = torch.randn(200, 8), torch.randint(200, (2, 1000))
labels = (nodes[:, 0] + torch.zeros(200).index_add(0, edges[1], nodes[edges[0], 0]) > 0).long()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 2)

    def forward(self, x, edges):
        h = torch.relu(self.first(x))
        return self.last(h + torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]))


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(60):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(nodes, edges), labels)
    loss.backward()
    optimizer.step()
"""

AGENT = """
import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for _ in range(60):
    states = torch.randn(32, 4)
    actions = torch.distributions.Categorical(logits=policy(states)).sample()
    rewards = -(actions != (states[:, 0] > 0).long()).float() - 0.1
    loss = (nn.functional.cross_entropy(policy(states), actions, reduction="none") * rewards).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def state_of(done: Experiment, relation: Relation) -> State | None:
    found = worst(done.relations, relation)
    return found.state if found else None


def test_each_player_of_a_game_descends_on_its_own_loss() -> None:
    done = experiment_on(GAN, "relations")
    own = [answer for answer in done.relations if answer.relation is Relation.DESCENT]
    assert [answer.state for answer in own] == [State.HOLDS, State.HOLDS]
    for answer in own:
        assert answer.measures["real"] == pytest.approx(answer.measures["promised"], rel=0.05)
    assert state_of(done, Relation.INPUTS) is State.HOLDS
    assert done.verdict is ExperimentVerdict.HOLDING


def test_what_a_model_does_with_its_inputs_is_not_frozen_with_the_batch() -> None:
    done = experiment_on(GRAPH, "relations")
    assert state_of(done, Relation.INPUTS) is State.HOLDS
    assert state_of(done, Relation.ORDER) is State.DOES_NOT_APPLY  # the order of edges is arbitrary


def test_actions_of_an_agent_are_not_targets() -> None:
    done = experiment_on(AGENT, "relations")
    assert state_of(done, Relation.TARGETS) is State.DOES_NOT_APPLY
    assert done.verdict is ExperimentVerdict.HOLDING


def pull(loss: str, weights: torch.Tensor) -> Pull:
    prediction = torch.randn(32, 3).sigmoid().requires_grad_()
    target = torch.randint(3, (32,)) if loss in ("cross_entropy", "nll_loss") else torch.rand(32, 3).round()
    each = getattr(nn.functional, loss)(prediction, target, reduction="none").reshape(32, -1)
    compared = Compared(loss, prediction, target, -100, Called(nn.Identity(), (), {}), None, None)
    found = pull_of(compared, (each * weights[:, None]).mean(), 1.0)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "loss",
    ["cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"],
)
def test_a_wrong_sign_is_the_same_for_all_examples(loss: str) -> None:
    """Returns of actions are not, and may all be negative."""
    torch.manual_seed(0)
    wrong, returns = pull(loss, -torch.ones(32)), pull(loss, -torch.rand(32) - 0.1)
    assert towards_answer([wrong], samples=False).form == "away"
    assert towards_answer([returns], samples=False).state is State.DOES_NOT_APPLY


@pytest.mark.parametrize("sign", [1, -1])
def test_live_objects_are_asked_and_left_as_they_were(sign: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(400, 6)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 32, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    answer = unstuck.relations(model, lambda out, y: sign * nn.functional.cross_entropy(out, y), optimizer, loader)
    assert answer.verdict == ("holding" if sign > 0 else "broken")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not optimizer.state
    assert [finding.code for finding in answer.findings] == ([] if sign > 0 else ["P11"])


def test_targets_of_who_plays_may_be_its_actions() -> None:
    away = Answer(relation=Relation.TARGETS, state=State.BROKEN, sentence="", form="away")
    assert reconciled((away,))[0].state is State.BROKEN
    assert reconciled((away,), plays=True)[0].state is State.DOES_NOT_APPLY


def test_what_was_not_asked_does_not_hold() -> None:
    training = Training(torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1), None)
    loop = Loop(training, Reply((1.0,), [], (), []), Reply((1.0,), [], (), []))
    whole, order = Exchange((0, 0), 0, "x", "Net"), Exchange((0, 0), 0, "x", "Net", order=(1, 0), size=2)
    assert of_inputs(loop, [whole], [], []).sentence.endswith(NO_TIME)
    assert of_order(loop, [order], [], []).sentence.endswith(NO_TIME)
    assert of_inputs(loop, [whole], [whole], []).sentence == (
        "Exchanged between examples, `x` changes the loss or its gradient."
    )
    assert of_order(loop, [order], [order], []).state is State.HOLDS


def test_an_objective_that_is_maximized_may_rise() -> None:
    def answer(relation: Relation, form: str) -> Answer:
        return Answer(relation=relation, state=State.BROKEN, sentence="", form=form, measures={"maximizes": True})

    uphill, away = answer(Relation.DESCENT, "uphill"), answer(Relation.TARGETS, "away")
    assert [one.state for one in reconciled((uphill, away))] == [State.HOLDS, State.HOLDS]
    assert [one.state for one in reconciled((uphill,))] == [State.DOES_NOT_APPLY]
    holding = Answer(relation=Relation.TARGETS, state=State.HOLDS, sentence="")
    assert reconciled((uphill, holding))[0].state is State.BROKEN


UPHILL = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(500, 6)
y = x @ torch.randn(6, 1)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, maximize=True)
for _ in range(200):
    rows = torch.randint(500, (32,))
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_diagnosis_goes_on_where_a_confirmed_remedy_only_slows_the_rise(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UPHILL)
    with contextlib.chdir(tmp_path):
        done = diagnose(Program("train.py"), tmp_path / "runs", 120.0, lambda text: None, lambda variant, folder: None)
    proof = next(proof for proof in done.proofs if proof.code == "P13")
    assert proof.verdict is ProofVerdict.CONFIRMED
    assert done.principal is not None
    assert done.principal.lead.code == "P13"
