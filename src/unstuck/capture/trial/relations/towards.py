"""Does the loss fall if predictions move a little towards their targets? Its own derivative says so, at its own values.

The derivative of what is back-propagated, along the line from each prediction to its target, in the space in which the
loss compares them, is below 0 for every example that counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unstuck.capture.observers.losses import class_axis
from unstuck.capture.trial.model_probe import Compared
from unstuck.events.losses import BINARY_LOSSES, CLASS_LOSSES
from unstuck.findings.relations import Answer, Relation, State

MOSTLY = 0.9
"""The share of all pull that goes one way."""
EVEN = 0.01
"""Examples whose weights differ by less than this share are weighted alike."""
FEWEST = 4
MANY = 16
SURE = 1e-4
"""Answers farther than that (squared) from their targets have a gradient in any precision."""
FAR = 1e-3
"""The mean distance from the targets, as a share of their spread or of 1, below which nothing is left to learn."""
ROUNDED = ("smooth_l1_loss", "huber_loss")
VALUES = ("mse_loss", "l1_loss", *ROUNDED)


class Pull(NamedTuple):
    """Where a loss pulls the predictions that it compares."""

    compared: Compared
    examples: int
    slope: float
    """The change of the loss per unit of the way from all predictions to their targets."""
    away: float
    """The share of all pull that leads away from the targets."""
    examples_away: int
    is_even: bool
    """Do all examples count alike?"""
    distance: float
    counted: int
    """Examples that count at all."""
    inverted: int | float | None
    """The one value that all targets that count have, if those that do not count have other ones."""
    one_side: int | float | None
    """The same where targets are yes or no, and no examples of the other one count."""


def pull_of(compared: Compared, loss: Tensor, weight: float) -> Pull | None:
    """None where the loss is not made from it, or what it compares is not known well enough."""
    line = line_of(compared)
    if line is None:
        return None
    try:
        (gradient,) = torch.autograd.grad(loss, compared.prediction, retain_graph=True, allow_unused=True)
    except RuntimeError:
        return None
    if gradient is None or not bool(torch.isfinite(gradient).all()):
        return None
    way, targets, axis = line
    gradient, way, targets = gradient.cpu().double(), way.cpu().double(), targets.cpu()  # some devices have no double
    products = gradient * way * weight
    squares = way.square()
    each = products.sum(axis) if axis is not None else products
    far = squares.sum(axis) if axis is not None else squares
    valid = _counting(compared, targets)
    usual = _usual(compared, far)
    each, far, targets, usual = each.flatten(), far.flatten(), targets.flatten(), usual.flatten()
    if valid is not None and valid.numel() == each.numel():
        kept = valid.flatten()
        each, far, targets, usual = each[kept], far[kept], targets[kept], usual[kept]
    total = float(each.abs().sum())
    if not each.numel():
        return None
    counted = each != 0
    clear = counted & (far > 1e-12)
    return Pull(
        compared,
        each.numel(),
        float(each.sum()),
        float(each.clamp_min(0).sum()) / total if total else 0.0,
        int((each > 0).sum()),
        bool(clear.any()) and _are_alike(compared, each[clear], usual[clear]),
        float(far.sqrt().mean()),
        int(counted.sum()),
        _only_value(targets, counted, far),
        _one_side(compared, targets, counted, far),
    )


def _usual(compared: Compared, far: Tensor) -> Tensor:
    """The pull of examples that count alike, up to one factor, by their squared distances from the targets."""
    if compared.name == "binary_cross_entropy":
        given = compared.prediction.detach().cpu().double()
        return far / (given * (1 - given)).clamp_min(1e-12)
    return far.sqrt() if compared.name in (*ROUNDED, "l1_loss") else far


def _are_alike(compared: Compared, each: Tensor, usual: Tensor) -> bool:
    """Do these examples count alike?"""
    weights = each / usual
    if compared.name in ROUNDED:  # the further, the more, up to a limit
        weights = weights.abs()[usual.argsort()]
        return bool((weights.diff() >= -EVEN * weights.max()).all()) and float(each.sign().std(correction=0)) == 0
    return float(weights.std(correction=0)) <= EVEN * abs(float(weights.mean()))


def line_of(compared: Compared) -> tuple[Tensor, Tensor, int | None] | None:
    """From predictions to targets, in the space in which they are compared; the targets; the axis of the classes."""
    given, target = compared.prediction.detach().float(), compared.target.detach()
    if target.requires_grad or not given.is_floating_point():
        return None
    name = compared.name
    if name in CLASS_LOSSES:
        axis = class_axis(given)
        if target.is_floating_point():
            return (target - given.softmax(axis), target.argmax(axis), axis) if target.shape == given.shape else None
        classes = given.shape[axis]
        known = (target >= 0) & (target < classes)
        right = F.one_hot(target.clamp(0, classes - 1).long(), classes).movedim(-1, axis).to(given.dtype)
        if right.shape != given.shape:
            return None
        way = right - given.softmax(axis) if name == "cross_entropy" else right
        return way * known.unsqueeze(axis), target, axis
    if target.shape != given.shape:
        return None
    if name in VALUES or name == "binary_cross_entropy":
        return target - given, target, None
    if name == "binary_cross_entropy_with_logits":
        return target - given.sigmoid(), target, None
    return None


def _counting(compared: Compared, targets: Tensor) -> Tensor | None:
    """Which targets are meant to count: not those of the class that the loss ignores."""
    is_class = compared.name in CLASS_LOSSES and not compared.target.is_floating_point()
    return (targets != compared.ignored) & (targets >= 0) if is_class else None


def _only_value(targets: Tensor, counted: Tensor, far: Tensor) -> int | float | None:
    """All targets that count are the same, and those that do not count differ, as with an inverted mask."""
    uncounted = ~counted & (far > 1e-12)
    if int(counted.sum()) < 2 or int(uncounted.sum()) < FEWEST:
        return None
    values, others = torch.unique(targets[counted]), torch.unique(targets[uncounted])
    alone = values.numel() == 1 and others.numel() > 2 and not bool((others == values[0]).any())
    return values[0].item() if alone else None


def _one_side(compared: Compared, targets: Tensor, counted: Tensor, far: Tensor) -> int | float | None:
    """Yes or no: does a mask leave out all that have the other answer?"""
    uncounted = ~counted & (far > SURE)  # answers that are sure and right have no gradient either
    if compared.name not in BINARY_LOSSES or min(int(counted.sum()), int(uncounted.sum())) < MANY:
        return None
    values, others = torch.unique(targets[counted]), torch.unique(targets[~counted])
    apart = values.numel() == others.numel() == 1 and {float(values[0]), float(others[0])} == {0.0, 1.0}
    return values[0].item() if apart else None


def answer(pulls: Sequence[Pull], samples: bool) -> Answer:
    """What the losses of the first backwards show together."""

    def is_(state: State, sentence: str, form: str = "", pull: Pull | None = None) -> Answer:
        measures: dict[str, bool | int | float | str | None] = {}
        if pull is not None:
            measures = {
                "loss": pull.compared.name,
                "examples": pull.examples,
                "counted": pull.counted,
                "away": pull.examples_away,
                "slope": pull.slope,
                "even": pull.is_even,
                "value": pull.inverted,
            }
        return Answer(
            relation=Relation.TARGETS,
            state=state,
            sentence=sentence,
            form=form,
            subject=pull.compared.name if pull else "",
            measures=measures,
            place=pull.compared.place if pull else None,
        )

    if not pulls:
        return is_(State.DOES_NOT_APPLY, "Not tested: the loss compares no output of a model with data in a known way.")
    inverted = next((pull for pull in pulls if pull.inverted is not None), None)
    if inverted is not None:
        return is_(
            State.BROKEN,
            f"Only {inverted.counted} of {inverted.examples} predictions count in the loss, and the target of all of "
            f"them is {inverted.inverted:g}; no prediction with another target counts.",
            "inverted-mask",
            inverted,
        )
    # Where one of several losses is only about what is there, another one says what is not.
    if all(pull.one_side is not None for pull in pulls):
        only = pulls[0]
        return is_(
            State.BROKEN,
            f"Only {only.counted} of {only.examples} predictions count in the loss, and the target of all of them is "
            f"{only.one_side:g}: every other one, whose target is {1 - (only.one_side or 0):g}, is left out.",
            "one-sided",
            only,
        )
    away = [pull for pull in pulls if pull.away >= MOSTLY and pull.counted]
    onward = [pull for pull in pulls if pull.away <= 1 - MOSTLY and pull.counted]
    if away and samples:
        return is_(State.DOES_NOT_APPLY, "Not tested: the program samples, and targets may be actions of its own.")
    if away and not any(pull.is_even for pull in away):
        return is_(
            State.DOES_NOT_APPLY,
            "Not tested: predictions are pushed away from their targets by weights that differ between examples, which "
            "may be returns of actions.",
        )
    if away and onward:
        return is_(State.DOES_NOT_APPLY, "Not tested: one loss is made to rise and another to fall, as of opponents.")
    if away:
        first = next(pull for pull in away if pull.is_even)
        return is_(
            State.BROKEN,
            f"Moving the predictions towards their targets raises the loss: for {first.examples_away} of "
            f"{first.counted} examples that count, by {first.slope:.3g} per unit of the way for all of them.",
            "away",
            first,
        )
    flat = [pull for pull in pulls if not pull.counted and pull.distance > FAR]
    if flat and not onward and len(flat) == len(pulls):
        first = flat[0]
        return is_(
            State.BROKEN,
            f"Moving the {first.examples} predictions towards their targets does not change the loss at all.",
            "flat",
            first,
        )
    if not onward:
        mixed = pulls[0]
        return is_(
            State.DOES_NOT_APPLY,
            f"Not tested: {mixed.examples_away} of {mixed.examples} predictions are pushed away from their targets, as "
            "by weights of both signs.",
        )
    best = onward[0]
    return is_(
        State.HOLDS,
        f"Moving the predictions towards their targets lowers {best.compared.name} for "
        f"{best.counted - best.examples_away} of {best.counted} examples that count.",
        pull=best,
    )
