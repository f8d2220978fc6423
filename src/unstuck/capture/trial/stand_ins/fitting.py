"""How outputs and targets fit each other: the loss for them, and what the outputs are worth, whatever the loss is."""

from __future__ import annotations

import contextlib
import math
from enum import StrEnum
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unstuck.capture.measure.answers import Answers
from unstuck.capture.measure.tensors import is_whole

LARGEST = 2**22
FEW = 8
"""Scores that lie between 0 and 1 by chance."""
SMALLEST = 1e-7
RECENT = 0.25
"""The share of the calls, the latest ones, that a score is about."""
FEWEST_RECENT = 20
MOST_CALLS = 20_000


class Kind(StrEnum):
    """What targets are."""

    CLASSES = "classes"
    BINARY = "binary"
    NUMBERS = "numbers"


class Fit(NamedTuple):
    """Outputs next to their targets: scores in rows and one class for each, or two tensors of the same shape."""

    kind: Kind
    scores: Tensor
    target: Tensor
    counted: Tensor | None = None
    """Of all targets, flat, those that count, if others were left out."""
    are_shares: bool = False
    """Are the scores probabilities?"""


LOSS_OF = {
    Kind.CLASSES: "cross_entropy",
    Kind.BINARY: "binary_cross_entropy_with_logits",
    Kind.NUMBERS: "mse_loss",
}


def fit(output: Tensor, target: Tensor, ignored: int = -100, are_shares: bool = False) -> Fit | None:
    """How they fit; None if they do not. `are_shares`: the outputs are known to be probabilities."""
    found = _fit(output, target, ignored)
    if found is None or found.kind is Kind.NUMBERS:
        return found
    sums = found.kind is Kind.BINARY or bool(((found.scores.sum(1) - 1).abs() < 1e-3).all())
    inside = bool(((found.scores >= 0) & (found.scores <= 1)).all())
    many = found.kind is Kind.CLASSES or found.scores.numel() > FEW
    return found._replace(are_shares=inside and sums and (are_shares or many))


def _fit(output: Tensor, target: Tensor, ignored: int) -> Fit | None:
    if not output.is_floating_point() or not 0 < output.numel() <= LARGEST or not target.numel():
        return None
    if is_whole(target) or target.dtype is torch.bool:
        found = None if target.dtype is torch.bool else _classes(output, target, ignored)
        return found or (_pairs(output, target.float()) if _is_binary(target) else None)
    return _pairs(output, target) if target.is_floating_point() else None


def _classes(output: Tensor, target: Tensor, ignored: int) -> Fit | None:
    rows = _rows(output, target)
    if rows is None:
        return None
    labels = target.reshape(-1).long()
    counted = labels != ignored
    labels, rows = labels[counted], rows[counted]
    known = len(labels) > 0 and int(labels.min()) >= 0 and int(labels.max()) < rows.shape[1]
    return Fit(Kind.CLASSES, rows, labels, None if bool(counted.all()) else counted) if known else None


def _rows(output: Tensor, target: Tensor) -> Tensor | None:
    """The scores of each target's classes in a row."""
    if output.dim() < 2:
        return None
    if output.shape[-1] > 1 and output.shape[:-1].numel() == target.numel():
        return output.reshape(-1, output.shape[-1])
    if output.dim() > 2 and output.shape[1] > 1 and target.numel() * output.shape[1] == output.numel():
        return output.movedim(1, -1).reshape(-1, output.shape[1])
    return None


def _pairs(output: Tensor, target: Tensor) -> Fit | None:
    if output.numel() != target.numel():
        return None
    scores = output.reshape(target.shape)
    if not _is_binary(target):
        return Fit(Kind.NUMBERS, scores, target.to(scores.dtype))
    if target.dim() == 2 and target.shape[1] > 1 and bool((target.sum(1) == 1).all()):
        return Fit(Kind.CLASSES, scores, target.argmax(1))
    return Fit(Kind.BINARY, scores, target.to(scores.dtype))


