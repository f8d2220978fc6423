"""Tries the remedy of a mistake of axes: at one line of the program, operands are turned so that each example meets
itself alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unstuck.capture.places import Places
from unstuck.capture.torch_hooks import hooks
from unstuck.capture.trial.lab import Lab
from unstuck.findings.mixing import Mix

RESHAPES = frozenset({"view", "reshape", "flatten"})
SOFTMAXES = frozenset({"softmax", "log_softmax"})
BY_TWO = frozenset(
    """sub rsub add mul div true_divide where maximum minimum max min pow eq lt gt le ge __sub__ __rsub__ __add__
    __radd__ __mul__ __rmul__ __truediv__ __rtruediv__ __isub__ __iadd__ __imul__""".split()
)


def align(lab: Lab, mix: Mix, path: str, line: int, axis: int) -> None:
    """From now on, until everything is put back."""
    mode = _Aligned(Places(lab.stage), mix, path, line, axis)
    lab.when_undone(hooks.enter(mode))


class _Aligned(hooks.FunctionCalls):
    def __init__(self, places: Places, mix: Mix, path: str, line: int, axis: int) -> None:
        super().__init__()
        self._places = places
        self._mix = mix
        self._at = (path, line)
        self._axis = axis

    def called(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same with its operands turned, if it is the one."""
        name = getattr(function, "__name__", "")
        change = self._change(name, args)
        if change is None or not self._is_here():
            return function(*args, **kwargs)
        return change(function, args, kwargs)

    def _is_here(self) -> bool:
        place = self._places.here()
        return place is not None and (not self._at[0] or (place.path, place.line) == self._at)

    def _change(self, name: str, args: tuple[Any, ...]) -> Callable[..., Any] | None:
        match self._mix:
            case Mix.COLUMN | Mix.COEFFICIENT | Mix.CODES if name in BY_TWO and _ranks_differ(args, self._mix):
                return self._operands
            case Mix.SOFTMAX if name in SOFTMAXES:
                return self._softmax
            case Mix.ROWS if name in RESHAPES and args[0].dim() > self._axis:
                return self._reshape
            case Mix.PICK if name == "__getitem__":
                return _diagonal
        return None

    def _operands(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        one, other = args[:2]
        if self._mix is Mix.CODES:
            turned = tuple(_turned(code, data) for code, data in ((one, other), (other, one)))
            return function(*turned, *args[2:], **kwargs)
        is_first = one.dim() > other.dim()
        high, low = (one, other) if is_first else (other, one)
        if self._mix is Mix.COLUMN:
            high = high.squeeze(-1)
        else:
            low = low.reshape(*low.shape, *[1] * (high.dim() - low.dim()))
        pair = (high, low) if is_first else (low, high)
        return function(*pair, *args[2:], **kwargs)

    def _softmax(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scores = args[0] if args else kwargs["input"]
        if scores.dim() < 2:
            return function(*args, **kwargs)
        axis = next(side for side in reversed(range(scores.dim())) if side != self._axis)
        return torch.softmax(scores, axis) if function.__name__ == "softmax" else torch.log_softmax(scores, axis)

    def _reshape(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        shape = function(*args, **kwargs).shape
        return args[0].movedim(self._axis, 0).reshape(shape)


def _ranks_differ(args: tuple[Any, ...], mix: Mix) -> bool:
    if len(args) < 2 or not all(isinstance(arg, Tensor) for arg in args[:2]):
        return False
    high, low = sorted((tuple(arg.shape) for arg in args[:2]), key=len, reverse=True)
    if mix is Mix.COLUMN:
        return len(low) == 1 and high == (*low, 1) and low[0] > 1
    if mix is Mix.COEFFICIENT:
        return len(high) > len(low) > 0 and high[: len(low)] == low
    return len(high) >= 3


def _turned(code: Tensor, data: Tensor) -> Tensor:
    """Codes (N, 1, width) that are to be (1, positions, width)."""
    positions = data.shape[1] if data.dim() > 1 else 0
    is_code = code.dim() == data.dim() and code.shape[1] == 1 and code.shape[0] == data.shape[0] and positions > 1
    return code[:positions].transpose(0, 1) if is_code and positions <= len(code) else code


def _diagonal(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = function(*args, **kwargs)
    is_square = isinstance(result, Tensor) and result.dim() == 2 and result.shape[0] == result.shape[1] > 1
    return result.diagonal() if is_square else result
