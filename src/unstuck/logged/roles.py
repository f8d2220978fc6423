"""What logged numbers are, by their names: there is no standard, so everyday names are recognized and no others."""

from __future__ import annotations

import re

import msgspec

from unstuck.logged import Log, Points

EVALUATION = {"val", "valid", "validation", "eval", "evaluation", "test", "dev"}
TRAINING = {"train", "training", "tr"}
SAMPLED = {"step", "batch", "iter", "iteration"}
"""Logged in steps; the same name with `epoch` is a mean over many of them."""
NOT_A_LOSS = {"scale", "scaler", "best", "min", "max", "lowest", "weight", "coef", "coefficient", "reg"}
ACCURACY = {"acc", "accuracy", "top1"}
GRADIENT = {"grad", "gradient", "gradients", "norm", "total", "unstuck"}
RATE = {"lr", "learningrate"}


class Roles(msgspec.Struct, frozen=True, kw_only=True):
    """The series that are understood, by name. Empty names were not found."""

    loss: str = ""
    rates: tuple[str, ...] = ()
    gradient: str = ""
    """The norm of all gradients."""
    scale: str = ""
    evaluation: str = ""
    """The loss there."""
    accuracy: str = ""

    @property
    def used(self) -> set[str]:
        """All of them."""
        return {self.loss, self.gradient, self.scale, self.evaluation, self.accuracy, *self.rates} - {""}


def roles_of(log: Log) -> Roles:
    """By the words in each name; of several candidates the one with the fewest other words, then the longest."""
    losses: list[tuple[int, int, str]] = []
    evaluations: list[tuple[int, int, str]] = []
    accuracies: list[tuple[int, int, str]] = []
    gradients: list[tuple[int, int, str]] = []
    scales: list[str] = []
    rates: list[str] = []
    for name, points in log.series.items():
        words = _words(name)
        rest = words - TRAINING - SAMPLED - EVALUATION - {"loss", "unstuck", "epoch", "total"}
        rank = (len(rest) + ("epoch" in words), -len(points), name)
        if words & RATE or {"learning", "rate"} <= words:
            rates.append(name)
        elif "scale" in words and words & {"loss", "grad", "scaler", "amp"}:
            scales.append(name)
        elif "norm" in words and words & {"grad", "gradient", "gradients"}:
            gradients.append((len(words - GRADIENT), -len(points), name))
        elif "loss" in words and not words & NOT_A_LOSS:
            (evaluations if words & EVALUATION else losses).append(rank)
        elif words & ACCURACY and words & EVALUATION:
            accuracies.append(rank)
    return Roles(
        loss=_only(losses),
        rates=tuple(rates),
        gradient=_first([one for one in gradients if one[0] <= 2]),
        scale=scales[0] if scales else "",
        evaluation=_first(evaluations),
        accuracy=_first(accuracies),
    )


def _only(ranked: list[tuple[int, int, str]]) -> str:
    """The first, unless others with a word of their own are as likely: of a policy's and a value's none is the loss."""
    first = min(ranked, default=None)
    parts = [one for one in ranked if first is not None and one[0] == first[0] > 0]
    return _first(ranked) if len(parts) < 2 else ""


def _first(ranked: list[tuple[int, int, str]]) -> str:
    return min(ranked)[2] if ranked else ""


def _words(name: str) -> set[str]:
    """`train/gradNorm_step` is train, grad, norm, step."""
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    found = set(re.findall(r"[a-z]+\d*", apart.lower()))
    if "gradnorm" in found:
        found |= {"grad", "norm"}
    return found


def points_of(log: Log, name: str) -> Points:
    """The numbers of a series; none of one that was not found."""
    return log.series.get(name, [])
