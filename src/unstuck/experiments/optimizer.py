"""Does the run learn with a known-good optimizer? Adam at 1e-3 with clipping, in place of the script's own.

Measures: as those of `ablate`; `part` is `optimizer`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.experiments import experiment, swaps
from unstuck.experiments.swaps import Swap
from unstuck.findings.results import Experiment, RecipePart
from unstuck.interventions import Intervention
from unstuck.interventions.use_adam import UseAdam
from unstuck.trials.loops import loop_of
from unstuck.trials.runner import Outcome, Variant

if TYPE_CHECKING:
    from unstuck.record import Record
    from unstuck.trials.context import Context

ADAM = "with Adam at 0.001"
WITHOUT_RATE = ("LBFGS",)


def remedy(done: Experiment) -> Intervention | None:
    """Adam, if the run learns with it."""
    return UseAdam() if done.measures.get("part") == RecipePart.OPTIMIZER else None


@experiment(
    "does it learn with a known-good optimizer?",
    """Let Adam at a learning rate of 1e-3, with the gradient clipped to 1, update the
parameters in place of the script's own optimizer, with the same seeds. If the run learns then, the
settings of the optimizer are at fault; if not, they are not what holds it back.""",
    order=5,
    if_going_well=False,
    remedy=remedy,
    applies=lambda done: bool(done.measures.get("tried")),
)
def optimizer(context: Context, changes: Sequence[Intervention] = (), wanted: int = swaps.STEPS) -> Experiment:
    """Try the run with Adam. Raises `NoTime`."""
    began = time.monotonic()
    steps = context.steps_for(2, swaps.SHARE, wanted, least=swaps.FEWEST)
    context.tell("running it as it is")
    own = context.run([Variant("as-it-is", tuple(changes))], steps)[0]
    record = own.record_or_none()
    problem = swaps.problem_of(own)
    if problem or record is None:
        return swaps.undecided("optimizer", problem)
    swap = _swap(record, own)
    if swap is None:
        return swaps.undecided("optimizer", "It is Adam with these settings, or one that searches along a line.")
    found = swaps.answer("optimizer", context, changes, [swap], own, steps)
    return msgspec.structs.replace(found, seconds=time.monotonic() - began)


def _swap(record: Record, own: Outcome) -> Swap | None:
    from unstuck.events import OptimizerSeen, OptimizerStep

    names = loop_of(own).optimizers
    seen = [event for event in {e.optimizer: e for e in record.of(OptimizerSeen)}.values() if event.optimizer in names]
    closures = any(step.inside_closure for step in record.of(OptimizerStep))
    if not seen or closures or any(event.kind in WITHOUT_RATE for event in seen):
        return None
    first = seen[0]
    rate = f" at {max(first.rates):.3g}" if first.rates else ""
    momentum = max((group.momentum for group in first.groups), default=0.0)
    with_momentum = f" and momentum {momentum:.3g}" if momentum else ""
    return Swap(RecipePart.OPTIMIZER, UseAdam(), f"{first.kind}{rate}{with_momentum}", ADAM, ADAM, first.place)
