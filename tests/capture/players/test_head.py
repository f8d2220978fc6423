"""What a backward will ask of log-probabilities, entropies and values is what autograd asks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from unstuck.capture.players.head import Head


def pulls(loss: Tensor) -> Tensor:
    head = Head(loss.grad_fn)
    found = head.pulls([one.node for one in head.log_probabilities])
    return torch.cat([one.sign * found[one.node].reshape(-1) for one in head.log_probabilities])


def scores() -> Tensor:
    torch.manual_seed(0)
    out: Tensor = nn.Linear(4, 3)(torch.randn(6, 4))
    return out


WEIGHTS = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 0.25])


def test_categorical() -> None:
    chosen = Categorical(logits=scores()).log_prob(torch.tensor([0, 1, 2, 0, 1, 2]))
    loss = -(chosen * WEIGHTS).mean()
    assert torch.allclose(pulls(loss), -WEIGHTS / 6)
    found = Head(loss.grad_fn).log_probabilities[0].actions
    assert found is not None
    assert found.tolist() == [0, 1, 2, 0, 1, 2]


def test_ratio_with_limits() -> None:
    chosen = Categorical(logits=scores()).log_prob(torch.zeros(6, dtype=torch.long))
    ratio = (chosen - chosen.detach()).exp()
    loss = -torch.min(ratio * WEIGHTS, ratio.clamp(0.8, 1.2) * WEIGHTS).mean()
    (wanted,) = torch.autograd.grad(loss, chosen, retain_graph=True)
    assert torch.allclose(pulls(loss), wanted)


def test_one_by_one_in_their_order() -> None:
    table = scores()
    actions = [2, 1, 0, 1, 2, 0]
    chosen = [
        Categorical(probs=row.softmax(0)).log_prob(torch.tensor(a)) for row, a in zip(table, actions, strict=True)
    ]
    loss = sum((-one * weight for one, weight in zip(chosen, WEIGHTS, strict=True)), torch.zeros(()))
    assert torch.allclose(pulls(loss), -WEIGHTS)
    known = [one.actions for one in Head(loss.grad_fn).log_probabilities]
    assert [int(each) for each in known if each is not None] == actions


def test_logarithm_of_a_picked_probability() -> None:
    shares = scores().softmax(1)
    loss = (torch.log(shares[torch.arange(6), torch.tensor([0, 1, 2, 2, 1, 0])]) * WEIGHTS).sum()
    assert torch.allclose(pulls(loss), WEIGHTS)


def test_cross_entropy_one_by_one() -> None:
    loss = (F.cross_entropy(scores(), torch.tensor([0, 1, 2, 2, 1, 0]), reduction="none") * WEIGHTS).mean()
    assert torch.allclose(pulls(loss), -WEIGHTS / 6)


def test_gaussian() -> None:
    chosen = Normal(scores(), 0.5).log_prob(torch.randn(6, 3))
    loss = -(chosen.sum(1) * WEIGHTS).mean()
    assert torch.allclose(pulls(loss).reshape(6, 3)[:, 0], -WEIGHTS / 6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_entropy(sign: float) -> None:
    policy = Categorical(logits=scores())
    loss = -(policy.log_prob(torch.zeros(6)) * WEIGHTS).mean() + sign * 0.01 * policy.entropy().mean()
    head = Head(loss.grad_fn)
    (pull,) = head.pulls(head.entropies).values()
    assert float(pull.sum()) == pytest.approx(-sign * 0.01)  # of `p * log p`, the negative of the entropy


def test_expected_values_are_no_entropy() -> None:
    policy, values = scores(), torch.randn(6, 3)
    loss = (policy.softmax(1) * (0.1 * policy.log_softmax(1) - values)).sum(1).mean()
    assert Head(loss.grad_fn).entropies == []


@pytest.mark.parametrize("by_hand", ["value first", "target first", "function"])
def test_surprise(by_hand: str) -> None:
    values, targets = scores()[:, 0], torch.arange(6.0)
    loss = {
        "value first": lambda: (values - targets).pow(2).mean(),
        "target first": lambda: ((targets - values) ** 2).mean(),
        "function": lambda: F.smooth_l1_loss(values, targets),
    }[by_hand]()
    (found,) = Head(loss.grad_fn).surprises
    assert torch.allclose(found.above, targets - values)


def test_a_graph_with_hooks_on_saved_tensors_is_left_alone() -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        loss = -(Categorical(logits=scores()).log_prob(torch.zeros(6)) * WEIGHTS).mean()
    head = Head(loss.grad_fn)
    assert head.pulls([one.node for one in head.log_probabilities]) == {}


def test_the_backward_still_works() -> None:
    layer = nn.Linear(4, 3)
    loss = -(Categorical(logits=layer(torch.ones(6, 4))).log_prob(torch.zeros(6)) * WEIGHTS).mean()
    pulls(loss)
    assert layer.weight.grad is None
    loss.backward()
    assert layer.weight.grad is not None
