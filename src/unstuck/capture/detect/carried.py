"""Measures gradients that a step has already used and that are still there when the next backward adds to them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from unstuck.capture.measure.scalars import Scalars
from unstuck.capture.measure.tensors import is_plain, may_measure, norms, reading
from unstuck.capture.objects import parameters_of

_LEFT = 0.5
"""A gradient that lost more than this share of its norm was faded on purpose."""
_MOST_OPTIMIZERS = 64
"""A program that builds one for every task is followed anew after so many."""


class Used(NamedTuple):
    """What a step used: the gradients' identities by those of their parameters, and their norms, in one order."""

    gradients: dict[int, tuple[int, int]]
    norms: Tensor


def used(parameters: Sequence[Tensor], gradients: Sequence[Tensor], each: Tensor) -> Used:
    """Only identities are kept: holding the tensors would keep them in memory."""
    places = enumerate(zip(parameters, gradients, strict=True))
    return Used({id(parameter): (id(gradient), number) for number, (parameter, gradient) in places}, each)


class Carried:
    """Follows who steps after whom: a backward works for the optimizer whose turn is next.

    Another's gradients may well be there: the two halves of a GAN clear their own just before their own backward.
    """

    def __init__(self) -> None:
        self._used: dict[int, tuple[weakref.ref[Optimizer], Used]] = {}
        self._followers: dict[int, set[int]] = {}
        self._last: int | None = None
        self._fresh = False

    def stepped(self, optimizer: Optimizer, gradients: Used | None) -> None:
        """An optimizer used these gradients; None if they were not measured."""
        key = id(optimizer)
        if key not in self._followers and len(self._followers) >= _MOST_OPTIMIZERS:
            self._forget_all()
        self._used.pop(key, None)
        self._used = {other: item for other, item in self._used.items() if item[0]() is not None}
        if gradients is not None:
            self._used[key] = (weakref.ref(optimizer), gradients)
        self._followers.setdefault(key, set())
        if self._last is not None:
            self._followers[self._last].add(key)
        self._last = key
        self._fresh = True

    def rest(self) -> None:
        """Nobody follows the steps for a while."""
        self._used.clear()
        self._last, self._fresh = None, False

    def _forget_all(self) -> None:
        self._used.clear()
        self._followers.clear()
        self._last = None

    def forget(self) -> None:
        """Gradients were cleared."""
        self._fresh = False

    def measure(self, scalars: Scalars, *, alone: bool) -> Any:
        """Their norm, at the first backward after a step; None if they are gone or it is not known whose turn it is.

        `alone` says that no other optimizer exists.
        """
        fresh, self._fresh = self._fresh, False
        optimizer, known = self._next(alone) if fresh and may_measure() else (None, None)
        if optimizer is None or known is None:
            return None
        left: list[Tensor] = []
        places: list[int] = []
        for parameter in parameters_of(optimizer):
            gradient = parameter.grad
            identity, place = known.gradients.get(id(parameter), (0, 0))
            if gradient is not None and id(gradient) == identity and is_plain(gradient):
                left.append(gradient)
                places.append(place)
        each = norms(left)
        if each is None:
            return None
        with reading():
            then = known.norms.to(each.device)[places]
            return scalars.later(torch.linalg.vector_norm(torch.where(each >= _LEFT * then, each, 0.0)))

    def _next(self, alone: bool) -> tuple[Optimizer | None, Used | None]:
        if self._last is None:
            return None, None
        turns = {self._last} if alone else self._followers[self._last]
        reference, known = self._used.get(next(iter(turns), 0), (None, None)) if len(turns) == 1 else (None, None)
        return (reference() if reference else None), known
