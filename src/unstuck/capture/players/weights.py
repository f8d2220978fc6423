"""Which returns, computed from the rewards of an environment, the weights of its actions are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unstuck.capture.players.moves import Move
from unstuck.events import Weighting

FEWEST = 8
"""Actions: fewer weights fit too much."""
EXACT = 1e-6
"""The part of the variance that a fit leaves, from which on it is not rounding."""
_DISCOUNTS = (1.0, 0.999, 0.998, 0.995, 0.99, 0.985, 0.98, 0.97, 0.96, 0.95, 0.93, 0.92, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)


class Fit(NamedTuple):
    """What the weights are."""

    weighting: Weighting
    reverse: bool
    discount: float


def fit(pulls: Tensor, moves: Sequence[Move]) -> Fit | None:
    """The first explanation that leaves nothing open, the right ones before the wrong ones; None if there is none."""
    if len(pulls) < FEWEST or len(pulls) != len(moves):
        return None
    pulls = pulls.double()
    ends = [number for number, move in enumerate(moves, 1) if move.over or number == len(moves)]
    rewards = torch.tensor([move.reward for move in moves], dtype=torch.float64)
    to_go = _to_go(rewards, ends)
    right = [(Weighting.TO_GO, family) for family in _right(rewards, to_go, ends)]
    against = [(Weighting.PAST, _past(rewards, ends)), (Weighting.REVERSED, _turned(to_go, ends))]
    beyond = [(Weighting.BEYOND, _to_go(rewards, [len(moves)]))] if len(ends) > 1 else []
    for shifted in (False, True):  # without a baseline first: it leaves less room
        found = [
            Fit(kind, slope < 0, _DISCOUNTS[place])
            for kind, family in (*right, *against, *beyond)
            for place, slope in _fitting(pulls, family, shifted)
            # Weights that shrink with time are usual for no one; with a minus they look like those of the past.
            if slope > 0 or family is not right[-1][1]
        ]
        found.sort(key=lambda one: (one.weighting is not Weighting.TO_GO, one.reverse))
        if found and (found[0].weighting is Weighting.TO_GO or not found[0].reverse):
            return found[0]
    return None


def _right(rewards: Tensor, to_go: Tensor, ends: Sequence[int]) -> list[Tensor]:
    """Rewards to go; the return of the whole episode; the reward itself; rewards to go, less with time."""
    whole, damped = to_go.clone(), to_go.clone()
    begin = 0
    discounts = torch.tensor(_DISCOUNTS, dtype=torch.float64)[:, None]
    for end in ends:
        whole[:, begin:end] = to_go[:, begin : begin + 1]
        damped[:, begin:end] *= discounts ** torch.arange(end - begin)
        begin = end
    return [to_go, whole, rewards[None].expand_as(to_go), damped]


def _to_go(rewards: Tensor, ends: Sequence[int]) -> Tensor:
    """What was earned from each move on, for each discount."""
    discounts = torch.tensor(_DISCOUNTS, dtype=torch.float64)
    found = torch.zeros(len(discounts), len(rewards), dtype=torch.float64)
    last = set(ends)
    running = torch.zeros_like(discounts)
    for place in reversed(range(len(rewards))):
        running = rewards[place] + discounts * (0.0 if place + 1 in last else running)
        found[:, place] = running
    return found


def _past(rewards: Tensor, ends: Sequence[int]) -> Tensor:
    found = torch.zeros(len(_DISCOUNTS), len(rewards), dtype=torch.float64)
    begin = 0
    for end in ends:
        part = _to_go(rewards[begin:end].flip(0), [end - begin])
        found[:, begin:end] = part.flip(1)
        begin = end
    return found


def _turned(values: Tensor, ends: Sequence[int]) -> Tensor:
    found = values.clone()
    begin = 0
    for end in ends:
        found[:, begin:end] = values[:, begin:end].flip(1)
        begin = end
    return found


def _fitting(pulls: Tensor, family: Tensor, shifted: bool) -> list[tuple[int, float]]:
    """The discounts for which the weights are a multiple of these returns, and whether a positive one."""
    wanted = pulls - pulls.mean() if shifted else pulls
    given = family - family.mean(1, keepdim=True) if shifted else family
    size, sizes = float(wanted.square().sum()), given.square().sum(1)
    if size == 0 or size <= 1e-12 * float(pulls.square().sum()):
        return []
    dots = given @ wanted
    left = 1 - dots.square() / (sizes * size).clamp_min(1e-300)
    # Where all returns are the same, only the sign of the weights is left, and a baseline decides that.
    flat = family.var(1) <= 1e-6 * family.square().mean(1)
    return [(place, float(dots[place])) for place in range(len(left)) if left[place] < EXACT and not flat[place]]
