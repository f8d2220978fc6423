"""Which panels a picture has: every variant on one scale, what changed between them, and the remedies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unstuck.findings.surface import Array, Surface
from unstuck.surface.pictures.scale import Scale, diverging, sequential

WHOLE = ""
"""The name of the whole loss next to its components."""


@dataclass(frozen=True, eq=False)
class Panel:
    """One map or curve: a surface, or a surface minus another."""

    title: str
    surface: Surface
    scales: dict[str, Scale]
    """By component, the whole loss first; panels that are to be compared share them."""
    slopes: Scale
    """The scale of the gradient of the whole loss."""
    minus: Surface | None = None

    @property
    def scale(self) -> Scale:
        """The scale of the whole loss."""
        return self.scales[WHOLE]

    @property
    def values(self) -> Array:
        """What the panel shows at every point of the grid."""
        return self.surface.value if self.minus is None else _difference(self.surface.value, self.minus.value)

    @property
    def gradient(self) -> Array:
        """The gradient of what the panel shows."""
        other = self.minus
        return self.surface.gradient if other is None else _difference(self.surface.gradient, other.gradient)


def panels(surfaces: Sequence[Surface]) -> list[Panel]:
    """The variants side by side, each difference to the first, then each remedy on a scale of its own."""
    first, *others = surfaces
    variants = _on_one_scale(surfaces)
    changes = [_change(surface, first) for surface in others if same_grid(surface, first)]
    remedies = [_on_one_scale([surface.remedy]) for surface in surfaces if surface.remedy is not None]
    return [*variants, *changes, *(panel for group in remedies for panel in group)]


def same_grid(one: Surface, other: Surface) -> bool:
    """Can the two be compared point by point?"""
    if one.value.shape != other.value.shape:
        return False
    return all(np.allclose(a.points, b.points) for a, b in zip(one.axes, other.axes, strict=True))


def arrow_range(shown: Sequence[Panel]) -> tuple[float, float]:
    """The gradients that get the shortest and the longest arrow: two to six powers of ten apart."""
    steepness = np.concatenate([panel.surface.steepness.ravel() for panel in shown])
    sloping = steepness[np.isfinite(steepness) & (steepness > 0)]
    if not sloping.size:
        return 1.0, 1.0
    highest = float(sloping.max())
    return float(np.clip(sloping.min(), highest * 1e-6, highest * 1e-2)), highest


def _change(surface: Surface, first: Surface) -> Panel:
    pairs = {WHOLE: (surface.value, first.value)}
    pairs |= {name: (part, first.components[name]) for name, part in _common(surface, first).items()}
    scales = {name: diverging(_difference(new, old)) for name, (new, old) in pairs.items()}
    slopes = diverging(_difference(surface.gradient, first.gradient))
    return Panel(f"{surface.name} − {first.name}", surface, scales, slopes, minus=first)


def _common(surface: Surface, other: Surface) -> dict[str, Array]:
    return {name: part for name, part in surface.components.items() if name in other.components}


def _on_one_scale(surfaces: Sequence[Surface]) -> list[Panel]:
    pooled: dict[str, list[Array]] = {WHOLE: [surface.value.ravel() for surface in surfaces]}
    for surface in surfaces:
        for name, part in surface.components.items():
            pooled.setdefault(name, []).append(part.ravel())
    scales = {name: sequential(np.concatenate(parts)) for name, parts in pooled.items()}
    slopes = sequential(np.concatenate([surface.gradient.ravel() for surface in surfaces]))
    return [Panel(surface.name, surface, scales, slopes) for surface in surfaces]


def _difference(new: Array, old: Array) -> Array:
    # Infinity minus infinity is not a number, which is what the picture then shows.
    with np.errstate(invalid="ignore"):
        change: Array = new - old
    return change
