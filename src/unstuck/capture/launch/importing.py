"""Calls back right after the program has imported a module, and leaves the import machinery as it was."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from unstuck.capture.torch_hooks.weaving import weave


def after_import(name: str, callback: Callable[[], object]) -> Callable[[], None]:
    """Call `callback` once after `name` has been imported. Returns a function that calls this off."""
    waiting = _Waiting(name, callback)
    # Through this function of python's goes every import of a module that is not there yet, whoever finds and loads it.
    function = getattr(sys.modules["_frozen_importlib"], "_find_and_load_unlocked", None)
    woven = weave(function, waiting, path=os.path.join(os.path.dirname(importlib.__file__), "_bootstrap.py"))
    if woven is not None:
        waiting.withdraw = partial(woven.remove, waiting)
        return waiting.withdraw
    finder = _Finder(name, callback)  # the program sees it in `sys.meta_path`
    sys.meta_path.insert(0, finder)
    return finder.withdraw


class _Waiting:
    """Observes imports until the one it waits for."""

    def __init__(self, name: str, callback: Callable[[], object]) -> None:
        self._name = name
        self._callback = callback
        self.withdraw: Callable[[], None] = lambda: None

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, None] | None:
        return (self._name, None) if args[0] == self._name else None

    def finish(self, name: str, module: Any, error: BaseException | None) -> None:
        if error is None:
            self.withdraw()
            self._callback()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, callback: Callable[[], object]) -> None:
        self._name = name
        self._callback = callback

    def withdraw(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        position = sys.meta_path.index(self)
        self.withdraw()
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(position, self)
        # `find_spec("torch")` only asks whether it exists; the loader knows when it is really imported.
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def imported(self) -> None:
        self.withdraw()
        self._callback()


class _Loader(importlib.abc.Loader):
    """Loads as the original does, which is put back before the module's own code runs."""

    def __init__(self, original: importlib.abc.Loader, finder: _Finder) -> None:
        self._original = original
        self._finder = finder

    def __getattr__(self, name: str) -> object:
        return getattr(self._original, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._original
        if module.__spec__ is not None:
            module.__spec__.loader = self._original
        self._original.exec_module(module)
        self._finder.imported()
