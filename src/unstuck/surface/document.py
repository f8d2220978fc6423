"""A surface as plain data for programs, described in docs/json.md."""

from __future__ import annotations

from typing import Any

import msgspec

from unstuck.findings.surface import Region, Surface

Json = dict[str, Any]


def document(surface: Surface) -> Json:
    """Everything but the cells of regions and the paths to draw."""
    return {
        "name": surface.name,
        "place": msgspec.to_builtins(surface.place),
        "axes": [
            {"name": axis.name, "low": axis.low, "high": axis.high, "points": len(axis.points)} for axis in surface.axes
        ],
        "method": surface.method,
        "lowest": surface.lowest,
        "highest": surface.highest,
        "marks": [{"name": name, "at": list(at)} for name, at in surface.named_marks],
        "stationary": [msgspec.to_builtins(point) for point in surface.stationary],
        "dead": [_region(region) for region in surface.dead],
        "non_finite": [{**_region(region), "culprit": _culprit(region)} for region in surface.non_finite],
        "kinks": [_region(region) for region in surface.kinks],
        "desired": _region(surface.desired) if surface.desired else None,
        "arrivals": dict(surface.arrivals.ended) if surface.arrivals else {},
        "destinations": msgspec.to_builtins(surface.arrivals.destinations) if surface.arrivals else [],
        "comparison": msgspec.to_builtins(surface.comparison),
        "table": [msgspec.to_builtins(row) for row in surface.table],
        "findings": [finding.code for finding in surface.findings],
        "notes": list(surface.notes),
        "eigenvalues": list(surface.eigenvalues),
        "value": surface.value.tolist(),
        "gradient": surface.gradient.tolist(),
        "components": {name: values.tolist() for name, values in surface.components.items()},
    }


def _region(region: Region) -> Json:
    return {"low": region.low, "high": region.high, "share": region.share, "label": region.label}


def _culprit(region: Region) -> Json | None:
    found: Json | None = msgspec.to_builtins(region.culprit)
    return found
