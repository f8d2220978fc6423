"""Which losses of a trial belong to one loop: a program may train twice, and one step may use two optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unstuck.findings.curve import Curve, curve_of

if TYPE_CHECKING:
    from unstuck.record import Record
    from unstuck.trials.runner import Outcome

FEWEST = 20
"""Losses from which a training is one, and not a sanity check in front of it."""


class Loop(msgspec.Struct, frozen=True):
    """One training of a program: its losses, and the optimizers that step in it."""

    curve: Curve
    optimizers: tuple[str, ...] = ()
    has_several_losses: bool = False
    """Do its optimizers step on losses of their own, as in a GAN? Those that share one backward do not."""
    number: int = 0
    """Trainings of the program that came before it."""


def loop_of(outcome: Outcome) -> Loop:
    """The first training of a trial that is long enough to read; the first one if none is."""
    record = outcome.record_or_none()
    found = loops_in(record) if record is not None else []
    if not found or not any(loop.curve.losses for loop in found):
        return Loop(outcome.curve)
    return next((loop for loop in found if len(loop.curve.losses) >= FEWEST), found[0])


def loops_in(record: Record) -> list[Loop]:
    """Every training on record: optimizers whose steps overlap in time belong to one."""
    from unstuck.events import Gauges

    spans: dict[str, tuple[int, int]] = {}
    with_loss: set[str] = set()
    for gauges in record.of(Gauges):
        first, last = spans.get(gauges.optimizer, (gauges.step, gauges.step))
        spans[gauges.optimizer] = min(first, gauges.step), max(last, gauges.step)
        with_loss |= {gauges.optimizer} if gauges.loss is not None else set()
    whole = curve_of(record)
    if len(spans) < 2:
        return [Loop(whole, tuple(spans), False)]
    groups: list[tuple[list[str], int, int]] = []
    for optimizer, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        if groups and first <= groups[-1][2]:
            members, begin, end = groups[-1]
            groups[-1] = [*members, optimizer], begin, max(end, last)
        else:
            groups.append(([optimizer], first, last))
    # What was not sampled between the last measured step of one training and the first of the next belongs to neither.
    return [
        Loop(_between(whole, begin, end), tuple(members), len(with_loss.intersection(members)) > 1, number)
        for number, (members, begin, end) in enumerate(groups)
    ]


def _between(curve: Curve, first: int, last: int) -> Curve:
    both = [(step, loss) for step, loss in zip(curve.steps, curve.losses, strict=True) if first <= step <= last]
    return Curve(*(tuple(values) for values in zip(*both, strict=True))) if both else Curve()
