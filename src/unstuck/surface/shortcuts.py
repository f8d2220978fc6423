"""Layers of a model computed in another way that gives the same, when its weights move along a plane.

The weights are `w + a * d + b * e`, so that what an affine layer makes of the batch itself is a sum of three outputs,
known once for the whole plane. What else is done here suits many small products better than the usual way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

Weights = Mapping[str, Tensor]
_AFFINE = (F.linear, F.conv1d, F.conv2d, F.conv3d)


class Plane:
    """The weights from which one starts, and the ways along which they move."""

    def __init__(self, start: Weights, ways: Sequence[Weights], inputs: Any) -> None:
        self._corners = (start, *ways)
        self._inputs = [value for value in (inputs if isinstance(inputs, tuple) else (inputs,))]
        self._outputs: dict[tuple[Any, ...], Tensor] = {}

    def holds(self, value: Any) -> bool:
        """Is this the batch, or a view of it, which is the same at every point?"""
        return isinstance(value, Tensor) and any(value is own or value._base is own for own in self._inputs)

    def outputs(self, layer: Callable[..., Tensor], given: Tensor, weight: str, bias: Any, rest: Sequence[Any]) -> Tensor:
        """What the layer makes of the batch at the start and along each way. A bias is given by name if it moves."""
        key = (layer, weight, bias if isinstance(bias, str) else None, *_layout(given), repr(rest))
        if key not in self._outputs:
            biases = [corner[bias] if isinstance(bias, str) else None for corner in self._corners]
            biases[0] = bias if isinstance(bias, Tensor) else biases[0]
            pairs = zip(self._corners, biases, strict=True)
            with torch.no_grad():
                self._outputs[key] = torch.stack([layer(given, corner[weight], own, *rest) for corner, own in pairs])
        return self._outputs[key]


class Shortcuts(TorchFunctionMode):
    """Active while a model runs at the point `distances` of a plane, with these weights."""

    def __init__(self, plane: Plane, distances: Sequence[Tensor], weights: Weights) -> None:
        super().__init__()
        self._plane = plane
        self._distances = distances
        self._names = {id(weight): name for name, weight in weights.items()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shortcut = _SHORTCUTS.get(func)
        short = shortcut(self, func, *args, **(kwargs or {})) if shortcut else None
        return func(*args, **(kwargs or {})) if short is None else short

    def _affine(self, layer: Any, given: Any, weight: Any, bias: Any = None, *rest: Any, **options: Any) -> Tensor | None:
        name = self._names.get(id(weight))
        if name is None or options or not self._plane.holds(given):
            return _product(given, weight, bias) if layer is F.linear else None
        known = self._plane.outputs(layer, given, name, self._names.get(id(bias), bias), rest)
        along = torch.stack([torch.ones_like(self._distances[0]), *self._distances]).to(known.dtype)
        return (along @ known.flatten(1)).reshape(known.shape[1:])


def _product(given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """With the batch last: narrow layers make good use of the processor only that way round."""
    if given.dim() != 2:
        return None
    made = weight @ given.mT
    return (made if bias is None else made.add_(bias[:, None])).mT


def _cross_entropy(given: Tensor, target: Tensor, weight: Any = None, *rest: Any, **options: Any) -> Tensor | None:
    """The mean over classes given by number, without the detours for what could be ignored."""
    usual = {"size_average": None, "reduce": None, "reduction": "mean", "label_smoothing": 0.0, "ignore_index": -100}
    plain = not rest and weight is None and all(options[key] == usual[key] for key in options)
    if not plain or given.dim() != 2 or target.dim() != 1 or target.dtype != torch.int64:
        return None
    right = given.gather(1, target[:, None])[:, 0]
    return (given.logsumexp(1) - right).mean()


def _largest(
    given: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """The largest of each window by comparing shifted views, for small windows side by side."""
    height, width = _pair(kernel_size)
    plain = _pair(stride or kernel_size) == (height, width) and _pair(padding) == (0, 0) and _pair(dilation) == (1, 1)
    if not plain or ceil_mode or return_indices or height * width > MOST_COMPARED or given.dim() < 3:
        return None
    rows, columns = given.shape[-2] // height * height, given.shape[-1] // width * width
    found: Tensor | None = None
    for row in range(height):
        for column in range(width):
            part = given[..., row:rows:height, column:columns:width]
            found = part if found is None else torch.maximum(found, part)
    return found


MOST_COMPARED = 9


def _pair(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def _layout(value: Tensor) -> tuple[Any, ...]:
    return value.shape, value.stride(), value.storage_offset()


_SHORTCUTS: dict[Any, Callable[..., Tensor | None]] = {
    **dict.fromkeys(_AFFINE, Shortcuts._affine),
    F.cross_entropy: lambda _, func, *args, **kwargs: _cross_entropy(*args, **kwargs),
    F.max_pool2d: lambda _, func, *args, **kwargs: _largest(*args, **kwargs),
}