def _is_binary(target: Tensor) -> bool:
    return bool(((target == 0) | (target == 1)).all())


def fitting_loss(found: Fit) -> Tensor:
    """The loss that suits them. Outputs that are probabilities already are taken for what they are."""
    match found.kind:
        case Kind.CLASSES if found.are_shares:
            return F.nll_loss(found.scores.clamp_min(SMALLEST).log(), found.target)
        case Kind.CLASSES:
            return F.cross_entropy(found.scores, found.target)
        case Kind.BINARY if found.are_shares:
            return F.binary_cross_entropy(found.scores.clamp(SMALLEST, 1 - SMALLEST), found.target)
        case Kind.BINARY:
            return F.binary_cross_entropy_with_logits(found.scores, found.target)
    return F.mse_loss(found.scores, found.target)


class Score:
    """What the answers of a training were worth lately, and what the best constant answer would have been."""

    def __init__(self) -> None:
        self._targets: dict[tuple[Kind, int], Answers] = {}
        self._calls: dict[tuple[Kind, int], list[tuple[float, float, int]]] = {}

    def add(self, found: Fit, rows: Tensor | None = None) -> None:
        """These answers were given; `rows`: only those count, while all targets say what a guess is worth."""
        columns = found.scores.shape[1] if found.kind is Kind.CLASSES else found.target[:1].numel()
        key = (found.kind, columns)
        known = self._targets.setdefault(key, Answers(LOSS_OF[found.kind], columns))
        calls = self._calls.setdefault(key, [])
        with torch.no_grad(), contextlib.suppress(RuntimeError):  # targets whose shapes differ have no common guess
            known.add({}, found.scores, found.target)
            if rows is not None:
                found = found._replace(scores=found.scores[rows], target=found.target[rows])
            if len(found.target) and len(calls) < MOST_CALLS:
                cost, right = _cost(found), _right(found)
                if math.isfinite(cost):
                    calls.append((cost, right, found.target.numel()))

    def summary(self) -> dict[str, Any]:
        """Of the latest calls, as plain numbers; empty if there were none."""
        if not any(self._calls.values()):
            return {}
        key = max(self._calls, key=lambda one: len(self._calls[one]))
        calls = self._calls[key]
        late = calls[-max(FEWEST_RECENT, int(RECENT * len(calls))) :]
        count = sum(each for _, _, each in late)
        guess = self._targets[key].guess()
        shares = key[0] is not Kind.NUMBERS
        return {
            "kind": str(key[0]),
            "calls": len(calls),
            "answers": count,
            "cost": sum(cost * each for cost, _, each in late) / count,
            "guess": guess.cost,
            "right": sum(right * each for _, right, each in late) / count if shares else None,
            "guess_right": guess.right if shares else None,
        }


def _cost(found: Fit) -> float:
    scores, target = found.scores.detach().float(), found.target
    if found.kind is Kind.NUMBERS:
        return float((scores - target.float()).square().mean())
    if found.kind is Kind.CLASSES:
        logs = scores.clamp_min(SMALLEST).log() if found.are_shares else scores.log_softmax(1)
        return float(-logs.gather(1, target[:, None]).mean())
    shares = scores.clamp(SMALLEST, 1 - SMALLEST) if found.are_shares else scores.sigmoid()
    shares = shares.clamp(SMALLEST, 1 - SMALLEST)
    return float(-(torch.xlogy(target, shares) + torch.xlogy(1 - target, 1 - shares)).mean())


def _right(found: Fit) -> float:
    if found.kind is Kind.CLASSES:
        return float((found.scores.argmax(1) == found.target).float().mean())
    if found.kind is Kind.BINARY:
        edge = 0.5 if found.are_shares else 0.0
        return float(((found.scores > edge) == (found.target > 0.5)).float().mean())
    return math.nan
