"""Targets that are ids of the input: at which position, and are they shown?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unstuck.capture.detect.graph import Node
from unstuck.capture.tasks.cells import Whole, cells_of
from unstuck.events import Place, TargetsPlaced

SHIFTS = (-1, 0, 1, 2, 3)
_FEWEST_KINDS = 6
_FEWEST = 32
"""Targets."""
_CLASSES = 1
"""The axis that holds them."""
_SHORTEST = 4
"""Positions."""


class Wanted(NamedTuple):
    """What a loss compared, until its backward."""

    loss: str
    source: Tensor
    target: Tensor
    ignored: int | None
    place: Place | None


class _Placed(NamedTuple):
    share: float
    next_best: float
    shift: int
    axis: int


def placed(
    whole: Whole, wanted: Wanted, given: Sequence[Tensor], step: int, place: Place | None
) -> TargetsPlaced | None:
    """Compare the targets with each tensor of ids that the model was given; the one that fits best counts."""
    node: Node = wanted.source.grad_fn
    if node is None or wanted.source.dim() < 2 or wanted.target.is_floating_point():
        return None
    best: tuple[_Placed, Tensor, Tensor] | None = None
    asked = whole.pulls([node]).get(node) if given else None
    for ids in given:
        cells = cells_of(node, (ids.shape[0], ids.shape[1]))
        if cells is None or cells.shape != wanted.source.shape:
            continue
        cells = cells.select(_CLASSES, 0)
        if cells.shape != wanted.target.shape:
            continue
        counted = wanted.target != (-100 if wanted.ignored is None else wanted.ignored)
        if asked is not None and asked.shape == wanted.source.shape:
            counted = counted & (asked != 0).any(_CLASSES)
        where, targets = cells[counted].long(), wanted.target[counted]
        if (
            len(targets) < _FEWEST
            or len(torch.unique(targets)) < _FEWEST_KINDS
            or len(torch.unique(where)) < len(where)
        ):
            continue
        fits = [_shifted(ids, where, targets, axis) for axis in (1, 0) if ids.shape[axis] >= _SHORTEST]
        found = max(fits, key=lambda one: one.share, default=None)
        if found is not None and (best is None or found.share > best[0].share):
            best = found, ids, where
    return None if best is None else _event(wanted.loss, *best, step, place)


def _shifted(ids: Tensor, where: Tensor, targets: Tensor, axis: int) -> _Placed:
    """The shift along this axis by which most targets are inputs."""
    width = ids.shape[1]
    places = [where // width, where % width]
    shares = {}
    for shift in SHIFTS:
        moved = places[axis] + shift
        inside = (moved >= 0) & (moved < ids.shape[axis])
        at = (places[0][inside], moved[inside]) if axis == 1 else (moved[inside], places[1][inside])
        equal = ids[at] == targets[inside]
        shares[shift] = float(equal.double().mean()) if int(inside.sum()) >= _FEWEST // 2 else 0.0
    shift = max(shares, key=lambda one: shares[one])
    return _Placed(shares[shift], max(share for one, share in shares.items() if one != shift), shift, axis)


def _event(loss: str, found: _Placed, ids: Tensor, where: Tensor, step: int, place: Place | None) -> TargetsPlaced:
    rows = ids if found.axis == 1 else ids.t()
    scored = torch.zeros(ids.numel(), dtype=torch.bool)
    scored[where] = True
    scored = scored.reshape(ids.shape) if found.axis == 1 else scored.reshape(ids.shape).t()
    inner = ~padding_of(rows)
    hidden = inner & ~scored
    fillers = rows[hidden]
    filler = 0.0
    if fillers.numel():
        values, counts = torch.unique(fillers, return_counts=True)
        most = values[counts.argmax()]
        alone = not bool((rows[scored] == most).any())
        filler = float(counts.max() / counts.sum()) if alone else 0.0
    return TargetsPlaced(
        step=step,
        place=place,
        loss=loss,
        length=rows.shape[1],
        scored=len(where),
        shift=found.shift,
        share=found.share,
        next_best=found.next_best,
        hidden=float(hidden.sum() / inner.sum().clamp_min(1)),
        filler=filler,
        patterns=float((hidden != hidden[:1]).any(1).double().mean()),
    )


def padding_of(ids: Tensor) -> Tensor:
    """Where rows end, or begin, with repetitions of the id that most of them end, or begin, with."""
    found = torch.zeros_like(ids, dtype=torch.bool)
    for order in (ids.flip(1), ids):
        pad = order[:, 0].mode().values
        run = (order == pad).long().cumprod(1).bool()
        if int(run.sum(1).max()) >= 2 and bool(run.any(1).sum() * 2 >= len(ids)):
            found |= run.flip(1) if order is not ids else run
    return found
