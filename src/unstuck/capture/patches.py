"""Puts our observers around functions of torch, and takes every one of them away again.

An observer is a pair of functions: `before(args, kwargs)` returns a token (None: no interest this time) and
`after(token, result, error)` receives it. The wrapper, not the observer, calls the original.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from unstuck.capture.guard import Guard
from unstuck.capture.places import TRANSPARENT

Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]
After = Callable[[Any, Any, BaseException | None], None]
Prepare = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]] | None]


class _Handle(Protocol):
    id: int

    def remove(self) -> None: ...


class Patches:
    """Every change we make to torch, by name."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._originals: dict[tuple[int, str], tuple[Any, str, Any, Any]] = {}
        self._wrappers: dict[int, Any] = {}
        """By the identity of the original: what torch offers under two names stays one function."""
        self._handles: dict[str, _Handle] = {}
        self.active = True
        _switch_off_in_forks(self)

    @property
    def names(self) -> list[str]:
        """What is patched or hooked now."""
        return [
            *(_name(owner, attribute) for owner, attribute, *_ in self._originals.values()),
            *self._handles,
        ]

    def around(
        self,
        owner: Any,
        attribute: str,
        before: Before,
        after: After,
        prepare: Prepare | None = None,
    ) -> None:
        """Observe every call of `owner.attribute`. `prepare` may hand on equivalent arguments."""
        key = (id(owner), attribute)
        original = owner.__dict__.get(attribute)
        if original is None or key in self._originals:
            return
        watched = self._wrappers.get(id(original))
        if watched is None:
            watched = self._watched(original, _name(owner, attribute), before, after, prepare)
            self._wrappers[id(original)] = watched
        setattr(owner, attribute, watched)
        self._originals[key] = (owner, attribute, original, watched)

    def hook(
        self, name: str, register: Callable[..., _Handle], function: Callable[..., None], **options: bool
    ) -> _Handle:
        """Register a global hook of torch."""
        observe = self._observer(name, function)
        is_compiling = torch.compiler.is_compiling

        def hooked(*args: Any) -> None:
            if not is_compiling() and self.active:
                observe(*args)

        self._handles[name] = register(hooked, **options)
        return self._handles[name]

    def replace(self, owner: Any, attribute: str, function: Callable[..., Any]) -> None:
        """Put `function` in place of `owner.attribute`, if torch has it in this version."""
        original = getattr(owner, attribute, None)
        if original is not None:
            setattr(owner, attribute, function)
            self._originals[(id(owner), attribute)] = (owner, attribute, original, function)

    def remove(self) -> None:
        """Put everything back. A wrapper that someone else holds on to does nothing from now on."""
        self.active = False
        for owner, attribute, original, watched in self._originals.values():
            if owner.__dict__.get(attribute) is watched:
                setattr(owner, attribute, original)
        for handle in self._handles.values():
            handle.remove()
        self._originals.clear()
        self._wrappers.clear()
        self._handles.clear()

    def _observer(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, unable to raise, and unseen by a function mode of the user's."""

        modes = torch._C._len_torch_function_stack

        def observe(*args: Any) -> Any:
            try:
                if modes() == 0:
                    return function(*args)
                with torch._C.DisableTorchFunction():
                    return function(*args)
            except Exception as error:
                self._guard.failed(name, error)
                return None

        return observe

    def _watched(
        self, original: Any, name: str, before: Before, after: After, prepare: Prepare | None
    ) -> Callable[..., Any]:
        begin = self._observer(name, before)
        finish = self._observer(name, after)
        adapt = self._observer(name, prepare) if prepare else None
        is_compiling = torch.compiler.is_compiling

        def watched(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not self.active:
                return original(*args, **kwargs)
            args, kwargs = (adapt and adapt(args, kwargs)) or (args, kwargs)
            token = begin(args, kwargs)
            if token is None:
                return original(*args, **kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                finish(token, None, error)
                raise
            finish(token, result, None)
            return result

        watched.__code__ = watched.__code__.replace(co_filename=TRANSPARENT)
        # TorchScript cannot compile the wrapper; by these names, meant for its own, it finds the original.
        setattr(watched, "__script_if_tracing_wrapper", True)
        setattr(watched, "__original_fn", original)
        return functools.update_wrapper(watched, original)


def _name(owner: Any, attribute: str) -> str:
    return f"{owner.__name__}.{attribute}"


def _switch_off_in_forks(patches: Patches) -> None:
    reference = weakref.ref(patches)

    def switch_off() -> None:
        patches = reference()
        if patches is not None:
            patches.active = False

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=switch_off)
