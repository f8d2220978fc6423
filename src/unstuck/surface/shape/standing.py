"""What a loss is like at the points where a run was, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from unstuck.findings.surface import Mask, Point, Surface


def with_standings(surface: Surface, notes: Sequence[str] = ()) -> Surface:
    """The surface with these notes, and one more for every operating point that has a name."""
    told = [_standing(surface, name, at) for name, at in surface.named_marks if name]
    return replace(surface, notes=(*notes, *told, *surface.notes))


def _standing(surface: Surface, name: str, at: Point) -> str:
    where = ", ".join(f"{axis.name} {value:.4g}" for axis, value in zip(surface.axes, at, strict=True))
    rows = [row for row in surface.table if row.component == "loss" and row.at == at]
    loss = rows[0].loss if rows else float("nan")
    slopes = ", ".join(f"{row.gradient:.4g}" for row in rows)
    told = f"{name[:1].upper()}{name[1:]}, at {where}, the loss is {loss:.4g} and its gradient {slopes}"
    return f"{told}: {_judged(surface, at, [row.gradient for row in rows], loss)}."


def _judged(surface: Surface, at: Point, slopes: list[float], loss: float) -> str:
    cell = tuple(int(np.abs(axis.points - value).argmin()) for axis, value in zip(surface.axes, at, strict=True))
    if not np.isfinite([loss, *slopes]).all():
        return "training was where the loss is not finite"
    lowest = loss <= surface.lowest + 1e-3 * (surface.highest - surface.lowest)
    if any(region.cells[cell] for region in surface.dead) or not any(slopes):
        return "training was at its lowest" if lowest else "training was in a dead zone, from which nothing leads out"
    typical = float(np.median(surface.steepness[surface.finite]))
    share = float(np.hypot.reduce(slopes)) / typical if typical else 0.0
    if lowest:
        return "training was close to its lowest here"
    return f"training had {share:.2g} times the gradient that is typical here"


def _holds(cells: Mask, cell: tuple[int, ...]) -> bool:
    return bool(cells[cell])
