"""Observes soft targets, such as a teacher's answers, next to the labels that another loss of the step is given."""

from __future__ import annotations

import torch
from torch import Tensor

from unstuck.capture.measure.tensors import is_plain, may_measure, reading
from unstuck.capture.window import Watch
from unstuck.events import Place, SoftTargetsCompared
from unstuck.events.losses import CLASS_LOSSES

FEWEST_CLASSES, MOST_CLASSES = 3, 4096
_FIRST_REPORT = 256
_MOST_REPORTS = 6
_SOFT = ("kl_div", "cross_entropy")


class SoftTargets:
    """Counts how often the most likely class of a soft target is the label of the same example."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._window = -1
        self._soft: list[tuple[Tensor, float, Place | None]] = []
        self._hard: list[tuple[Tensor, Place | None]] = []
        self._next_report = _FIRST_REPORT
        self._reports = 0
        self._forget()

    def _forget(self) -> None:
        """Counts begin again after each report: a teacher that learns, too, is wrong only at first."""
        self._examples = self._agree = 0
        self._confidence = self._chance = 0.0

    def loss(self, name: str, source: Tensor, target: Tensor, place: Place | None) -> None:
        """A loss was computed in a sampled window."""
        if self._reports >= _MOST_REPORTS or not source.requires_grad or target.requires_grad or not may_measure():
            return
        if self._watch.window.number != self._window:
            self._window, self._soft, self._hard = self._watch.window.number, [], []
        if name in _SOFT and target.shape == source.shape and is_plain(target) and target.is_cpu:
            self._take_soft(target, place)
        elif (
            name in CLASS_LOSSES
            and target.dim() == 1
            and source.dim() == 2
            and target.dtype is torch.int64
            and target.is_cpu
        ):
            self._hard.append((target.detach(), place))
        else:
            return
        self._compare(source.shape[-1])

    def _take_soft(self, target: Tensor, place: Place | None) -> None:
        if target.dim() != 2 or not FEWEST_CLASSES <= target.shape[1] <= MOST_CLASSES:
            return
        with reading():
            shares = target.detach().float()
            shares = shares.exp() if bool((shares <= 0).all()) else shares
            if bool(((shares.sum(1) - 1).abs() < 1e-2).all()):
                top = shares.max(1)
                self._soft.append((top.indices, float(top.values.mean()), place))

    def _compare(self, classes: int) -> None:
        """Of the latest call of each kind."""
        if not self._soft or not self._hard:
            return
        (answers, confidence, place), (labels, other) = self._soft[-1], self._hard[-1]
        self._soft, self._hard = [], []
        if len(answers) != len(labels):
            return
        with reading():
            known = (labels >= 0) & (labels < classes)
            answers, labels = answers[known], labels[known]
            if not len(labels):
                return
            shares = [
                torch.bincount(each, minlength=classes)[:classes].float() / len(labels) for each in (answers, labels)
            ]
            self._examples += len(labels)
            self._agree += int((answers == labels).sum())
            self._chance += float(shares[0] @ shares[1]) * len(labels)
            self._confidence += confidence * len(labels)
        if self._examples >= self._next_report:
            self._tell(place, other, classes)

    def _tell(self, place: Place | None, other: Place | None, classes: int) -> None:
        self._watch.tell(
            SoftTargetsCompared(
                step=self._watch.window.steps,
                place=place,
                labels_at=other,
                examples=self._examples,
                agree=self._agree / self._examples,
                chance=self._chance / self._examples,
                confidence=self._confidence / self._examples,
                classes=classes,
            )
        )
        self._reports += 1
        self._next_report *= 2
        self._forget()
