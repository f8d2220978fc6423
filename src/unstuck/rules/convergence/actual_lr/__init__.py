"""O23: the learning rate in use is 0, or not the one that is scheduled or logged."""

from __future__ import annotations

from unstuck.events import OptimizerStep
from unstuck.findings import Severity, Variant
from unstuck.rule import Rule, find_in, with_change


class Rate(Variant):
    """How the learning rate differs from what was meant."""

    ZERO = "zero", "the learning rate is 0"
    ZEROED_BY_SCHEDULER = "zeroed-by-scheduler", "a scheduler multiplies the learning rate by 0"
    GROUP_AT_ZERO = "group-at-zero", "a parameter group has a learning rate of 0"
    OTHER_OPTIMIZER = "other-optimizer", "the scheduler was built for another optimizer"
    OVERWRITTEN = "overwritten", "something overwrites the learning rate that the scheduler sets"
    GET_LR = "get-lr", "get_lr() is not the learning rate in use"


rule = Rule(
    code="O23",
    name="actual-lr",
    title="a learning rate of 0, a schedule that has no effect, or get_lr() logged as the learning rate",
    severity=Severity.ERROR,
    explains=("O01", "O07", "O22", "R08"),
    needs=(OptimizerStep,),
    variants=Rate.titles(),
)

ZERO = "Every update is multiplied by the learning rate, so step() changes nothing, and any schedule of 0 is 0."
USE_POSITIVE = "Use a positive learning rate."
USE_LAST_LR = "Call get_last_lr() instead."


def derives(scheduler: str) -> str:
    """Why get_lr() of this class of scheduler is wrong outside step()."""
    return f"{scheduler}.get_lr() derives the next learning rate from the current one, so it is wrong outside step()."


rule.in_source(find_in("unstuck.rules.convergence.actual_lr.source"))
rule.in_run(find_in("unstuck.rules.convergence.actual_lr.run"))

rule.remedied_by(with_change("NoSchedule"))
