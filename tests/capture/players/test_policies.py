"""What is kept of the regressions of a run, and which actions are compared with which."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from unstuck.capture.guard import Guard
from unstuck.capture.places import Places
from unstuck.capture.players.draws import Draws
from unstuck.capture.players.head import LARGEST_SURPRISE, Head
from unstuck.capture.players.moves import Move, Moves
from unstuck.capture.players.policies import Policies, _differing
from unstuck.capture.window import Watch
from unstuck.events import Event


@pytest.fixture
def watch() -> Watch:
    told: list[Event] = []
    notes: list[str] = []
    return Watch(told.append, Guard(notes.append), Places())


def regression(rows: int = 6) -> Head:
    return Head((nn.Linear(2, 1)(torch.ones(rows, 2)) - torch.ones(rows, 1)).pow(2).mean().grad_fn)


def policy_loss(rows: int = 6) -> Tensor:
    return -Categorical(logits=nn.Linear(2, 3)(torch.ones(rows, 2))).log_prob(torch.zeros(rows)).mean()


def test_nothing_is_kept_of_a_regression_without_an_agent(watch: Watch) -> None:
    policies = Policies(watch, Moves(), Draws(watch))
    policies.backward(regression(), None)
    assert policies._surprise is None


def test_what_is_kept_for_an_agent_goes_after_a_few_windows(watch: Watch) -> None:
    policies = Policies(watch, Moves(), Draws(watch))
    policies.backward(Head(policy_loss(4).grad_fn), None)
    policies.backward(regression(), None)
    assert policies._surprise is not None
    watch.window.number += 3
    policies.window_began()
    assert policies._surprise is not None
    watch.window.number += 1
    policies.window_began()
    assert policies._surprise is None


def test_large_regressions_are_left_alone() -> None:
    assert regression(LARGEST_SURPRISE).surprises
    assert not regression(LARGEST_SURPRISE + 1).surprises


@pytest.mark.parametrize(
    ("trained", "differing"),
    [
        ([0, 0, 0, 1, 1, 2], 0),
        ([2, 2, 2, 0, 0, 1], 0),  # renamed
        ([1, 0, 2, 0, 1, 0], None),  # shuffled
        ([1, 2, 0, 2, 1, 2], None),  # both
        ([0, 1, 0, 1, 0, 1], 3),
    ],
)
def test_actions_in_another_order_are_not_other_actions(trained: list[int], differing: int | None) -> None:
    chosen = Categorical(logits=nn.Linear(2, 3)(torch.ones(6, 2))).log_prob(torch.tensor(trained))
    moves = [Move(float(action), 1.0, False, False) for action in (0, 0, 0, 1, 1, 2)]
    assert _differing(Head(chosen.sum().grad_fn).log_probabilities, moves) == differing
