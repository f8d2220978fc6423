"""Puts our observers around functions of torch, and takes every one of them away again.

An observer is a pair of functions: `before(args, kwargs)` returns a token (None: no interest this time) and
`after(token, result, error)` receives it. The wrapper, not the observer, calls the original.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, Protocol

import torch

from unstuck.capture import internals
from unstuck.capture.guard import Guard
from unstuck.capture.places import TRANSPARENT, Places

Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]
After = Callable[[Any, Any, BaseException | None], None]
Skip = Callable[[], bool]
Prepare = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]] | None]


_living: list[Patches] = []
"""Those of all watches that go on: watches may be nested, and end in any order."""
_buried: list[tuple[Any, str, Any, Any]] = []
"""Patches of ended watches that cannot be put back yet, because another watch has put its own around them."""


class _Handle(Protocol):
    id: int
    hooks_dict_ref: Any
    """A weak reference to the dict that holds the hook."""

    def remove(self) -> None: ...


class Patches:
    """Every change we make to torch, by name."""

    def __init__(self, guard: Guard, places: Places) -> None:
        self._guard = guard
        self._imported = _imported(places)
        self._originals: dict[tuple[int, str], tuple[Any, str, Any, Any]] = {}
        self._wrappers: dict[int, Any] = {}
        """By the identity of the original: what torch offers under two names stays one function."""
        self._handles: dict[str, _Handle] = {}
        self._hooked: dict[str, Callable[..., None]] = {}
        self.active = True
        _living.append(self)

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
        skip: Skip | None = None,
    ) -> None:
        """Observe every call of `owner.attribute`, but for those of which `skip` says that nobody wants to know.

        `prepare` may hand on equivalent arguments.
        """
        key = (id(owner), attribute)
        original = owner.__dict__.get(attribute)
        if original is None or key in self._originals:
            return
        watched = self._wrappers.get(id(original))
        if watched is None:
            watched = self._watched(original, _name(owner, attribute), before, after, prepare, skip)
            if isinstance(owner, ModuleType) and getattr(original, "__self__", None) is not None:
                # A method of a hidden object, such as `random.seed`: only by this name can it be pickled.
                watched.__module__, watched.__qualname__ = owner.__name__, attribute
            self._wrappers[id(original)] = watched
        # A function may have got another name before we came: `from torch.nn.utils import clip_grad_norm_`.
        aliases = self._imported.get(id(original), []) if isinstance(owner, ModuleType) else []
        for place, name in [(owner, attribute), *aliases]:
            setattr(place, name, watched)
            self._originals[(id(place), name)] = (place, name, original, watched)

    def settled(self) -> None:
        """Everything that the program may have imported before us is in place."""
        self._imported.clear()

    def hook(
        self, name: str, register: Callable[..., _Handle], function: Callable[..., None], **options: bool
    ) -> _Handle:
        """Register a global hook of torch."""
        observe = self._observer(name, function)
        is_compiling = torch.compiler.is_compiling

        def hooked(*args: Any) -> None:
            if not is_compiling() and self.active:
                observe(*args)

        internals.leave_uncompiled(hooked)
        self._handles[name] = register(hooked, **options)
        self._hooked[name] = hooked
        return self._handles[name]

    def suspend(self, name: str) -> None:
        """Take a hook away for a while; `resume` brings it back. While none is there, torch calls modules faster."""
        handle = self._handles.get(name)
        hooks = handle.hooks_dict_ref() if handle is not None else None
        if handle is not None and hooks is not None:
            hooks.pop(handle.id, None)

    def resume(self, name: str) -> None:
        """Bring a suspended hook back."""
        handle = self._handles.get(name)
        hooks = handle.hooks_dict_ref() if handle is not None else None
        if handle is not None and hooks is not None and self.active:
            hooks[handle.id] = self._hooked[name]

    def replace(self, owner: Any, attribute: str, function: Callable[..., Any]) -> None:
        """Put `function` in place of `owner.attribute`, if torch has it in this version."""
        original = getattr(owner, attribute, None)
        if original is not None:
            setattr(owner, attribute, function)
            self._originals[(id(owner), attribute)] = (owner, attribute, original, function)

    def remove(self) -> None:
        """Put everything back. A wrapper that someone else holds on to does nothing from now on."""
        self.active = False
        if self in _living:
            _living.remove(self)
        _buried.extend(self._originals.values())
        _put_back()
        for handle in self._handles.values():
            handle.remove()
        self._originals.clear()
        self._wrappers.clear()
        self._handles.clear()
        self._hooked.clear()

    def _observer(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, unable to raise, not compiled along with a function of the user's nor seen by their modes."""
        modes, set_compiler = internals.function_modes, internals.set_compiler

        def observe(*args: Any) -> Any:
            compiler = set_compiler(None)
            try:
                if modes() == 0:
                    return function(*args)
                with internals.without_function_modes():
                    return function(*args) if internals.can_hide else None
            except Exception as error:
                self._guard.failed(name, error)
                return None
            finally:
                if compiler is not None:
                    set_compiler(compiler)

        internals.leave_uncompiled(observe)
        return observe

    def _watched(
        self, original: Any, name: str, before: Before, after: After, prepare: Prepare | None, skip: Skip | None
    ) -> Callable[..., Any]:
        begin = self._observer(name, before)
        finish = self._observer(name, after)
        adapt = self._observer(name, prepare) if prepare else None
        is_compiling = torch.compiler.is_compiling

        def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                leave = is_compiling() or not self.active or (skip is not None and skip())
            except Exception as error:
                self._guard.failed(name, error)
                leave = True
            if leave:
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
        internals.leave_uncompiled(watched)
        # TorchScript cannot compile the wrapper; by these names, meant for its own, it finds the original.
        setattr(watched, "__script_if_tracing_wrapper", True)
        setattr(watched, "__original_fn", _unwatched(original))
        return functools.update_wrapper(watched, original)


