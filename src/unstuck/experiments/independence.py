"""Does the output for one example depend on the other examples of its batch? (R04)"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import Trial
from unstuck.experiments import experiment
from unstuck.findings.mixing import Mix, Mixing
from unstuck.findings.results import Experiment, ExperimentVerdict, Status
from unstuck.interventions import Intervention
from unstuck.interventions.probe_model import FollowExamples, ProbeModel
from unstuck.trials.runner import Outcome, Variant

if TYPE_CHECKING:
    from unstuck.trials.context import Context

METHOD = (
    "the first batch was run again on the side, in evaluation mode, so that BatchNorm does not count, with the second "
    "half of its examples exchanged; every operation of the third iteration was repeated with other examples"
)
FOLLOWED = 3
"""Steps: examples are followed in the third."""
WORDS = {
    Mix.COLUMN: "(N, 1) meets (N,), which compares all pairs of examples",
    Mix.COEFFICIENT: "numbers of each example are broadcast along another axis",
    Mix.PICK: "the entries of all examples are picked from each example",
    Mix.SOFTMAX: "the softmax runs over the examples",
    Mix.SEQUENCE: "the layer takes the examples for positions",
    Mix.ROWS: "a reshape puts several examples into one row",
    Mix.CODES: "positional codes are added along the batch",
}


@experiment(
    "does the output for one example depend on the others in its batch?",
    """Look, inside the script's own loop, whether the output for one example depends on
the other examples of its batch.""",
    order=7,
    takes_several_runs=False,
    tries_remedies=True,
)
def independence(context: Context, changes: Sequence[Intervention] = ()) -> Experiment:
    """Exchange half of the first batch and look at the outputs for the other half.

    Measures: `change` (the largest change of an output that should have stayed, in spreads of the output), `examples`
    (how many were in the batch), `module` (where it begins).
    """
    began = time.monotonic()
    context.tell("exchanging examples of the first batch")
    outcome, seen = probed(context, changes)
    mixing = _mixing(outcome)
    leak = seen.between_examples if seen is not None else None
    first = next((one for one in mixing if one.mix is not Mix.OTHER), None)
    verdict, sentence = _answer(outcome, seen) if first is None else (ExperimentVerdict.MIXING, _met(first))
    within = next((one.place for one in mixing if one.inside), None)
    return Experiment(
        name="independence",
        verdict=verdict,
        sentence=sentence,
        method=METHOD,
        measures={"change": leak.change, "examples": leak.size, "module": leak.module or leak.kind} if leak else {},
        seconds=time.monotonic() - began,
        place=first.place if first else (within or leak.place) if leak else None,
        probe=seen,
        mixing=mixing,
    )


def _mixing(outcome: Outcome) -> tuple[Mixing, ...]:
    """What was found where examples were followed, in the order in which it happened."""
    return tuple(msgspec.convert(outcome.notes.get("mixing") or [], list[Mixing]))


def _met(one: Mixing) -> str:
    shapes = " and ".join(str(list(shape)) for shape in one.shapes)
    name = f"{one.module} ({one.kind})" if one.module else f"`{one.operation}`"
    return f"In {name}, given {shapes}, at {one.place} {WORDS[one.mix]}."


def probed(context: Context, changes: Sequence[Intervention]) -> tuple[Outcome, Trial | None]:
    """The first step with the model probed. `causality` needs the same run, and shares it. Raises `NoTime`."""
    steps = context.steps_for(1, 1.0, FOLLOWED, least=1)
    (outcome,) = context.run([Variant("probe", (*changes, ProbeModel(), FollowExamples()))], steps)
    answer = outcome.notes.get("probe")
    return outcome, msgspec.convert(answer, Trial) if answer is not None else None


def why_nothing(outcome: Outcome) -> str:
    """Why no model could be probed."""
    if outcome.status is Status.CRASHED:
        return f"It crashed before its first backward: {outcome.last_line}"
    if outcome.status in (Status.KILLED, Status.FAILED):
        return f"It was {outcome.status} before its first backward{f': {outcome.reason}' if outcome.reason else ''}."
    return "No model was called and trained, so there was nothing to ask."


def _answer(outcome: Outcome, seen: Trial | None) -> tuple[ExperimentVerdict, str]:
    if seen is None:
        return ExperimentVerdict.UNDECIDED, why_nothing(outcome)
    leak = seen.between_examples
    if leak is not None:
        begins = f"{leak.module} ({leak.kind})" if leak.module else f"the forward() of {leak.kind}"
        return ExperimentVerdict.MIXING, (
            f"With other examples in the batch, the outputs for {leak.size // 2} of {leak.size} examples change by up "
            f"to {leak.change:.2g} times their spread; it begins in {begins}."
        )
    if "examples" not in seen.done:
        return ExperimentVerdict.UNDECIDED, (
            "The examples of the first batch could not be exchanged one by one: inputs without one row for each, with "
            "time perhaps on their first axis, or a model that looks at its batch by design."
        )
    return (
        ExperimentVerdict.INDEPENDENT,
        "With half of the first batch exchanged, the outputs for the other half stay the same (in evaluation mode).",
    )
