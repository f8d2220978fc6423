"""O09 in a run: what the loss of each micro-batch was divided by, against how many were added up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from unstuck.events import Backward, Clip, Forward, LossCall, OptimizerSeen
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rules.convergence.accumulation_not_divided import EVERY, Division, harm, rule, wrong_divisor
from unstuck.rules.shared.accumulation import STEADY, StepWindow, close, micro_windows, usual
from unstuck.rules.shared.dynamics import median, quantile

UNEQUAL = 2.0
"""The largest micro-batch of a step has at least this many times the targets of the smallest."""
FEWEST_COUNTED = 8


class MicroStep(NamedTuple):
    """A backward and the mean losses computed for it."""

    backward: Backward
    losses: list[LossCall]

    @property
    def divisor(self) -> float | None:
        """What the sum of the losses was divided by before backward."""
        values = [loss.value for loss in self.losses]
        known = [value for value in values if value]
        return sum(known) / self.backward.value if len(known) == len(values) and self.backward.value else None

    @property
    def lines(self) -> list[object]:
        """Which losses they are."""
        return [(loss.loss, loss.place and loss.place.key) for loss in self.losses]


class Accumulation(NamedTuple):
    """How a run accumulates: `every` backwards for each step, each on a mean loss divided by `divisor`."""

    every: int
    divisor: float
    windows: list[StepWindow]
    loss: LossCall
    optimizer: str
    """Its class."""


def find(record: Record) -> Iterator[Finding]:
    """One finding for the run."""
    found = _accumulation(record)
    if found is None:
        return
    every, divisor, whole = found.every, found.divisor, round(found.divisor)
    if close(divisor, 1.0):
        clips = [event for window in found.windows for event in window.events if isinstance(event, Clip)]
        cuts = any(clip.norm is not None and clip.limit is not None and clip.norm > clip.limit for clip in clips)
        cause, severity = harm({found.optimizer}, cuts, every)
        message = f"Each step adds up {every} mean losses, and none of them is divided."
        fix = f"Divide the loss by {every} before backward()."
        yield _wrongly_divided(found, Division.NOT_DIVIDED, message, cause, fix, severity)
    elif close(divisor, float(whole)) and whole > 2 and whole % every:
        message = f"The loss is divided by {whole}, but each step adds up {every} backward passes."
        cause, fix = wrong_divisor(every, whole), f"Divide the loss by {every}."
        yield _wrongly_divided(found, Division.WRONG_DIVISOR, message, cause, fix, Severity.WARNING)
    elif close(divisor, float(every)):
        yield from _unequal(found)


def _wrongly_divided(
    found: Accumulation, variant: Division, message: str, cause: str, fix: str, severity: Severity
) -> Finding:
    last = found.windows[-1]
    norm = getattr(last.step, "grad_norm", None)
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject.at("loop", "accumulation", last.backwards[-1].place),
        place=last.backwards[-1].place,
        related=[last.step.place],
        evidence=[
            Evidence(EVERY, found.every),
            Evidence("loss that the loss function returned", found.loss.value or 0.0),
            Evidence("loss that reached backward()", last.backwards[-1].value or 0.0),
            *([Evidence("gradient norm at the last step", norm)] if norm is not None else []),
        ],
        severity=severity,
        confidence=Confidence.LIKELY,
        variant=variant,
    )


def _unequal(found: Accumulation) -> Iterator[Finding]:
    """The smallest and the largest micro-batch of a typical step differ much."""
    sizes = sorted(_sizes(found.windows), key=lambda ends: ends[1] / ends[0])
    smallest, largest = sizes[len(sizes) // 2] if len(sizes) >= STEADY else (1.0, 1.0)
    if largest / smallest < UNEQUAL:
        return
    last = found.windows[-1]
    yield rule.finding(
        f"The micro-batches of a step have from {smallest:.0f} to {largest:.0f} targets, and the mean of each counts "
        "the same.",
        cause=f"A target in the smallest weighs {largest / smallest:.1f} times as much as one in the largest; in one "
        "large batch all would weigh the same.",
        fix='Use reduction="sum" and divide by the number of targets in the whole window.',
        subject=Subject.at("loop", "accumulation", last.backwards[-1].place),
        place=found.loss.place,
        related=[last.backwards[-1].place],
        evidence=[
            Evidence(EVERY, found.every),
            Evidence("targets in the smallest micro-batch of a typical step", smallest),
            Evidence("targets in the largest", largest),
        ],
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        variant=Division.UNEQUAL_MICRO_BATCHES,
    )


def _sizes(windows: Sequence[StepWindow]) -> list[tuple[float, float]]:
    """How many targets the smallest and the largest micro-batch of each step have.

    Ignored positions are counted in some calls only; those represent all.
    """
    losses = [[micro.losses[0] for micro in _micro_steps(window) or ()] for window in windows]
    counted = sorted(_targets(loss) for found in losses for loss in found if loss.ignored is not None)
    if len(counted) >= FEWEST_COUNTED and any(loss.ignored for found in losses for loss in found):
        ends = (quantile(counted, 0.1) or 0.0, quantile(counted, 0.9) or 0.0)
        return [ends] * STEADY if ends[0] > 0 else []
    counts = ([_targets(loss) for loss in found] for found in losses)
    return [(min(found), max(found)) for found in counts if found and min(found) > 0]


def _targets(loss: LossCall) -> float:
    """How many targets the mean covers."""
    shape = loss.target.shape if loss.target is not None else ()
    return math.prod(shape) * (1.0 - (loss.ignored or 0.0))


def _accumulation(record: Record) -> Accumulation | None:
    """How the run accumulates, if all micro-steps have the same mean losses and nothing changes the gradients."""
    every = usual([len(window.backwards) for window in micro_windows(record)])
    windows = [window for window in micro_windows(record) if len(window.backwards) == every]
    found = [_micro_steps(window) for window in windows]
    if len(windows) < STEADY or not all(found) or not _adds_up(windows):
        return None
    micro_steps = [micro for steps in found for micro in steps or ()]
    divisors = [divisor for micro in micro_steps if (divisor := micro.divisor) is not None]
    divisor = median(divisors)
    # Several models may be several tasks, whose losses should be added.
    forwards = (event for window in windows for event in window.events if isinstance(event, Forward))
    models = {forward.model for forward in forwards if forward.grad_enabled}
    alike = all(micro.lines == micro_steps[0].lines for micro in micro_steps) and len(models) <= 1
    if divisor is None or len(divisors) < len(micro_steps) or not alike:
        return None
    if not all(close(value, divisor) for value in divisors):
        return None
    kinds = {seen.optimizer: seen.kind for seen in record.of(OptimizerSeen)}
    kind = kinds.get(windows[-1].step.optimizer, "")
    return Accumulation(every, divisor, windows, micro_steps[-1].losses[0], kind)


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
    """Is the gradient before the step or the clipping the plain sum, as far as it was measured?"""
    shares = [share for window in windows if (share := window.norm_ratio) is not None]
    between = [
        other.grad_norm_before / one.grad_norm
        for window in windows
        for one, other, _ in window.between()
        if one.grad_norm and other.grad_norm_before is not None
    ]
    scaled = any(window.backwards[-1].scaled for window in windows)
    return bool(shares or scaled) and all(close(share, 1.0) for share in (*shares, *between))
