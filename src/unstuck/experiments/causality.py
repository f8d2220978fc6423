"""Does a prediction of the next element see that element? (R05)"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unstuck.events import Trial
from unstuck.experiments import experiment
from unstuck.experiments.independence import probed, why_nothing
from unstuck.findings.results import Experiment, ExperimentVerdict
from unstuck.interventions import Intervention
from unstuck.trials.runner import Outcome

if TYPE_CHECKING:
    from unstuck.trials.context import Context

HELP = "does a prediction depend on positions that come after it?"
DESCRIPTION = (
    """Look, inside the script's own loop, whether a prediction at one position depends on inputs that come after it."""
)
METHOD = (
    "the first batch was run again on the side, in evaluation mode, with the later half of the second dimension of "
    "its inputs exchanged, and the predictions before it compared"
)


def _applies(done: Experiment) -> bool:
    """It says nothing about a model that does not predict what comes next."""
    return done.verdict is not ExperimentVerdict.UNDECIDED or done.probe is None


@experiment(
    "does a prediction depend on positions that come after it?",
    "Look, inside the script's own loop, whether a prediction at one position depends on inputs that come after it.",
    order=8,
    takes_several_runs=False,
    applies=_applies,
)
def causality(context: Context, changes: Sequence[Intervention] = ()) -> Experiment:
    """Exchange the later half of the sequences and look at the predictions before it, if targets are the inputs.

    Measures: `change` (in spreads of the predictions), `length` of the sequences, `module`.
    """
    began = time.monotonic()
    context.tell("exchanging the later half of the second dimension of the inputs")
    outcome, seen = probed(context, changes)
    verdict, sentence = _answer(outcome, seen)
    leak = seen.from_future if seen is not None else None
    return Experiment(
        name="causality",
        verdict=verdict,
        sentence=sentence,
        method=METHOD,
        measures={"change": leak.change, "length": leak.size, "module": leak.module or leak.kind} if leak else {},
        seconds=time.monotonic() - began,
        place=leak.place if leak else None,
        probe=seen,
    )


def _answer(outcome: Outcome, seen: Trial | None) -> tuple[ExperimentVerdict, str]:
    if seen is None:
        return ExperimentVerdict.UNDECIDED, why_nothing(outcome)
    leak = seen.from_future
    if leak is not None:
        begins = f"{leak.module} ({leak.kind})" if leak.module else f"the forward() of {leak.kind}"
        return ExperimentVerdict.LEAKING, (
            f"Predictions at the first {leak.size // 2} of {leak.size} positions change by up to {leak.change:.2g} "
            f"times their spread when only later inputs change; it begins in {begins}."
        )
    if seen.copies_input:
        return (
            ExperimentVerdict.COPYING,
            "The target of every position is the very token that the model is given there.",
        )
    if "next" not in seen.done:
        return ExperimentVerdict.UNDECIDED, (
            "The targets of the first batch are not its inputs one position later, so none is about the future."
        )
    return ExperimentVerdict.CAUSAL, (
        "With the later half of the first batch's sequences exchanged, the predictions before it stay the same (in "
        "evaluation mode)."
    )
