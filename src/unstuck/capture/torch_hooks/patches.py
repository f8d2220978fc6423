"""Puts our observers around functions of torch, and takes every one of them away again.

An observer is a pair of functions: `before(args, kwargs)` returns a token (None: no interest this time) and
`after(token, result, error)` receives it. Neither calls the original: both are woven into its code, or, where there is
none to weave into, a wrapper calls it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from types import MethodType, ModuleType
from typing import Any, Protocol

import torch
from torch.optim import optimizer as optimizers

from unstuck.capture.guard import Guard
from unstuck.capture.places import TRANSPARENT
from unstuck.capture.torch_hooks import internals
from unstuck.capture.torch_hooks.indexing import Indexing, Observe
from unstuck.capture.torch_hooks.weaving import RUN_BY_WOVEN_CODE, Arguments, Weave, forget_texts, weave

Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]
After = Callable[[Any, Any, BaseException | None], None]
Skip = Callable[[], bool]
Prepare = Callable[[tuple[Any, ...], dict[str, Any]], Arguments | None]
BEFORE_STEPS, AFTER_STEPS = "step-pre-hook", "step-post-hook"
"""The names of the two global hooks."""

_living: list[Patches] = []
"""Those of all watches that go on: watches may be nested, and end in any order."""
_buried: list[tuple[Any, str, Any, Any]] = []
"""Patches of ended watches that cannot be put back yet, because another watch has put its own around them."""


class _Handle(Protocol):
    id: int
    hooks_dict_ref: Any
    """A weak reference to the dict that holds the hook."""

    def remove(self) -> None: ...


class _Watcher:
    """An observer of one function: unable to raise, and silent when nobody wants to know."""

    def __init__(
        self, patches: Patches, name: str, before: Before, after: After, prepare: Prepare | None, skip: Skip | None
    ) -> None:
        self._patches = patches
        self._name = name
        self._before = patches._observer(name, before)
        self.finish = patches._observer(name, after)
        self._prepare = patches._observer(name, prepare) if prepare else None
        self._skip = skip
        self.receiver: Any = None
        """The object whose method is observed, where that of others is not."""

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Arguments | None] | None:
        """It is called."""
        try:
            if not self._patches.active or (self._skip is not None and self._skip()):
                return None
        except Exception as error:
            self._patches._guard.failed(self._name, error)
            return None
        if self.receiver is not None:
            if args[0] is not self.receiver:
                return None
            args = args[1:]
        replaced = self._prepare(args, kwargs) if self._prepare is not None else None
        token = self._before(*(replaced or (args, kwargs)))
        return None if token is None else (token, replaced)


class Patches:
    """Every change we make to torch, by name."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._woven: dict[str, list[tuple[Weave, _Watcher]]] = {}
        self._observed: dict[int, Any] = {}
        """By their identity, the functions that are observed; what torch offers under two names is one function."""
        self._originals: dict[tuple[int, str], tuple[Any, str, Any, Any]] = {}
        self._handles: dict[str, _Handle] = {}
        self._hooked: dict[str, Callable[..., None]] = {}
        self._indexing: Indexing | None = None
        self.active = True
        _living.append(self)

    @property
    def names(self) -> list[str]:
        """What is patched or hooked now."""
        patched = (_name(owner, attribute) for owner, attribute, *_ in self._originals.values())
        return [*self._woven, *patched, *self._handles]

    def around(
        self,
        owner: Any,
        attribute: str,
        before: Before,
        after: After,
        prepare: Prepare | None = None,
        skip: Skip | None = None,
        only_woven: bool = False,
    ) -> None:
        """Observe every call of `owner.attribute`, but for those of which `skip` says that nobody wants to know.

        `prepare` may hand on equivalent arguments. `only_woven`: leave alone what cannot be woven into, as a class of
        the program's own should not get another attribute.
        """
        original = owner.__dict__.get(attribute)
        if original is None or id(original) in self._observed or (id(owner), attribute) in self._originals:
            return
        self._observed[id(original)] = original
        name = _name(owner, attribute)
        watcher = _Watcher(self, name, before, after, prepare, skip)
        function = original
        if isinstance(original, MethodType):  # of a hidden object, such as `random.seed`
            function, watcher.receiver = original.__func__, original.__self__
        woven = weave(function, watcher, replacing=prepare is not None)
        if woven is not None:
            self._woven.setdefault(name, []).append((woven, watcher))
            return
        if only_woven:
            return
        watcher.receiver = None
        watched = _wrapper(original, watcher)
        if isinstance(owner, ModuleType) and getattr(original, "__self__", None) is not None:
            watched.__module__, watched.__qualname__ = owner.__name__, attribute  # only so can it be pickled
        setattr(owner, attribute, watched)
        self._originals[(id(owner), attribute)] = (owner, attribute, original, watched)

    def around_overrides(self, kind: type, base: type, attribute: str, before: Before, after: After) -> None:
        """Observe a method of torch's class `base` also where `kind` or a class between the two overrides it."""
        for owner in kind.__mro__:
            if owner is base:
                break
            self.around(owner, attribute, before, after)

    def settled(self) -> None:
        """Everything is in place, but for what the program brings along later."""
        forget_texts()

    def around_steps(self, before: Callable[..., None], after: Callable[..., None]) -> None:
        """Observe the steps of all optimizers by the global hooks of torch. `suspend(BEFORE_STEPS)` takes the first one
        away for a while."""
        self._hook(BEFORE_STEPS, optimizers.register_optimizer_step_pre_hook, before)
        self._hook(AFTER_STEPS, optimizers.register_optimizer_step_post_hook, after)

    def around_indexing(self, observe: Observe) -> None:
        """Observe `tensor[...]` until `leave_indexing`."""
        is_compiling = torch.compiler.is_compiling
        self._indexing = Indexing(self._observer("Tensor[...]", observe), lambda: self.active and not is_compiling())
        self._indexing.install()

    def leave_indexing(self) -> None:
        """Nobody wants to know any more which rows are picked."""
        if self._indexing is not None:
            self._indexing.remove()
            self._indexing = None

    def _hook(self, name: str, register: Callable[..., _Handle], function: Callable[..., None]) -> None:
        observe = self._observer(name, function)
        is_compiling = torch.compiler.is_compiling

        def hooked(*args: Any) -> None:
            if not is_compiling() and self.active:
                observe(*args)

        internals.leave_uncompiled(hooked)
        self._handles[name] = register(hooked)
        self._hooked[name] = hooked

    def suspend(self, name: str) -> None:
        """Remove an observer or a hook for a while; `resume` brings it back. Without it torch runs at its own speed."""
        if name in self._woven:
            for woven, watcher in self._woven[name]:
                woven.remove(watcher)
        elif (hooks := self._hooks(name)) is not None:
            hooks.pop(self._handles[name].id, None)

    def resume(self, name: str) -> None:
        """Bring it back."""
        if not self.active:
            return
        if name in self._woven:
            for woven, watcher in self._woven[name]:
                woven.add(watcher)
        elif (hooks := self._hooks(name)) is not None:
            hooks[self._handles[name].id] = self._hooked[name]

    def _hooks(self, name: str) -> Any:
        handle = self._handles.get(name)
        return handle.hooks_dict_ref() if handle is not None else None

    def remove(self) -> None:
        """Put everything back. A wrapper that someone else holds on to does nothing from now on."""
        self.active = False
        if self in _living:
            _living.remove(self)
        self.leave_indexing()
        for woven, watcher in chain.from_iterable(self._woven.values()):
            woven.remove(watcher)
            woven.release()
        _buried.extend(self._originals.values())
        _put_back()
        for handle in self._handles.values():
            handle.remove()
        self._woven.clear()
        self._observed.clear()
        self._originals.clear()
        self._handles.clear()
        self._hooked.clear()

    def _observer(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, unable to raise, not compiled along with a function of the user's, nor seen by their modes and
        subclasses of tensors."""
        modes, set_compiler, unseen = internals.function_modes, internals.set_compiler, internals.without_function_modes
        can_hide = internals.can_hide

        def observe(*args: Any) -> Any:
            compiler = set_compiler(None)
            try:
                with unseen():
                    return function(*args) if can_hide or modes() == 0 else None
            except Exception as error:
                self._guard.failed(name, error)
                return None
            finally:
                if compiler is not None:
                    set_compiler(compiler)

        internals.leave_uncompiled(observe)
        return observe


def _wrapper(original: Any, watcher: _Watcher) -> Callable[..., Any]:
    """For what has no code of Python to weave into."""
    is_compiling = torch.compiler.is_compiling

    def watched(*args: Any, **kwargs: Any) -> Any:
        begun = None if is_compiling() else watcher.begin(args, kwargs)
        if begun is None:
            return original(*args, **kwargs)
        token, replaced = begun
        args, kwargs = replaced or (args, kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            watcher.finish(token, None, error)
            raise
        watcher.finish(token, result, None)
        return result

    watched.__code__ = watched.__code__.replace(co_filename=TRANSPARENT)
    internals.leave_uncompiled(watched)
    # TorchScript cannot compile the wrapper; by these names, meant for its own, it finds the original.
    setattr(watched, "__script_if_tracing_wrapper", True)
    setattr(watched, "__original_fn", _unwatched(original))
    return functools.update_wrapper(watched, original)


def has_compiled() -> bool:
    """Has torch.compile been at work in this process? Then no code may be changed: a compiler may have read it."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and any(dynamo.counters.get(kind) for kind in ("frames", "stats"))


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


for _function in (*RUN_BY_WOVEN_CODE, _Watcher.begin):
    internals.leave_uncompiled(_function)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_switch_off)
