"""Noticing that somebody else touched the gradients of an open window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor


class Seal:
    """The gradients as the last backward left them. Nothing is copied: tensors count their own changes."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._gradients = [(p, grad := p.grad, -1 if grad is None else grad._version) for p in parameters]
        self._weight = next((p for p, gradient, _ in self._gradients if type(gradient) is Tensor), None)
        self._weight_version = 0 if self._weight is None else self._weight._version

    def broken_by(self) -> str | None:
        """What happened to the gradients or the weights since, if anything did."""
        for parameter, gradient, version in self._gradients:
            now = parameter.grad
            if now is gradient and (now is None or now._version == version):
                continue
            if now is None:
                return "cleared (zero_grad() by hand?)"
            if gradient is None:
                return "added to (loss.backward() by hand?)"
            return "changed (clipped, unscaled, divided, or added to by a loss.backward() by hand?)"
        if self._weight is not None and self._weight._version != self._weight_version:
            return "used already, for the weights have moved (optimizer.step() by hand?)"
        return None


@contextmanager
def shielded(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Gradients of these parameters are afterwards what they were, whatever a backward adds to them."""
    kept = [(parameter, parameter.grad) for parameter in parameters]
    for parameter, _ in kept:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient
