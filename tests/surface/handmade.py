"""Surfaces made by hand, so that pictures are tested apart from what computes surfaces."""

from __future__ import annotations

import numpy as np

from unstuck.events import Place
from unstuck.findings import Confidence, Evidence, Finding, Fix, Severity, Subject, Witness
from unstuck.findings.surface import Arrivals, Axis, FlowLine, FlowRow, Mask, Region, Stationary, Surface


def region(axes: tuple[Axis, ...], cells: Mask, label: str = "") -> Region:
    inside = np.nonzero(cells)
    low = tuple(float(axis.points[places.min()]) for axis, places in zip(axes, inside, strict=True))
    high = tuple(float(axis.points[places.max()]) for axis, places in zip(axes, inside, strict=True))
    return Region(low, high, float(cells.mean()), cells, label)


def bowl(name: str = "bowl", count: int = 21, tilt: float = 0.0) -> Surface:
    """x² + 2 y² + tilt·x with everything a surface can have: a hole, a dead zone, points, flows, findings."""
    axes = (Axis("pos", np.linspace(-1, 1, count)), Axis("neg", np.linspace(-2, 2, count + 4)))
    x, y = np.meshgrid(*(axis.points for axis in axes), indexing="ij")
    hole, dead = x + y < -2, (x > 0.6) & (y > 1)
    value = np.where(dead, 9.0, x**2 + 2 * y**2 + tilt * x)
    slope = np.where(dead, 0.0, np.stack([2 * x + tilt, 4 * y]))
    return Surface(
        name,
        axes,
        np.where(hole, np.nan, value),
        np.where(hole, np.nan, slope),
        components={"pull": x**2 + tilt * x, "push": 2 * y**2},
        stationary=(
            Stationary((0.0, 0.0), 0.0, "minimum", (2.0, 4.0)),
            Stationary((0.5, -1.0), 1.0, "saddle", (-1.0, 1.0)),
        ),
        dead=(region(axes, dead, "zero gradient"),),
        non_finite=(region(axes, hole, "nan after log"),),
        desired=region(axes, (abs(x) < 0.2) & (abs(y) < 0.4)),
        flows=(FlowLine("flow", np.array([[0.5, 1.0], [0.2, 0.1], [0.0, 0.0]]), "minimum"),),
        table=(FlowRow("loss", "pos", "zero", (0.0, 0.0), 0.0, 0.0, "zero gradient"),),
        findings=(finding(),),
        marks=((0.3, -0.3),),
        notes=("A note.",),
        place=Place("losses.py", 12),
        arrivals=Arrivals(100, {"minimum": 0.9, "stuck": 0.1}),
    )


def hinge(name: str = "hinge", edge: float = 1.0) -> Surface:
    """max(0, edge - x), infinite at the left end."""
    axes = (Axis("margin", np.linspace(-3, 3, 61)),)
    (x,) = (axis.points for axis in axes)
    value, slope = np.maximum(0, edge - x), np.where(x < edge, -1.0, 0.0)
    return Surface(
        name,
        axes,
        np.where(x < -2.75, np.inf, value),
        np.where(x < -2.75, np.nan, slope)[None],
        dead=(region(axes, x >= edge, "zero gradient"),),
        non_finite=(region(axes, x < -2.75, "inf after exp"),),
        kinks=(region(axes, abs(x - edge) < 0.05, "kink"),),
        desired=region(axes, (x > 0.5) & (x < 2)),
        marks=((0.0,),),
    )


def finding(message: str = "The gradient is zero on 5 % of the plane.") -> Finding:
    return Finding(
        code="S01",
        name="dead-zone",
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        witness=Witness.SETUP,
        message=message,
        cause="An optimizer that lands there stays.",
        subject=Subject("loss", "bowl"),
        evidence=(Evidence("share", 0.05), Evidence("steepest", float("inf"))),
        fix=Fix("Use softplus."),
    )
