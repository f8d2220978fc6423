"""What the interactive page is given: surfaces as JSON, with numbers JSON has no word for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from unstuck.events import Place
from unstuck.findings import Evidence, Finding
from unstuck.findings.surface import Array, Axis, FlowLine, FlowRow, Mask, Region, Stationary, Surface
from unstuck.surface.pictures.colours import ink_on
from unstuck.surface.pictures.layout import Panel, arrow_range, panels
from unstuck.surface.pictures.scale import Scale

Json = dict[str, Any]

MOST_POINTS = {1: 2000, 2: 128}
"""Points along an axis; finer grids are thinned, or the page would take megabytes."""
MOST_FLOW_POINTS = 150
VALUE_DIGITS = 7
SLOPE_DIGITS = 4
"""As many as the page shows; the loss itself has more, since it may vary little around a large value."""


def document(surfaces: Sequence[Surface]) -> bytes:
    """Everything the page draws, as JSON."""
    thinned = [_thinned(surface) for surface in surfaces]
    shown = panels(thinned)
    sources = [panel.surface for panel in shown if panel.minus is None]
    places = {id(surface): place for place, surface in enumerate(sources)}
    return msgspec.json.encode(
        {
            "surfaces": [_surface(surface) for surface in sources],
            "panels": [_panel(panel, places) for panel in shown],
            "arrows": _numbers(arrow_range(shown)),
        }
    )


def _thinned(surface: Surface) -> Surface:
    most = MOST_POINTS[surface.dimensions]
    steps = [-(-len(axis.points) // most) for axis in surface.axes]
    if max(steps) == 1:
        return surface
    every = tuple(slice(None, None, step) for step in steps)
    return dataclasses.replace(
        surface,
        axes=tuple(Axis(axis.name, axis.points[::step]) for axis, step in zip(surface.axes, steps, strict=True)),
        value=surface.value[every],
        gradient=surface.gradient[(slice(None), *every)],
        components={name: part[every] for name, part in surface.components.items()},
        notes=(*surface.notes, f"This page shows every {max(steps)}th point of the grid along an axis."),
        remedy=surface.remedy and _thinned(surface.remedy),
        dead=_sampled(surface.dead, every),
        non_finite=_sampled(surface.non_finite, every),
        kinks=_sampled(surface.kinks, every),
        desired=_sampled((surface.desired,), every)[0] if surface.desired else None,
    )


def _sampled(regions: Iterable[Region], every: tuple[slice, ...]) -> tuple[Region, ...]:
    return tuple(dataclasses.replace(region, cells=region.cells[every]) for region in regions)


def _surface(surface: Surface) -> Json:
    return {
        "name": surface.name,
        "place": _place(surface.place) if surface.place else "",
        "method": surface.method,
        "axes": [_axis(axis) for axis in surface.axes],
        "value": _numbers(surface.value),
        "gradient": [_numbers(part, SLOPE_DIGITS) for part in surface.gradient],
        "components": {name: _numbers(part, SLOPE_DIGITS) for name, part in surface.components.items()},
        "stationary": [_stationary(spot) for spot in surface.stationary],
        "dead": [_region(region) for region in surface.dead],
        "nonFinite": [_region(region) for region in surface.non_finite],
        "kinks": [_region(region) for region in surface.kinks],
        "desired": surface.desired and _region(surface.desired),
        "flows": [_flow(flow) for flow in surface.flows],
        "marks": [_numbers(mark) for mark in surface.marks],
        "markNames": list(surface.mark_names),
        "table": [_row(row) for row in surface.table],
        "findings": [_finding(finding) for finding in surface.findings],
        "nothing": _nothing_found(surface),
        "notes": list(surface.notes),
        "arrivals": surface.arrivals and {"starts": surface.arrivals.starts, "ended": dict(surface.arrivals.ended)},
        "eigenvalues": _numbers(surface.eigenvalues),
    }


def _nothing_found(surface: Surface) -> str:
    """What is shown in place of findings: what was looked at, and nothing more."""
    if surface.findings:
        return ""
    if not surface.rules_checked:
        return "This surface was only drawn: no rule looked at it."
    return f"Nothing found over {surface.extent}; {surface.rules_checked} rules checked."


def _place(place: Place) -> str:
    """As seen from here: a page that is passed on should not show where its author keeps files."""
    path, here = Path(place.path), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{place.line}"


def _axis(axis: Axis) -> Json:
    return {"name": axis.name, "low": axis.low, "high": axis.high, "count": len(axis.points)}


def _stationary(spot: Stationary) -> Json:
    return {
        "kind": spot.kind,
        "at": _numbers(spot.at),
        "value": _number(spot.value),
        "curvature": _numbers(spot.curvature),
    }


def _region(region: Region) -> Json:
    return {
        "label": region.label,
        "share": region.share,
        "low": _numbers(region.low),
        "high": _numbers(region.high),
        "runs": run_lengths(region.cells),
    }


def run_lengths(cells: Mask) -> list[int]:
    """How many points are outside, then inside, then outside ..., row by row."""
    flat = cells.ravel()
    turns = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    lengths: list[int] = np.diff([0, *turns, flat.size]).tolist()
    return [0, *lengths] if flat.size and flat[0] else lengths


def _flow(flow: FlowLine) -> Json:
    picked = np.linspace(0, len(flow.points) - 1, min(len(flow.points), MOST_FLOW_POINTS)).astype(int)
    return {"ended": flow.ended, "points": [_numbers(at, SLOPE_DIGITS) for at in flow.points[picked]]}


def _row(row: FlowRow) -> Json:
    return {
        "component": row.component,
        "parameter": row.parameter,
        "label": row.label,
        "at": _numbers(row.at),
        "loss": _number(row.loss),
        "gradient": _number(row.gradient),
        "flag": row.flag,
    }


def _finding(finding: Finding) -> Json:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "message": finding.message,
        "cause": finding.cause,
        "fix": finding.fix.text,
        "evidence": [_fact(fact) for fact in finding.evidence],
    }


def _fact(fact: Evidence) -> Json:
    value = _number(fact.value) if isinstance(fact.value, float) else fact.value
    return {"name": fact.name, "value": value, "unit": fact.unit}


def _panel(panel: Panel, places: dict[int, int]) -> Json:
    return {
        "title": panel.title,
        "surface": places[id(panel.surface)],
        "minus": None if panel.minus is None else places[id(panel.minus)],
        "scales": {name: _scale(scale) for name, scale in panel.scales.items()},
        "slopes": _scale(panel.slopes),
    }


def _scale(scale: Scale) -> Json:
    return {
        "low": _number(scale.low),
        "high": _number(scale.high),
        "centre": scale.centre,
        "softness": scale.softness,
        "levels": list(scale.levels),
        "colours": list(scale.colours),
        "inks": [ink_on(colour) for colour in scale.colours],
    }


def _numbers(values: Array | Iterable[float], digits: int = VALUE_DIGITS) -> msgspec.Raw:
    flat = values.ravel().tolist() if isinstance(values, np.ndarray) else values
    return msgspec.Raw(b"[" + ",".join(_text(value, digits) for value in flat).encode() + b"]")


def _number(value: float) -> msgspec.Raw:
    return msgspec.Raw(_text(value, VALUE_DIGITS).encode())


def _text(value: float, digits: int) -> str:
    """NaN becomes null, and infinity a number so large that every reader takes it for infinite."""
    if math.isfinite(value):
        return f"{value:.{digits}g}"
    return "null" if math.isnan(value) else "1e999" if value > 0 else "-1e999"
