"""How well a target can be read from features of its example: ridge regression in closed form, judged on held-out
examples, against the same with targets exchanged between the examples.

Two readers are tried, a linear one and one with a Gaussian kernel, and the better one counts. The same is done for
exchanged targets, so that chance is known for the sizes at hand.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FOLDS = 5
EXCHANGES = 10
LINEAR = (0.3, 10.0)
"""Ridge penalties, where the mean square of an example's features is 1."""
GAUSSIAN = (0.3,)
LARGEST = 5.0
"""Standard deviations from which on a feature counts no more."""
ALIKE = 1e-5
"""A feature that varies by less than this share of its scale varies by rounding alone."""
CERTAIN = 4.0
"""Standard deviations above the mean of exchanged targets that chance does not reach."""
SMALLEST = 0.02
"""The share of a target below which it is not called readable."""
STEADY = 0.003
"""The least that exchanged targets are taken to vary by."""


class Reading(NamedTuple):
    """What a reader achieved on examples that it was not fitted on."""

    score: float
    """The share of the target's variance that it predicts; below 0 if it does worse than the mean."""
    chance: float
    """A share that exchanged targets do not reach."""
    error: float
    """Standard error of `score` over the parts of the examples."""
    predictions: Tensor
    """As `targets`, less their mean."""

    @property
    def is_readable(self) -> bool:
        """Is it more than chance?"""
        return self.score > self.chance


class Split(NamedTuple):
    """Which items are held out together, and how targets are exchanged. The same for all that is compared."""

    order: Tensor
    """Items by fold."""
    sizes: list[int]
    exchanges: list[Tensor]


def split(groups: Tensor, width: int) -> Split:
    """Items of one group are held out together. `width` items in a row are those of one example: their targets stay
    together when they are exchanged, unless some are missing (then it is 1)."""
    generator = torch.Generator().manual_seed(0)
    kinds, which = torch.unique(groups, return_inverse=True)
    fold_of = torch.randperm(len(kinds), generator=generator) % FOLDS
    folds = fold_of[which]
    order = folds.argsort(stable=True)
    sizes = [size for size in torch.bincount(folds, minlength=FOLDS).tolist() if size]
    examples = len(groups) // width
    within = torch.arange(width)
    exchanges = [
        (torch.randperm(examples, generator=generator)[:, None] * width + within).flatten() for _ in range(EXCHANGES)
    ]
    return Split(order, sizes, exchanges)


def standardised(features: Tensor) -> Tensor:
    """Each feature with mean 0 and deviation 1, or 0 if it does not vary but for rounding."""
    features = features.float()
    scale = features.square().mean().sqrt()
    deviation, mean = torch.std_mean(features, 0, correction=0)
    varies = deviation > ALIKE * (mean.abs() + scale)
    table = (features - mean)[:, varies] / deviation[varies]
    return table.clamp(-LARGEST, LARGEST)


def read(features: Tensor, targets: Tensor, parts: Split) -> Reading:
    """Read `targets` (items x numbers) from `features` (items x features)."""
    wanted = targets.float() - targets.float().mean(0)
    table = standardised(features)[parts.order]
    if table.shape[1] == 0 or not bool(torch.isfinite(table).all()):
        return Reading(0.0, SMALLEST, 0.0, torch.zeros_like(wanted))
    columns = torch.cat([wanted, *(wanted[exchange] for exchange in parts.exchanges)], 1)[parts.order]
    blocks = len(parts.exchanges) + 1
    # Two widths of Gaussian would be better, but each costs an inverse.
    gram = table @ table.T
    gram = gram / gram.diagonal().mean().clamp(min=1e-12)
    kernels = [(gram, LINEAR), (_gaussian(gram), GAUSSIAN)]
    best: list[float] = [-float("inf")] * blocks
    chosen = torch.zeros_like(columns[:, : wanted.shape[1]])
    for kernel, penalties in kernels:
        for penalty in penalties:
            left = _left_out(kernel, penalty, columns, parts.sizes)
            if left is None:
                continue
            scores = _explained(left, columns, blocks)
            if scores[0] > best[0]:
                chosen = left[:, : wanted.shape[1]]
            best = [max(pair) for pair in zip(best, scores, strict=True)]
    null = torch.tensor(best[1:])
    spread = max(STEADY, float(null.std())) if len(null) > 1 else STEADY
    chance = max(SMALLEST, float(null.mean()) + CERTAIN * spread)
    own = columns[:, : wanted.shape[1]]
    by_fold = torch.tensor(
        [
            1 - float(rest.square().sum() / whole.square().sum().clamp(min=1e-12))
            for rest, whole in zip(torch.split(chosen, parts.sizes), torch.split(own, parts.sizes), strict=True)
        ]
    )
    error = float(by_fold.std() / len(by_fold) ** 0.5) if len(by_fold) > 1 else 0.0
    predictions = torch.empty_like(own)
    predictions[parts.order] = own - chosen
    return Reading(best[0], chance, error, predictions)


def _gaussian(gram: Tensor) -> Tensor:
    squares = gram.diagonal()
    distances = (squares[:, None] + squares[None] - 2 * gram).clamp(min=0)
    typical = distances.median().clamp(min=1e-12)
    kernel = torch.exp(-distances / typical)
    kernel = kernel - kernel.mean(0, keepdim=True) - kernel.mean(1, keepdim=True) + kernel.mean()
    return kernel / kernel.diagonal().mean().clamp(min=1e-12)


def _left_out(kernel: Tensor, penalty: float, columns: Tensor, sizes: list[int]) -> Tensor | None:
    """What is left of each item's target after a reader fitted on the other folds, in closed form."""
    with_penalty = kernel + penalty * torch.eye(len(kernel))
    factor, failed = torch.linalg.cholesky_ex(with_penalty)
    if int(failed):
        return None
    inverse = torch.cholesky_inverse(factor)
    solved = inverse @ columns
    parts, begin = [], 0
    for size in sizes:
        own = slice(begin, begin + size)
        parts.append(torch.linalg.solve(inverse[own, own], solved[own]))
        begin += size
    return torch.cat(parts)


def _explained(left: Tensor, columns: Tensor, blocks: int) -> list[float]:
    rest = left.square().sum(0).reshape(blocks, -1).sum(1)
    whole = columns.square().sum(0).reshape(blocks, -1).sum(1)
    scores: list[float] = (1 - rest / whole.clamp(min=1e-12)).tolist()
    return scores
