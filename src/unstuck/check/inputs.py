"""A batch, how a model is called on it, and the tensors inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn


def split(batch: Any) -> tuple[Any, Any]:
    """Inputs and target; a batch that is one dict or one tensor is both."""
    if isinstance(batch, dict | Tensor):
        return batch, batch
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise TypeError(f"batch must be (inputs, target), a dict or a tensor, and this is {described(batch)}.")


def call(model: nn.Module, inputs: Any) -> Any:
    """A dict is given by names, a tuple or list by position."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def described(thing: Any) -> str:
    """What it is, for a sentence."""
    size = f" of {len(thing)}" if isinstance(thing, tuple | list) else ""
    return f"a {type(thing).__name__}{size}"


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested dicts, tuples and lists; also in the outputs of libraries, which are dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure, each tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: with_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(with_tensors(item, change) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(with_tensors(item, change) for item in value)
    return value
