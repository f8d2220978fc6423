"""Which part of the recipe holds the run back? Dropout, weight decay, clipping, schedule and initial weights, one at a
time switched off or replaced by torch's default.

Measures: `tried`, `steps`, `guess`; of a part that holds it back `part`, `detail` (what the script has), `own` and
`other` (the loss with and without it), `seeds`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.experiments import experiment, swaps
from unstuck.experiments.swaps import Swap
from unstuck.findings.results import Experiment, RecipePart, Status
from unstuck.interventions import Intervention
from unstuck.interventions.clipping import NoClipping
from unstuck.interventions.default_weights import DefaultWeights
from unstuck.interventions.learning_rate import NoSchedule
from unstuck.interventions.no_dropout import NoDropout
from unstuck.interventions.options import NoWeightDecay
from unstuck.trials.loops import loop_of
from unstuck.trials.runner import Outcome, Variant

if TYPE_CHECKING:
    from unstuck.record import Record
    from unstuck.trials.context import Context

CHANGES: dict[RecipePart, Intervention] = {
    RecipePart.DROPOUT: NoDropout(),
    RecipePart.WEIGHT_DECAY: NoWeightDecay(),
    RecipePart.CLIPPING: NoClipping(),
    RecipePart.SCHEDULE: NoSchedule(),
    RecipePart.INITIAL_WEIGHTS: DefaultWeights(),
}
"""What takes each part away."""
VARIES = 1.05
"""A learning rate that changes by this factor has a schedule."""
LONGEST = 2000
"""Steps of a run that is followed to its end."""
RISING = 1.3
"""One that is so many times what it was in the middle of the run is being warmed up."""


def remedy(done: Experiment) -> Intervention | None:
    """What takes away the part that holds the run back."""
    part = done.measures.get("part")
    return CHANGES[RecipePart(part)] if isinstance(part, str) else None


@experiment(
    "which part of the recipe holds the run back?",
    """Run the script without dropout, without weight decay, without gradient clipping,
without its schedule and with torch's default initial weights, one at a time, with the same seeds. A
part without which the run learns, and with which it does not, is what holds it back.""",
    order=3,
    if_going_well=False,
    remedy=remedy,
    applies=lambda done: bool(done.measures.get("tried")),
)
def ablate(context: Context, changes: Sequence[Intervention] = (), wanted: int = swaps.STEPS) -> Experiment:
    """Try the run without each part that it has. Raises `NoTime`."""
    began = time.monotonic()
    steps = context.steps_for(1 + len(CHANGES), swaps.SHARE, wanted, least=swaps.FEWEST)
    context.tell("running it as it is")
    own = context.run([Variant("as-it-is", tuple(changes))], steps)[0]
    record = own.record_or_none()
    problem = swaps.problem_of(own)
    if problem or record is None:
        return swaps.undecided("ablate", problem)
    if _warms_up(record):
        own, steps = _to_its_end(context, changes, own, steps)
        record = own.record_or_none() or record
    parts = list(_parts(record, own, context))
    if not parts:
        return swaps.undecided("ablate", "There is no dropout, decay, clipping or schedule to switch off.")
    found = swaps.answer("ablate", context, changes, parts, own, steps)
    return msgspec.structs.replace(found, seconds=time.monotonic() - began)


def _parts(record: Record, own: Outcome, context: Context) -> Iterator[Swap]:
    """What this run has, as its record shows it."""
    from unstuck.events import Clip, ModelSeen, OptimizerSeen, StateLoaded

    optimizers = loop_of(own).optimizers
    seen = {event.optimizer: event for event in record.of(OptimizerSeen) if event.optimizer in optimizers}
    place = next((event.place for event in seen.values() if event.place is not None), None)
    modules = [module for model in record.of(ModelSeen) for module in model.modules]
    dropped = [p for module in modules for key in ("p", "dropout") if (p := module.numbers.get(key, 0.0)) > 0]
    # Functions drop without leaving a trace in the modules.
    detail = f"dropout {max(dropped):.3g}" if dropped else "its dropout"
    yield Swap(RecipePart.DROPOUT, CHANGES[RecipePart.DROPOUT], detail, "without it", "without dropout")
    decay = max((group.weight_decay for event in seen.values() for group in event.groups), default=0.0)
    if decay > 0:
        yield Swap(
            RecipePart.WEIGHT_DECAY,
            CHANGES[RecipePart.WEIGHT_DECAY],
            f"weight decay {decay:.3g}",
            "without it",
            "without weight decay",
            place,
        )
    clips = [clip for clip in record.of(Clip) if clip.limit is not None]
    if clips:
        limit = min(clip.limit or 0.0 for clip in clips)
        yield Swap(
            RecipePart.CLIPPING,
            CHANGES[RecipePart.CLIPPING],
            f"clipping at {limit:.3g}",
            "without it",
            "without clipping",
            clips[0].place,
        )
    if (rates := _schedule(record, own)) is not None:
        detail = f"a learning rate that goes from {rates[0]:.3g} to {rates[-1]:.3g}"
        yield Swap(
            RecipePart.SCHEDULE,
            CHANGES[RecipePart.SCHEDULE],
            detail,
            "with a constant one",
            "with a constant rate",
            place,
        )
    if not any(event.matched for event in record.of(StateLoaded)) and not context.live:
        detail, without = "its initial weights", "with torch's default ones"
        yield Swap(
            RecipePart.INITIAL_WEIGHTS,
            CHANGES[RecipePart.INITIAL_WEIGHTS],
            detail,
            without,
            "with torch's default weights",
        )


def _rates(record: Record) -> list[float]:
    from unstuck.events import Gauges

    return [max(gauges.rates) for gauges in record.of(Gauges) if gauges.rates]


def _warms_up(record: Record) -> bool:
    rates = _rates(record)
    return len(rates) > 1 and rates[-1] > RISING * rates[len(rates) // 2]


def _to_its_end(context: Context, changes: Sequence[Intervention], own: Outcome, steps: int) -> tuple[Outcome, int]:
    """The run as it is until it ends by itself, if there is time: a warm-up is too long only if the run ends in it."""
    longer = context.plan(2 * len(CHANGES), swaps.SHARE, LONGEST)
    if longer <= steps:
        return own, steps
    whole = context.run([Variant("to-its-end", tuple(changes))], longer)[0]
    is_over = whole.status in (Status.FINISHED, Status.EXITED)
    return (whole, len(whole.curve.losses)) if is_over else (own, steps)


def _schedule(record: Record, own: Outcome) -> list[float] | None:
    """The learning rates of the run, if they vary. A warm-up that goes on beyond what was seen may be meant."""
    rates = _rates(record)
    if len(rates) < 2 or max(rates) <= VARIES * min(rates):
        return None
    is_over = own.status in (Status.FINISHED, Status.EXITED)
    return None if _warms_up(record) and not is_over else rates
