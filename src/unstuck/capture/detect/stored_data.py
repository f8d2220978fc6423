"""The arrays that a data set holds, and whether reading examples changes them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset

from unstuck.capture.measure.tensors import is_plain

_DEEPEST = 4
_MOST_ARRAYS = 32
_MOST_ITEMS = 64
_SAMPLE = 16_384
_BLOCKS = 256
_LARGE = 2**24
"""Numbers; a larger array may lie in a file, of which only a few pages are read."""
_FEWEST = 256
"""Numbers; a smaller array may be a counter or a setting."""


def arrays_of(dataset: Any) -> dict[str, Tensor]:
    """The tensors and NumPy arrays in the attributes of a data set, by their names. They share its memory."""
    for _ in range(_DEEPEST):
        if not issubclass(type(dataset), Subset):
            break
        dataset = _attributes_of(dataset).get("dataset")
    found: dict[str, Tensor] = {}
    attributes = _attributes_of(dataset)
    for name, value in attributes.items():
        for inner, array in _inside(str(name), value):
            found[inner] = array
            if len(found) >= _MOST_ARRAYS:
                return found
    return found


def _attributes_of(value: Any) -> dict[str, Any]:
    """Without a call of the program's own code, such as its `__getattr__`."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return dict(attributes) if type(attributes) is dict else {}


def _inside(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if type(value) in (list, tuple):
        for index, item in enumerate(value[:_MOST_ITEMS]):
            array = _readable(item)
            if array is not None:
                yield f"{name}[{index}]", array
    elif (array := _readable(value)) is not None:
        yield name, array


def _readable(value: Any) -> Tensor | None:
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray:
        if value.dtype.kind != "f" or value.dtype.itemsize > 8 or not value.flags.writeable:
            return None
        try:
            value = torch.from_numpy(value)
        except (TypeError, ValueError):
            return None
    # Whole numbers may be an order or counts, which a data set changes by design.
    is_array = is_plain(value) and value.is_cpu and not value.requires_grad
    return value if is_array and value.numel() >= _FEWEST else None


def samples_of(dataset: Any) -> dict[str, Tensor]:
    """Some numbers of each array, always the same ones. Call it where no graph is built."""
    return {name: _sample(array) for name, array in arrays_of(dataset).items() if array.is_contiguous()}


def _sample(array: Tensor) -> Tensor:
    numbers = array.detach().reshape(-1)
    if len(numbers) > _LARGE:
        return numbers[: len(numbers) // _BLOCKS * _BLOCKS].view(_BLOCKS, -1)[:, : _SAMPLE // _BLOCKS].clone()
    return numbers[:: -(-len(numbers) // _SAMPLE)].clone()


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> str:
    """The name of an array whose numbers are not what they were; empty if there is none."""
    for name, old in before.items():
        new = after.get(name)
        if new is not None and new.shape == old.shape and new.dtype == old.dtype and not _equal(new, old):
            return name
    return ""


def _equal(new: Tensor, old: Tensor) -> bool:
    """With NaN, which may stand for missing values, equal to itself."""
    return bool(((new == old) | (new.isnan() & old.isnan())).all())
