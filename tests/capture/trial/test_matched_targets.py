"""Which target belongs to which example and position."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unstuck.capture.trial.matched_targets import Matching, Obstacle, compared, matched


def match(
    loss: str, prediction: Tensor, target: Tensor, output: Tensor, *inputs: Tensor, crossed: bool = False
) -> Matching | Obstacle:
    found = compared(loss, prediction, target, -100, [output], shapes_known=False)
    assert found is not None
    return matched(found, inputs, crossed)


def test_one_class_for_each_example() -> None:
    x = torch.randn(8, 5)
    output = nn.Linear(5, 3)(x)
    found = match("cross_entropy", output, torch.tensor([0, 2, 1, 1, 0, 2, 2, 0]), output, x)
    assert isinstance(found, Matching)
    assert (found.layout.size, found.layout.positions) == (8, ())
    assert found.items.flatten().tolist() == list(range(8))


def test_next_tokens_flattened_after_a_slice() -> None:
    ids = torch.randint(9, (4, 7))
    output = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 9))(ids)
    found = match("cross_entropy", output[:, :-1].reshape(-1, 9), ids[:, 1:].reshape(-1), output, ids)
    assert isinstance(found, Matching)
    assert found.layout.positions == (7,)
    assert found.layout.is_causal
    assert found.items[1, 2] == 8
    assert (found.items[:, -1] == -1).all()


def test_sequences_with_the_batch_on_the_second_axis() -> None:
    ids, target = torch.randint(9, (7, 4)), torch.randint(9, (7, 4))
    output = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 9))(ids)
    found = match("cross_entropy", output.view(-1, 9), target.view(-1), output, ids, crossed=True)
    assert isinstance(found, Matching)
    assert (found.layout.size, found.layout.positions, found.layout.sequence_first) == (4, (7,), True)
    assert target.view(-1)[found.items[3, 5]] == target[5, 3]


def test_masks_have_a_target_for_each_pixel() -> None:
    x = torch.randn(2, 3, 6, 5)
    output = nn.Conv2d(3, 1, 1)(x)
    found = match("binary_cross_entropy_with_logits", output, torch.rand(2, 1, 6, 5).round(), output, x)
    assert isinstance(found, Matching)
    assert found.layout.positions == (6, 5)


def test_nodes_of_a_graph_that_have_a_label() -> None:
    x, mask = torch.randn(10, 4), torch.arange(10) % 3 == 0
    output = nn.Linear(4, 2)(x)
    found = match("cross_entropy", output[mask], torch.tensor([0, 1, 1, 0]), output, x)
    assert isinstance(found, Matching)
    assert found.items.flatten().tolist() == [0, -1, -1, 1, -1, -1, 2, -1, -1, 3]


def test_no_target_to_read() -> None:
    x = torch.randn(40, 8)
    output = nn.Linear(8, 8)(x)
    assert match("mse_loss", output, x.clone(), output, x) is Obstacle.COPIES
    scores = output @ output.T
    assert match("cross_entropy", scores, torch.arange(40), output, x) is Obstacle.PLACES
