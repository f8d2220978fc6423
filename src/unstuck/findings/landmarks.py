"""Closed sets of a surface: how it was computed, kinds of points, where descent ends. Without numpy, so that rules can
import them."""

from __future__ import annotations

from enum import StrEnum


class Method(StrEnum):
    """How the loss was computed on a grid."""

    VECTORISED = "vectorised"
    VMAP = "vmap"
    POINT_BY_POINT = "point by point"


class PointKind(StrEnum):
    """What a point where the gradient vanishes is."""

    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    SADDLE = "saddle"
    DEGENERATE = "degenerate"
    """Flat along at least one direction, to second order."""


class End(StrEnum):
    """Where descent ended."""

    DESIRED = "desired region"
    MINIMUM = "minimum"
    LOCAL_MINIMUM = "local minimum"
    """Another one is lower."""
    LOWEST_EDGE = "lowest edge"
    """The lowest value of the plane, at its edge."""
    EDGE = "edge of the plane"
    STUCK = "stuck"
    """No gradient, no minimum."""
    BOTTOMLESS = "bottomless"
    """Falls far below all of the grid."""
    NON_FINITE = "non-finite"
    MOVING = "still moving"
