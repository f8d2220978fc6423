"""Words for places on the plane, shared by the rules about surfaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstuck.findings import Subject

if TYPE_CHECKING:
    from unstuck.findings.surface import Point, Region, Surface

MOST_LINES = 4


def subject_of(surface: Surface) -> Subject:
    """The loss itself."""
    return Subject("loss", surface.name)


def point(surface: Surface, at: Point) -> str:
    """`pos = 0.3, neg = -0.3`."""
    return ", ".join(
        f"{axis.name} = {near_zero(value, axis.span)}" for axis, value in zip(surface.axes, at, strict=True)
    )


def near_zero(value: float, span: float) -> str:
    """Four digits; 0 for what is negligible on the scale of the axis."""
    return f"{value:.4g}" if abs(value) > 1e-9 * span else "0"


def box(surface: Surface, region: Region) -> str:
    """`pos from -1 to 0.2 and all neg`; `p = 0 or q = 0` for a region of whole lines."""
    lines = _whole_lines(surface, region)
    if lines:
        return lines
    parts = []
    for axis, low, high in zip(surface.axes, region.low, region.high, strict=True):
        if low == axis.low and high == axis.high:
            parts.append(f"all {axis.name}")
        elif low == high:
            parts.append(f"{axis.name} = {low:.4g}")
        else:
            parts.append(f"{axis.name} from {low:.4g} to {high:.4g}")
    return " and ".join(parts)


def _whole_lines(surface: Surface, region: Region) -> str:
    """The grid lines it consists of, if it is a few lines parallel to the axes."""
    if surface.dimensions != 2 or region.cells.all() or not region.cells.any():
        return ""
    lines = [region.cells.all(axis=1, keepdims=True), region.cells.all(axis=0, keepdims=True)]
    rest = region.cells & ~lines[0] & ~lines[1]
    if rest.any() or sum(int(line.sum()) for line in lines) > MOST_LINES:
        return ""
    pairs = zip(surface.axes, lines, strict=True)
    return " or ".join(f"{axis.name} = {value:.4g}" for axis, there in pairs for value in axis.points[there.ravel()])


def percent(share: float) -> str:
    """A readable share; never 0 % of something that exists."""
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.2g} %"


def plane(surface: Surface) -> str:
    """What the grid covers: `line` or `plane`."""
    return "line" if surface.dimensions == 1 else "plane"
