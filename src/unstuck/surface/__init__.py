"""A loss on its own: `unstuck.surface(loss, x=("margin", -3, 3))`, and `unstuck.surface.landscape` for a model.

The package is itself the function: calling it draws a loss.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unstuck.callable_package import make_callable

if TYPE_CHECKING:
    from unstuck.findings.surface import Axis, Surface
    from unstuck.surface.compare import difference
    from unstuck.surface.loss import SurfaceError
    from unstuck.surface.weights.landscape import landscape

__all__ = ["Axis", "Surface", "SurfaceError", "difference", "landscape"]

CALLS = "unstuck.surface.scan:surface"
# Loaded at first use: what only shows a surface needs no torch.
_HOMES = {
    "Axis": "unstuck.findings.surface",
    "Surface": "unstuck.findings.surface",
    "SurfaceError": "unstuck.surface.loss",
    "difference": "unstuck.surface.compare",
    "landscape": "unstuck.surface.weights.landscape",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unstuck.surface' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


make_callable(__name__)
