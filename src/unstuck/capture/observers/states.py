"""Observes weights being loaded into models: how much of them found its place."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.window import Observer, Watch
from unstuck.capture.written_weights.between_steps import WrittenWeights
from unstuck.events import Place, StateLoaded

_MOST_EVENTS = 100
_NAMES = 20


class _Load(NamedTuple):
    module: nn.Module
    offered: int
    strict: bool
    place: Place | None
    own: bool
    first: int
    """Where the first of the values lies in memory."""


class Loads(Observer):
    """Follows `load_state_dict` of modules."""

    def __init__(self, watch: Watch, written: WrittenWeights) -> None:
        self._watch = watch
        self._written = written
        self._labels: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._recorded = 0

    def attach(self, patches: Patches) -> None:
        """Observe modules only: an optimizer has no weights."""
        patches.around(nn.Module, "load_state_dict", self.before, self.after)

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Load | None:
        """It is called."""
        watch = self._watch
        given = args[1] if len(args) > 1 else kwargs.get("state_dict")
        if not watch.is_listening() or self._recorded >= _MOST_EVENTS or not isinstance(given, Mapping):
            return None
        strict = args[2] if len(args) > 2 else kwargs.get("strict", True)
        return _Load(args[0], len(given), bool(strict), watch.places.here(), _is_its_own(args[0], given), _first(given))

    def after(self, load: _Load, result: Any, error: BaseException | None) -> None:
        """It returned, with the keys that found no partner, or raised."""
        self._recorded += 1
        missing = list(getattr(result, "missing_keys", ()))
        unexpected = list(getattr(result, "unexpected_keys", ()))
        matched = 0 if error is not None else max(load.offered - len(unexpected), 0)
        if matched and not load.own:
            self._written.loaded(load.module, load.place)
        if matched and self._watch.window.steps == 0:
            self._watch.objects.note_loaded(_given_values(load.module, frozenset(missing)))
            self._watch.objects.loaded_from[load.module] = load.first
        self._watch.tell(
            StateLoaded(
                step=self._watch.window.steps,
                place=load.place,
                model=self._label(load.module),
                strict=load.strict,
                matched=matched,
                tensors=matched + len(missing),
                missing=tuple(missing[:_NAMES]),
                unexpected=tuple(unexpected[:_NAMES]),
                missing_count=len(missing),
                unexpected_count=len(unexpected),
                failed=error is not None,
                own=load.own,
            )
        )

    def _label(self, module: nn.Module) -> str:
        """Each module its own; those of a run's models are given out when they are called, which is later."""
        kind = type(module).__name__
        return self._labels.setdefault(module, f"{kind} loaded {len(self._labels) + 1}")


def _first(given: Mapping[str, Any]) -> int:
    tensors = (value for value in given.values() if isinstance(value, Tensor))
    first = next(tensors, None)
    return first.data_ptr() if first is not None and type(first) is Tensor and not first.is_meta else 0


def _is_its_own(module: nn.Module, given: Mapping[str, Any]) -> bool:
    """Do the values lie in memory where the model's own parameters do?"""
    own = [(name, parameter) for name, parameter in module.named_parameters() if parameter.numel()]
    found = ((parameter, given.get(name)) for name, parameter in own)
    return bool(own) and all(
        isinstance(value, Tensor) and value.device == parameter.device and value.data_ptr() == parameter.data_ptr() != 0
        for parameter, value in found
    )


def _given_values(root: nn.Module, missing: frozenset[str]) -> Iterator[nn.Module]:
    """The modules inside `root` with a parameter of their own that was not among the missing ones."""
    for name, module in root.named_modules():
        own = (key for key, parameter in module._parameters.items() if parameter is not None)
        if any((f"{name}.{key}" if name else key) not in missing for key in own):
            yield module
