"""Observes `tensor[...]`, which torch computes in C: where a program picks rows of its data.

The attribute that is added to `Tensor` for a while answers `Tensor.__getitem__` with torch's own function, so that code
which compares functions of torch finds what it would find without us.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import Tensor

from unstuck.capture.places import TRANSPARENT
from unstuck.capture.torch_hooks import internals

_ATTRIBUTE = "__getitem__"
_MOST_CALLS = 100_000
"""After so many it ends by itself: a program that reads data number by number should not wait for us."""

Observe = Callable[[Tensor, Any, Tensor], None]


class Indexing:
    """In the place of `Tensor.__getitem__` until `remove`."""

    def __init__(self, observe: Observe, is_wanted: Callable[[], bool]) -> None:
        self._original: Any = Tensor.__getitem__
        self._is_wanted = is_wanted
        self._left = _MOST_CALLS
        self._index = _indexed(self._original, observe)

    def install(self) -> None:
        """Observe from now on, unless somebody else has changed how tensors are indexed."""
        if _ATTRIBUTE not in Tensor.__dict__:
            setattr(Tensor, _ATTRIBUTE, self)

    def remove(self) -> None:
        """Torch's own function again."""
        if Tensor.__dict__.get(_ATTRIBUTE) is self:
            delattr(Tensor, _ATTRIBUTE)

    def __get__(self, tensor: Tensor | None, kind: type | None = None) -> Any:
        """What Python calls to index a tensor."""
        if tensor is None:
            return self._original
        self._left -= 1
        if self._left < 0:
            self.remove()
        elif type(tensor) is Tensor and self._is_wanted():
            return MethodType(self._index, tensor)
        return MethodType(self._original, tensor)


def _indexed(original: Any, observe: Observe) -> Callable[[Tensor, Any], Any]:
    def indexed(tensor: Tensor, index: Any) -> Any:
        result = original(tensor, index)
        if type(index) is not int:
            observe(tensor, index, result)
        return result

    indexed.__code__ = indexed.__code__.replace(co_filename=TRANSPARENT)
    internals.leave_uncompiled(indexed)
    return indexed
