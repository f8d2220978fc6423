"""unstuck finds why a PyTorch run does not learn, shows the evidence, and says what to change."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unstuck._version import __version__

if TYPE_CHECKING:
    from unstuck import gradients, helpers
    from unstuck.findings import Diagnosis, Finding, Severity
    from unstuck.gradients import GradientManager
    from unstuck.preflight import check
    from unstuck.surface import SurfaceModule

    surface: SurfaceModule

__all__ = [
    "Diagnosis",
    "Finding",
    "GradientManager",
    "Severity",
    "__version__",
    "check",
    "gradients",
    "helpers",
    "surface",
]

# Loaded at first use, so that importing unstuck costs nothing and `unstuck --version` starts at once.
_HOMES = {
    "Diagnosis": "unstuck.findings",
    "Finding": "unstuck.findings",
    "GradientManager": "unstuck.gradients",
    "Severity": "unstuck.findings",
    "check": "unstuck.preflight",
}
_MODULES = ("gradients", "helpers", "surface")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"unstuck.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'unstuck' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
