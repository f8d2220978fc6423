"""Well-known losses as functions of the one or two numbers one reasons about, to be looked at one at a time.

    unstuck surface examples/surface/losses.py:focal --out focal.html

The ranges in the annotations are where each one is interesting.
"""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(right: Annotated[Tensor, -6, 6], wrong: Annotated[Tensor, -6, 6]) -> Tensor:
    """Cross-entropy of two classes: the score of the right one against that of the wrong one."""
    return torch.logaddexp(right, wrong) - right


def focal(logit: Annotated[Tensor, -6, 6], gamma: float = 2.0) -> Tensor:
    """Cross-entropy that turns away from what is already right (Lin et al., 2017)."""
    return F.sigmoid(-logit) ** gamma * F.softplus(-logit)


def hinge(margin: Annotated[Tensor, -3, 3]) -> Tensor:
    """Nothing to pay once the margin is met."""
    return torch.relu(1 - margin)


def huber(error: Annotated[Tensor, -3, 3]) -> Tensor:
    """A square near zero, a straight line further out."""
    return F.huber_loss(error, torch.zeros_like(error), reduction="none")


def log_cosh(error: Annotated[Tensor, -5, 5]) -> Tensor:
    """As Huber's, without a seam; written so that it does not overflow."""
    return error + F.softplus(-2 * error) - torch.log(torch.tensor(2.0))


def info_nce(positive: Annotated[Tensor, -1, 1], negative: Annotated[Tensor, -1, 1]) -> Tensor:
    """One positive among eight negatives of the same similarity, at temperature 0.1 (van den Oord et al., 2018)."""
    return F.softplus((negative - positive) / 0.1 + torch.log(torch.tensor(8.0)))


def triplet(d_positive: Annotated[Tensor, 0, 2], d_negative: Annotated[Tensor, 0, 2]) -> Tensor:
    """The negative is to be further away than the positive, by a margin (Schroff et al., 2015)."""
    return torch.relu(d_positive - d_negative + 0.2)


def collapsing_triplet(positive: Annotated[Tensor, -1, 1], negative: Annotated[Tensor, -1, 1]) -> Tensor:
    """The same over the embeddings themselves, the anchor at 0: where all three coincide nothing moves."""
    return F.softplus(positive**2 - negative**2 + 0.2)


def product_barrier(violation: Annotated[Tensor, -1, 1], weight: Annotated[Tensor, -1, 1]) -> Tensor:
    """A penalty times a learnt weight: each gets a gradient only in proportion to the other."""
    return violation * weight


def dpo(chosen: Annotated[Tensor, -10, 10], rejected: Annotated[Tensor, -10, 10]) -> Tensor:
    """Direct preference optimisation over two log-ratios, beta 0.1 (Rafailov et al., 2023)."""
    return -F.logsigmoid(0.1 * (chosen - rejected))


def gradient_penalty(gradient_x: Annotated[Tensor, -2, 2], gradient_y: Annotated[Tensor, -2, 2]) -> Tensor:
    """What a Wasserstein critic pays for a gradient whose norm is not 1 (Gulrajani et al., 2017)."""
    return (torch.sqrt(gradient_x**2 + gradient_y**2) - 1) ** 2


def dice(probability: Annotated[Tensor, 0, 1], background: Annotated[Tensor, 0, 1]) -> Tensor:
    """Soft Dice over one pixel of the object and one of the background."""
    return 1 - 2 * probability / (probability + background + 1)


def dice_without_object(first: Annotated[Tensor, 0, 1], second: Annotated[Tensor, 0, 1]) -> Tensor:
    """Soft Dice over two pixels of an image without the object: no overlap, whatever is predicted."""
    target = torch.zeros_like(first)
    return 1 - 2 * (first * target + second * target) / (first + second + target)


def kl(p: Annotated[Tensor, 0, 1], q: Annotated[Tensor, 0, 1]) -> Tensor:
    """Kullback-Leibler divergence of two coins, as one writes it down."""
    return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()


def guarded_kl(p: Annotated[Tensor, 0, 1], q: Annotated[Tensor, 0, 1]) -> Tensor:
    """The same with both probabilities kept inside (0, 1) without losing their gradient."""
    p, q = 0.002 + 0.996 * p, 0.002 + 0.996 * q
    return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
