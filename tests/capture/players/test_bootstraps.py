"""Whether targets count the value of a state, or are rewards alone."""

from __future__ import annotations

import random

import pytest

from unstuck.capture.players.bootstraps import _counts_the_next, _Row


@pytest.mark.parametrize(("scale", "discount", "counts"), [(1.0, 0.9, True), (1.0, 0.0, False), (0.1, 0.0, False)])
def test_rewards_alone(scale: float, discount: float, counts: bool) -> None:
    draw = random.Random(0)
    pairs = [(draw.gauss(0, 1), draw.gauss(0, 1)) for _ in range(60)]
    rows = [_Row(scale * reward + discount * value, reward, False, (value, value)) for reward, value in pairs]
    assert _counts_the_next(rows) is counts


def test_a_value_that_has_learned_the_rewards() -> None:
    rows = [_Row(reward, reward, False, (reward, reward)) for reward in map(float, range(60))]
    assert not _counts_the_next(rows)
