"""O09 as a run shows it: what each micro-batch's loss was divided by, against how many were added up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from unstuck.events import Backward, Clip, Forward, LossCall, OptimizerSeen
from unstuck.rules.shared.accumulation import STEADY, StepWindow, close, micro_windows, usual
from unstuck.rules.shared.dynamics import median, quantile

if TYPE_CHECKING:
    from unstuck.record import Record

UNEQUAL = 2.0
FEWEST_COUNTED = 8
"""How many times more targets the largest micro-batch of a step holds than the smallest, before it is worth a word."""


class MicroStep(NamedTuple):
    """A backward and the mean losses computed for it."""

    backward: Backward
    losses: list[LossCall]

    @property
    def divisor(self) -> float | None:
        """What the sum of the losses was divided by on its way to backward."""
        values = [loss.value for loss in self.losses]
        known = [value for value in values if value]
        return sum(known) / self.backward.value if len(known) == len(values) and self.backward.value else None

    @property
    def lines(self) -> list[object]:
        """Which losses they are."""
        return [(loss.loss, loss.place and loss.place.key) for loss in self.losses]


class Accumulated(NamedTuple):
    """How a run accumulates: `every` backwards for each step, each on a mean loss divided by `divisor`."""

    every: int
    divisor: float
    windows: list[StepWindow]
    loss: LossCall
    kind: str
    """The class of the optimizer."""

    @property
    def cuts(self) -> bool:
        """Did clipping shorten a gradient?"""
        clips = [event for window in self.windows for event in window.events if isinstance(event, Clip)]
        return any(clip.norm is not None and clip.limit is not None and clip.norm > clip.limit for clip in clips)

    def sizes(self) -> list[tuple[float, float]]:
        """How many targets the smallest and the largest micro-batch of each step held.

        Where positions are left out, they are counted in some calls only: those stand for all.
        """
        losses = [[micro.losses[0] for micro in _micro_steps(window) or ()] for window in self.windows]
        counted = sorted(_targets(loss) for found in losses for loss in found if loss.ignored is not None)
        if len(counted) >= FEWEST_COUNTED and any(loss.ignored for found in losses for loss in found):
            ends = (quantile(counted, 0.1) or 0.0, quantile(counted, 0.9) or 0.0)
            return [ends] * STEADY if ends[0] > 0 else []
        counts = ([_targets(loss) for loss in found] for found in losses)
        return [(min(found), max(found)) for found in counts if found and min(found) > 0]


def accumulated(record: Record) -> Accumulated | None:
    """Read it off the run, if all micro-steps have the same mean losses and the gradients are left as they come."""
    every = usual([len(window.backwards) for window in micro_windows(record)])
    windows = [window for window in micro_windows(record) if len(window.backwards) == every]
    found = [_micro_steps(window) for window in windows]
    if len(windows) < STEADY or not all(found) or not _adds_up(windows):
        return None
    micro_steps = [micro for steps in found for micro in steps or ()]
    divisors = [divisor for micro in micro_steps if (divisor := micro.divisor) is not None]
    divisor = median(divisors)
    alike = all(micro.lines == micro_steps[0].lines for micro in micro_steps) and len(_models(windows)) <= 1
    if divisor is None or len(divisors) < len(micro_steps) or not alike:
        return None
    if not all(close(value, divisor) for value in divisors):
        return None
    kinds = {seen.optimizer: seen.kind for seen in record.of(OptimizerSeen)}
    kind = kinds.get(windows[-1].step.optimizer, "")
    return Accumulated(every, divisor, windows, micro_steps[-1].losses[0], kind)


def unequal(found: Accumulated) -> tuple[float, float] | None:
    """A usual step's smallest and largest micro-batch, if they differ much."""
    sizes = sorted(found.sizes(), key=lambda ends: ends[1] / ends[0])
    ends = sizes[len(sizes) // 2] if len(sizes) >= STEADY else (1.0, 1.0)
    return ends if ends[1] / ends[0] >= UNEQUAL else None


def _models(windows: Sequence[StepWindow]) -> set[str]:
    """The models that ran for training; several may be several tasks, whose losses are meant to be added."""
    forwards = (event for window in windows for event in window.events if isinstance(event, Forward))
    return {forward.model for forward in forwards if forward.grad_enabled}


def _micro_steps(window: StepWindow) -> list[MicroStep] | None:
    """Each backward with the losses computed for it; None unless each has some, and all are means."""
    found: list[MicroStep] = []
    losses: list[LossCall] = []
    for event in window.events:
        if isinstance(event, LossCall) and event.output_requires_grad:
            losses.append(event)
        elif isinstance(event, Backward) and not event.failed:
            if not losses or any(loss.reduction != "mean" for loss in losses):
                return None
            found.append(MicroStep(event, losses))
            losses = []
    return found


def _adds_up(windows: Sequence[StepWindow]) -> bool:
    """Is the gradient that the step or the clipping meets the plain sum, as far as it was measured?"""
    shares = [share for window in windows if (share := window.norm_ratio) is not None]
    between = [
        other.grad_norm_before / one.grad_norm
        for window in windows
        for one, other, _ in window.between()
        if one.grad_norm and other.grad_norm_before is not None
    ]
    scaled = any(window.backwards[-1].scaled for window in windows)
    return bool(shares or scaled) and all(close(share, 1.0) for share in (*shares, *between))


def _targets(loss: LossCall) -> float:
    """How many targets the mean is taken over."""
    shape = loss.target.shape if loss.target is not None else ()
    return math.prod(shape) * (1.0 - (loss.ignored or 0.0))
