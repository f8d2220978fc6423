"""unstuck finds why a PyTorch run does not learn, shows the evidence, and says what to change."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unstuck._version import __version__

if TYPE_CHECKING:
    from unstuck import gradients, helpers
    from unstuck.capture import RunStopped
    from unstuck.experiments.diagnose_objects import diagnose
    from unstuck.experiments.notebook import baseline, causality, independence, lr_range, overfit, seeds
    from unstuck.findings import Diagnosis, Finding, Severity
    from unstuck.gradients import GradientManager
    from unstuck.live.watching import watch
    from unstuck.preflight import assert_trains, check
    from unstuck.surface import SurfaceModule

    surface: SurfaceModule

__all__ = [
    "Diagnosis",
    "Finding",
    "GradientManager",
    "RunStopped",
    "Severity",
    "__version__",
    "assert_trains",
    "baseline",
    "causality",
    "check",
    "diagnose",
    "gradients",
    "helpers",
    "independence",
    "lr_range",
    "overfit",
    "seeds",
    "surface",
    "watch",
]

# Loaded at first use, so that importing unstuck costs nothing and `unstuck --version` starts at once.
_HOMES = {
    "Diagnosis": "unstuck.findings",
    "Finding": "unstuck.findings",
    "GradientManager": "unstuck.gradients",
    "RunStopped": "unstuck.capture",
    "Severity": "unstuck.findings",
    "assert_trains": "unstuck.preflight",
    "check": "unstuck.preflight",
    "diagnose": "unstuck.experiments.diagnose_objects",
    "watch": "unstuck.live.watching",
} | dict.fromkeys(
    ("baseline", "causality", "independence", "lr_range", "overfit", "seeds"), "unstuck.experiments.notebook"
)
_MODULES = ("gradients", "helpers", "surface")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"unstuck.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'unstuck' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