def living() -> int:
    """How many watches go on."""
    return len(_living)


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """What happens meanwhile is ours and not the program's: no watch records it."""
    awake = [patches for patches in _living if patches.active]
    for patches in awake:
        patches.active = False
    try:
        yield
    finally:
        for patches in awake:
            patches.active = True


def _imported(places: Places) -> dict[int, list[tuple[ModuleType, str]]]:
    """By its identity, the names that modules of the user's have for a function of torch's."""
    found: dict[int, list[tuple[ModuleType, str]]] = {}
    for module in sys.modules.copy().values():
        # By exact types: a look at a lazy module would import it, and a proxy would be asked for what it stands for.
        file = getattr(module, "__file__", None) if type(module) is ModuleType else None
        if module is not sys.modules.get("__main__") and not (isinstance(file, str) and places.is_users_file(file)):
            continue
        for name, value in vars(module).copy().items():  # a thread may add to it
            if type(value) is FunctionType and str(value.__module__).partition(".")[0] == "torch":
                found.setdefault(id(value), []).append((module, name))
    return found


def _put_back() -> None:
    """Restore what is not covered by the patch of another watch. What somebody else has patched since is left alone."""
    left = -1
    while len(_buried) != left:
        left = len(_buried)
        for patch in _buried[::-1]:
            owner, attribute, original, watched = patch
            if owner.__dict__.get(attribute) is watched:
                setattr(owner, attribute, original)
                _buried.remove(patch)
    if not _living:
        _buried.clear()


def _unwatched(function: Any) -> Any:
    """The function of torch below the wrappers of other watches."""
    code = getattr(function, "__code__", None)
    if code is not None and code.co_filename == TRANSPARENT:
        return getattr(function, "__original_fn", function)
    return function


def _name(owner: Any, attribute: str) -> str:
    return f"{owner.__name__}.{attribute}"


def _switch_off() -> None:
    """In a process that was forked: it is not the one that is watched."""
    for patches in _living:
        patches.active = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_switch_off)
