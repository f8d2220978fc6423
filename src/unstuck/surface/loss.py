"""A loss as a function of its axes alone: whatever the user hands us, called with what it wants."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unstuck.events import Place

_ELEMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)\[(?P<index>-?\d+(?:\s*,\s*-?\d+)*)\]")
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class SurfaceError(Exception):
    """Something we cannot draw; its text is one sentence for the user."""


@dataclass(frozen=True)
class Loss:
    """A callable of one scalar or batched tensor per axis."""

    name: str
    function: Callable[..., Any]
    place: Place | None
    fixed_elements: int
    """How large the fixed inputs are together, which bounds how many points go in one call."""

    def __call__(self, *coordinates: Tensor) -> Tensor:
        """The loss where the axes have these values. The user's own exceptions come through."""
        value = self.function(*coordinates)
        if isinstance(value, Tensor):
            return value
        if isinstance(value, (int, float)):
            return coordinates[0].new_tensor(float(value))
        raise SurfaceError(f"{self.name} returns {_article(type(value).__name__)}, where a loss returns a tensor.")


def bind(loss: Any, axes: Sequence[str], fixed: Mapping[str, Any], dtype: torch.dtype, name: str = "") -> Loss:
    """The loss with its axes open and everything else fixed."""
    called = name or name_of(loss)
    function = instance_of(loss, called)
    wants_tensor = _tensor_parameters(function)
    values = {key: _as_tensor(value, dtype, key in wants_tensor) for key, value in fixed.items()}
    elements = [_ELEMENT.fullmatch(axis) for axis in axes]
    open_names = [m["name"] if m else axis for m, axis in zip(elements, axes, strict=True)]
    by_keyword = _arguments(function, list(dict.fromkeys(open_names)), values, called)
    bases = {m["name"]: _base(m["name"], values) for m in elements if m}
    masks = [_mask(bases[m["name"]], m["index"]) if m else None for m in elements]
    constants = {key: value for key, value in values.items() if key not in bases}

    def evaluate(*coordinates: Tensor) -> Any:
        given: dict[str, Any] = dict(bases)
        for key, mask, coordinate in zip(open_names, masks, coordinates, strict=True):
            given[key] = coordinate if mask is None else _with_element(given[key], mask, coordinate)
        words = {word: given[key] for key, word in by_keyword.items() if word}
        return function(*(value for key, value in given.items() if not by_keyword[key]), **words, **constants)

    size = sum(value.numel() for value in values.values() if isinstance(value, Tensor))
    return Loss(called, evaluate, place_of(loss), size)


def name_of(loss: Any) -> str:
    """What to call it in sentences."""
    name = getattr(loss, "__name__", "") or type(loss).__name__
    return "loss" if name in ("<lambda>", "partial") else str(name)


def instance_of(loss: Any, name: str) -> Callable[..., Any]:
    """The callable itself; a class is built without arguments."""
    if isinstance(loss, type):
        try:
            loss = loss()
        except TypeError as error:
            raise SurfaceError(f"{name} cannot be built without arguments ({error}); pass an instance.") from None
    if not callable(loss):
        raise SurfaceError(f"{name} is {_article(type(loss).__name__)}, not something to call.")
    made: Callable[..., Any] = loss
    return made


def signature_of(loss: Any) -> inspect.Signature | None:
    """How it wants to be called; `forward` for a module. None where Python does not know."""
    target = loss.forward if isinstance(loss, torch.nn.Module) else loss
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


def place_of(loss: Any) -> Place | None:
    """The line that defines it."""
    target = loss if isinstance(loss, type) else type(loss) if isinstance(loss, torch.nn.Module) else loss
    target = inspect.unwrap(getattr(target, "func", target))
    if isinstance(target, type):
        target = target.__dict__.get("forward") or target.__dict__.get("__call__")
    elif not hasattr(target, "__code__") and not inspect.ismethod(target):
        target = type(target).__dict__.get("__call__")
    code = getattr(target, "__code__", None)
    return Place(code.co_filename, code.co_firstlineno, function=code.co_name) if code else None


def _arguments(
    function: Callable[..., Any], axes: list[str], fixed: Mapping[str, Any], name: str
) -> dict[str, str | None]:
    """For every axis the keyword it goes by, or None where it goes by position."""
    signature = signature_of(function)
    if signature is None:
        return dict.fromkeys(axes, None)
    parameters = signature.parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [key for key in fixed if key not in signature.parameters and key not in axes and not takes_any]
    if unknown:
        raise SurfaceError(f"{name} has no input {unknown[0]!r} to fix; it takes {', '.join(signature.parameters)}.")
    if all(axis in signature.parameters and signature.parameters[axis].kind in _KEYWORDS for axis in axes):
        return {axis: axis for axis in axes}
    free = [p for p in parameters if p.name not in fixed]
    if any(p.kind is p.VAR_POSITIONAL for p in free):
        return dict.fromkeys(axes, None)
    named = [p.name for p in free if p.kind in _KEYWORDS]
    by_position = [p for p in free if p.kind in _BY_POSITION]
    if len(by_position) < len(axes):
        raise SurfaceError(f"{name}{signature} has no {len(axes)} free inputs for the axes {', '.join(axes)}.")
    if any(p.kind is p.POSITIONAL_ONLY for p in by_position):
        return dict.fromkeys(axes, None)
    return dict(zip(axes, named, strict=False))


_KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _base(name: str, values: Mapping[str, Any]) -> Tensor:
    value = values.get(name)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise SurfaceError(f"{name}[...] as an axis needs the other elements: fixed={{{name!r}: a float tensor}}.")
    return value


def _mask(base: Tensor, index: str) -> Tensor:
    """Where the element of this index lies."""
    mask = torch.zeros(base.shape, dtype=torch.bool)
    try:
        mask[tuple(int(word) for word in index.split(","))] = True
    except IndexError as error:
        raise SurfaceError(f"the axis names an element that is not there: {error}.") from None
    return mask


def _with_element(base: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """The base with one element replaced; a batch of values makes a batch of bases."""
    return torch.where(mask, value.reshape(*value.shape, *([1] * mask.dim())), base)


def _tensor_parameters(function: Callable[..., Any]) -> set[str]:
    """Inputs whose annotation says that they are tensors."""
    signature = signature_of(function)
    parameters = signature.parameters.values() if signature else ()
    return {p.name for p in parameters if str(getattr(p.annotation, "__name__", p.annotation)).endswith("Tensor")}


def _as_tensor(value: Any, dtype: torch.dtype, wanted: bool) -> Any:
    """Lists of numbers, and numbers where a tensor is wanted, become tensors; everything else stays as it is."""
    if isinstance(value, Tensor):
        return value.detach().to(dtype) if value.is_floating_point() else value.detach()
    numbers = isinstance(value, (list, tuple)) and value and all(isinstance(item, (int, float)) for item in value)
    if numbers or (wanted and isinstance(value, (int, float))):
        made = torch.tensor(value)
        return made.to(dtype) if made.is_floating_point() else made
    return value


def _article(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"
