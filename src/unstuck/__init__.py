"""unstuck finds why a PyTorch run does not learn, shows the evidence, and says what to change."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unstuck._version import __version__

if TYPE_CHECKING:
    from unstuck.findings import Diagnosis, Finding, Severity
    from unstuck.preflight import check
    from unstuck.surface import SurfaceModule

    surface: SurfaceModule

__all__ = ["Diagnosis", "Finding", "Severity", "__version__", "check", "surface"]

# Loaded at first use, so that importing unstuck costs nothing and `unstuck --version` starts at once.
_HOMES = {
    "Diagnosis": "unstuck.findings",
    "Finding": "unstuck.findings",
    "Severity": "unstuck.findings",
    "check": "unstuck.preflight",
}


def __getattr__(name: str) -> Any:
    if name == "surface":
        return importlib.import_module("unstuck.surface")
    if name not in _HOMES:
        raise AttributeError(f"module 'unstuck' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
