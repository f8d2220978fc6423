"""O08: a learning-rate scheduler stepped before the optimizer, too often, too rarely, or never."""

from __future__ import annotations

import re
from collections.abc import Iterable

from unstuck.events import SchedulerSeen
from unstuck.findings import Finding, Severity, Variant
from unstuck.lazy import pattern
from unstuck.rule import Rule, find_in, with_change
from unstuck.source import Script


class Misuse(Variant):
    """When, or how often, the scheduler is stepped."""

    BEFORE_OPTIMIZER = "before-optimizer", "the scheduler is stepped before the optimizer"
    PER_BATCH = "per-batch", "a schedule built for epochs is stepped for every batch"
    PER_EPOCH = "per-epoch", "a schedule built for batches is stepped once per epoch"
    PER_MICRO_BATCH = "per-micro-batch", "the scheduler is stepped for every micro-batch"
    BUILT_FOR_MICRO_BATCHES = (
        "built-for-micro-batches",
        "a schedule built for micro-batches is stepped with the optimizer",
    )
    STEPPED_TWICE = "stepped-twice", "the scheduler is stepped twice for every optimizer step"
    NEVER_STEPPED = "never-stepped", "the scheduler is never stepped"
    PAST_THE_END = "past-the-end", "OneCycleLR is stepped past its end"
    WITHOUT_METRIC = "without-metric", "ReduceLROnPlateau is stepped without its metric"
    WRONG_DIRECTION = "wrong-direction", "ReduceLROnPlateau waits for its metric to get worse"


rule = Rule(
    code="O08",
    name="scheduler-misuse",
    title="a learning-rate scheduler stepped out of order, at the wrong pace, or never",
    severity=Severity.ERROR,
    explains=("O07", "O22", "O23", "R07", "R08"),
    needs=(SchedulerSeen,),
    variants=Misuse.titles(),
)

ON_PURPOSE = pattern(r"find|range_test|plot|simulat|sweep", re.I)
SKIPPED = "The first learning rate of the schedule is skipped, and every later one comes a step too early."
AFTER_OPTIMIZER = "Call scheduler.step() after optimizer.step()."
NEEDS_METRIC = "It lowers the learning rate when a metric stops improving, and raises TypeError without one."
WAITS_FOR_WORSE = (
    "Every improvement counts as a step in the wrong direction, so the learning rate is lowered each time `patience` "
    "runs out, however well the training goes."
)
WANT_MORE = 'Build it with mode="max", or give it the validation loss.'
WANT_LESS = 'Build it with mode="min", the default.'
PASS_METRIC = "Pass the metric: step(validation_loss)."


@rule.in_source
def in_source(script: Script) -> Iterable[Finding]:
    """The order from the loops, the pace from the arguments the schedule was built with."""
    if not script.facts.schedulers and "lr_schedulers()" not in script.text:
        return ()
    from unstuck.rules.convergence.scheduler_misuse import source

    return source.find(script)


rule.in_run(find_in("unstuck.rules.convergence.scheduler_misuse.run"))

rule.remedied_by(with_change("NoSchedule"))
