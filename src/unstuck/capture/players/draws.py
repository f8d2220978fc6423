"""Observes which actions were drawn for which states while a program acts, to compare them with those it trains."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from torch.distributions import Categorical

from unstuck.capture.measure.tensors import is_plain, may_measure, reading
from unstuck.capture.players.moves import marks_of_rows
from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.window import Watch

_LARGEST = 2**18
_MOST_KNOWN = 20_000
_KNOWN = 0.5
"""The share of a batch whose states must have been acted in."""


class Draws:
    """Remembers what was drawn without gradients since the last step, state by state."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._given: Tensor | None = None
        """What the last model was given, if it was asked without gradients: then a program acts."""
        self._trained: Tensor | None = None
        """What the last model was given that is to be trained."""
        self._actions: dict[int, Counter[int]] = {}
        self._is_old = False
        self._note = watch.guard.protect("actions that are drawn", self._remember)

    def attach(self, patches: Patches) -> None:
        """Observe draws of actions."""
        skip = self._watch.window.is_resting
        patches.around(Categorical, "sample", lambda args, kwargs: self, self._drew, skip=skip)

    def model_ran(self, given: Tensor, learning: bool) -> None:
        """A model was called in a sampled window."""
        if may_measure() and given.is_cpu and given.dim() > 0 and given.numel() <= _LARGEST:
            self._given = None if learning else given.detach()
            if learning:
                self._trained = given.detach()

    def window_began(self) -> None:
        """A step was taken: what is drawn from now on belongs to the next update."""
        self._is_old = True
        self._given = self._trained = None

    def rest(self) -> None:
        """Draws are not seen for a while."""
        self._actions.clear()

    def compare(self, actions: Tensor) -> tuple[int, int]:
        """For how many of the actions that are trained it is known what was drawn for their state, and how many of
        these are others."""
        given = self._trained
        if given is None or not self._actions or not _has_rows(given, len(actions)):
            return 0, 0
        marks = marks_of_rows(given.reshape(len(actions), -1))
        trained: dict[int, Counter[int]] = {}
        for mark, action in zip(marks, actions.tolist(), strict=True):
            if mark in self._actions:
                trained.setdefault(mark, Counter())[int(action)] += 1
        known = sum(counts.total() for counts in trained.values())
        if known < _KNOWN * len(actions):
            return 0, 0
        # A part of the draws, or one with repetitions, shows less: which actions there were at all.
        whole = len(actions) == sum(counts.total() for counts in self._actions.values())
        other = 0
        for mark, counts in trained.items():
            drawn = self._actions[mark]
            more = counts - drawn if whole else Counter({a: n for a, n in counts.items() if not drawn[a]})
            other += more.total()
        return known, other

    def _drew(self, token: object, result: Any, error: BaseException | None) -> None:
        if error is None and isinstance(result, Tensor) and may_measure():
            with reading():
                self._note(result)

    def _remember(self, drawn: Tensor) -> None:
        given = self._given
        if given is None or not is_plain(given) or not drawn.is_cpu or not self._watch.is_listening():
            return
        count = drawn.numel()
        rows = given if count > 1 or given.dim() > 1 else given[None]
        if not _has_rows(rows, count) or tuple(rows.shape[: drawn.dim()]) != tuple(drawn.shape or (1,))[: rows.dim()]:
            return
        if self._is_old:
            self._is_old = False
            self._actions.clear()
        if len(self._actions) < _MOST_KNOWN:
            marks = marks_of_rows(rows.reshape(count, -1))
            for mark, action in zip(marks, drawn.reshape(-1).tolist(), strict=True):
                self._actions.setdefault(mark, Counter())[int(action)] += 1


def _has_rows(given: Tensor, count: int) -> bool:
    """Are the first axes of what a model was given so many examples?"""
    total = 1
    for side in given.shape:
        total *= side
        if total == count and given.numel() > count:
            return True
    return False
