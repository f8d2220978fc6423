"""Packages that are functions too: `unstuck.check(model, ...)` checks, and `unstuck.check.probe` is a module of it."""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package that can be called. `CALLS` names its function as `module:name`, which is loaded at the first call."""

    CALLS: str

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function that the package is named after."""
        return self._function()(*arguments, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())

    def _function(self) -> Any:
        module, _, name = self.CALLS.partition(":")
        return getattr(importlib.import_module(module), name)


def make_callable(package: str) -> None:
    """Called by a package's `__init__`, which sets `CALLS`."""
    sys.modules[package].__class__ = CallablePackage
