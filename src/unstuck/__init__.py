"""unstuck finds why a PyTorch run does not learn, shows the evidence, and says what to change."""

from __future__ import annotations

from unstuck._version import __version__

TYPE_CHECKING = False  # importing `typing` for it would take longer than all of `unstuck --version`
if TYPE_CHECKING:
    from typing import Any

    from unstuck import gradients, helpers
    from unstuck.capture import RunStopped
    from unstuck.check.objects import assert_trains, check
    from unstuck.diagnose.objects import diagnose
    from unstuck.experiments.notebook import (
        assert_learns,
        assert_relations,
        baseline,
        causality,
        independence,
        isolate,
        layers,
        lr_range,
        overfit,
        relations,
        seeds,
    )
    from unstuck.findings import Diagnosis, Finding, Severity
    from unstuck.gradients import GradientManager
    from unstuck.surface.scan import surface
    from unstuck.watch.program import watch

__all__ = [
    "Diagnosis",
    "Finding",
    "GradientManager",
    "RunStopped",
    "Severity",
    "__version__",
    "assert_learns",
    "assert_relations",
    "assert_trains",
    "baseline",
    "causality",
    "check",
    "diagnose",
    "gradients",
    "helpers",
    "independence",
    "isolate",
    "layers",
    "lr_range",
    "overfit",
    "relations",
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
    "assert_trains": "unstuck.check.objects",
} | dict.fromkeys(
    (
        "assert_learns",
        "assert_relations",
        "baseline",
        "causality",
        "independence",
        "isolate",
        "layers",
        "lr_range",
        "overfit",
        "relations",
        "seeds",
    ),
    "unstuck.experiments.notebook",
)
_PACKAGES = ("check", "diagnose", "gradients", "helpers", "surface", "watch")


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _PACKAGES:
        raise AttributeError(f"module 'unstuck' has no attribute {name!r}")
    from importlib import import_module

    return import_module(f"unstuck.{name}") if name in _PACKAGES else getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
