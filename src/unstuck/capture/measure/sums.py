"""Measures gradients around a backward, so that what happens to them in between can be told."""

from __future__ import annotations

from typing import Any

import torch

from unstuck.capture.measure.tensors import is_plain, may_measure, norms, reading
from unstuck.capture.objects import parameters_of
from unstuck.capture.watch import Watch

_WINDOWS = 12
"""So many windows are measured: what a program does to its gradients it does in all of them."""
_BACKWARDS = 16


class Sums:
    """The norm of all gradients that the known optimizers hold, in a few windows of a run."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._window = -1
        self._windows = 0
        self._backwards = 0

    def before(self) -> Any:
        """A backward is about to begin; what an earlier one of this window left is measured."""
        clock = self._watch.clock
        if not clock.is_survey:
            return None
        if clock.windows != self._window:
            self._window, self._backwards = clock.windows, 0
            self._windows += 1
            return None
        return self._norm() if self._measures else None

    def after(self) -> Any:
        """It ended."""
        if not self._watch.clock.is_survey:
            return None
        measured = self._norm() if self._measures else None
        self._backwards += 1
        return measured

    @property
    def _measures(self) -> bool:
        return self._windows <= _WINDOWS and self._backwards < _BACKWARDS

    def _norm(self) -> Any:
        if not may_measure():
            return None
        optimizers = self._watch.objects.optimizers()
        held = {id(parameter): parameter for optimizer, _ in optimizers for parameter in parameters_of(optimizer)}
        gradients = [parameter.grad for parameter in held.values()]
        each_norm = norms([gradient for gradient in gradients if gradient is not None and is_plain(gradient)])
        if each_norm is None:
            return None
        with reading():
            return self._watch.scalars.later(torch.linalg.vector_norm(each_norm))
