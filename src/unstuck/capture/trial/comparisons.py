"""Sees in a trial what a script compares with what by an operator: `(model(x).argmax(1) == y)`, `model(x) - y`.

Operators of tensors are C functions, which a watch leaves alone: replacing them shows in the user's stacks and costs
time at every use. A trial has no such promise to keep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unstuck.capture.measure.tensors import may_measure
from unstuck.capture.trial.lab import Lab

Heard = Callable[[Tensor, Tensor], None]
EQUALS = ((Tensor, "__eq__"), (Tensor, "eq"), (torch, "eq"))
MINUS = ((Tensor, "__sub__"), (Tensor, "sub"), (torch, "sub"))


class Comparisons:
    """Whoever is interested sets `equal` and `minus`, and is given both sides where no gradient is recorded."""

    def __init__(self, lab: Lab) -> None:
        self.equal: Heard | None = None
        self.minus: Heard | None = None
        for owner, name in EQUALS:
            lab.wrap(owner, name, self._equal)
        for owner, name in MINUS:
            lab.wrap(owner, name, self._minus)

    def _equal(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compare(*args: Any, **kwargs: Any) -> Any:
            if self.equal is not None and not torch.is_grad_enabled():
                _tell(self.equal, args)
            return original(*args, **kwargs)

        return compare

    def _minus(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def subtract(*args: Any, **kwargs: Any) -> Any:
            if self.minus is not None and not torch.is_grad_enabled():
                _tell(self.minus, args)
            return original(*args, **kwargs)

        return subtract


def _tell(heard: Heard, args: tuple[Any, ...]) -> None:
    if len(args) == 2 and isinstance(args[0], Tensor) and isinstance(args[1], Tensor) and may_measure():
        heard(args[0], args[1])
