"""Where the loss of a run begins, how low it can go, and what it costs to answer every example alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from unstuck.findings.curve import Curve
    from unstuck.record import Record

SAME = 0.02
"""Two losses that differ by less than this share are one."""
MOVED = 0.1
"""A loss that changed by this share shows whether another one is in proportion to it."""


class Levels(msgspec.Struct, frozen=True):
    """Levels of the loss that is back-propagated; None where they are not known."""

    floor: float | None = None
    constant: float | None = None
    targets: int | None = None
    """How many numbers or labels the losses were given to fit."""
    guess: float | None = None
    """What a model costs that knows nothing."""


def levels_of(notes: dict[str, Any], curve: Curve) -> Levels:
    """From what the losses of the frozen batch told, if the loss of the loop is their sum or in proportion to it."""
    told = notes.get("goals") or {}
    goals: Sequence[dict[str, Any]] = told.get("kept") or ()
    if not goals:
        return Levels()
    targets = max(int(goal["targets"]) for goal in goals)
    scale = _scale(told, curve)
    if scale is None:
        return Levels(targets=targets)
    floor, constant = (_mean([goal[level] for goal in goals]) for level in ("floor", "constant"))
    return Levels(_times(floor, scale), _times(constant, scale), targets)


def expected_start(record: Record) -> tuple[float, str] | None:
    """What a model that knows nothing costs, and how that comes about, for a run with one kind of loss."""
    from unstuck.events import LossCall
    from unstuck.rules.recipe.init_loss import LOSSES, guess_of
    from unstuck.rules.shared import losses

    if not losses.starts_fresh(record):
        return None
    first = [call for call in record.of(LossCall) if call.step == 0 and call.output_requires_grad]
    groups = losses.trained(first, LOSSES)
    if len(groups) != 1 or len(groups[0]) != len(first) or any(c.weighted or c.reduction != "mean" for c in first):
        return None
    guess, words = guess_of(first[0])
    return (guess, words) if guess > 0 else None


def _scale(told: dict[str, Any], curve: Curve) -> float | None:
    """The loss of the loop as a multiple of the mean of its loss calls, where it is one all the time."""
    whole = dict(zip(curve.steps, curve.losses, strict=True))
    first, last = [goal["value"] for goal in told["kept"]], told["last"]
    before, after = _mean(first), _mean(last) if len(last) == len(first) else None
    early, late = _ratio(whole.get(told["kept_step"]), before), _ratio(whole.get(told["last_step"]), after)
    if early is None or before is None:
        return None
    for plain in (1.0, float(len(first))):
        if abs(early - plain) < SAME * plain and (late is None or abs(late - plain) < MOVED * plain):
            return plain
    moved = after is not None and abs(after - before) > MOVED * abs(before)
    return early if moved and late is not None and abs(late - early) < SAME * abs(early) else None


def _ratio(loss: float | None, parts: float | None) -> float | None:
    return loss / parts if loss is not None and parts is not None and abs(parts) > 1e-9 else None


def _times(level: float | None, scale: float) -> float | None:
    return None if level is None else level * scale


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None
