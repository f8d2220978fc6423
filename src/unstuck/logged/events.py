"""Logged numbers as events of a record, as far as they say the same as what a watched run records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from unstuck.events import Evaluated, Event, Gauges, NonFinite, RunStarted, ScalerUpdate
from unstuck.logged import Log
from unstuck.logged.roles import Roles, points_of
from unstuck.record.record import Record

OPTIMIZER = "the optimizer"
"""Nobody logs its name."""


def record_of(log: Log, roles: Roles) -> Record:
    """It has no end, and none is missed."""
    started = RunStarted(script=str(log.path), watched="logged")
    events = sorted([*_gauges(log, roles), *_evaluations(log, roles), *_scales(log, roles)], key=lambda one: one.step)
    return Record(Path(log.path), (started, *events), is_running=True)


def _gauges(log: Log, roles: Roles) -> Iterator[Event]:
    losses, gradients = dict(points_of(log, roles.loss)), dict(points_of(log, roles.gradient))
    rates = [dict(points_of(log, name)) for name in roles.rates]
    is_broken = False
    for step in sorted(losses.keys() | gradients.keys() | {step for rate in rates for step in rate}):
        loss = losses.get(step)
        if loss is not None and not math.isfinite(loss) and not is_broken:
            is_broken = True
            # A log counts the steps that were taken, a record those before.
            yield NonFinite(step=max(0, step - 1), what="loss", value="nan" if math.isnan(loss) else "inf")
        yield Gauges(
            step=step,
            optimizer=OPTIMIZER,
            loss=_finite(loss),
            grad_norm=_finite(gradients.get(step)),
            rates=tuple(rate[step] for rate in rates if step in rate and math.isfinite(rate[step])),
        )


def _evaluations(log: Log, roles: Roles) -> Iterator[Event]:
    losses, shares = dict(points_of(log, roles.evaluation)), dict(points_of(log, roles.accuracy))
    # Some log percent.
    unit = 100.0 if any(share > 1 for share in shares.values()) else 1.0
    for step in sorted(losses.keys() | shares.keys()):
        share = _finite(shares.get(step))
        yield Evaluated(step=step, value=_finite(losses.get(step)), accuracy=None if share is None else share / unit)


def _scales(log: Log, roles: Roles) -> Iterator[Event]:
    skipped, before = 0, 0.0
    for step, scale in points_of(log, roles.scale):
        if math.isfinite(scale) and scale > 0:
            # Each halving is a step that was skipped; where the scale grew in between, there were more.
            skipped += round(math.log2(before / scale)) if before > scale else 0
            before = scale
            yield ScalerUpdate(step=step, scale=scale, skipped=skipped)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
