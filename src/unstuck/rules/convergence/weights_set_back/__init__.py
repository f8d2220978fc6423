"""M25: something other than the optimizer sets the weights back, again and again."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Evaluated, WeightsWritten
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.record.outcome import Achieved
from unstuck.rule import Rule, with_change
from unstuck.rules.shared.dynamics import outcome, step_place

rule = Rule(
    code="M25",
    name="weights-set-back",
    title="weights are set back between the steps of their optimizer, again and again",
    severity=Severity.ERROR,
    explains=("M14", "O07", "O22", "O25", "O26", "P17", "P20", "P21", "R08"),
    needs=(WeightsWritten,),
)

LARGE = 0.3
"""Of the way since the last time, what is taken back."""
MOST = 0.8
FEWEST_STEPS = 3
"""Steps between two such times. What happens after each step belongs to the update: clipped weights, a projection."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Weights that lose much of their way between two steps, in a run that gets nowhere."""
    found = outcome(record)
    if found is None or found.word in (Achieved.LEARNS, Achieved.MEMORIZES, Achieved.UNCLEAR):
        return  # Lookahead, federated averages and others do so by design
    last = {event.optimizer: event for event in record.of(WeightsWritten)}
    evaluated = [event.step for event in record.of(Evaluated)]
    for optimizer, event in last.items():
        undone = event.undone or 0.0
        if undone < LARGE or event.gap < FEWEST_STEPS:
            continue
        near = sum(any(abs(step - one) <= 1 for one in evaluated) for step in event.after)
        when = ", after each evaluation" if near == len(event.after) else ""
        when = ", by load_state_dict()" if event.by_loading == event.times else when
        steps = ", ".join(map(str, event.after[:3]))
        certain = undone >= MOST
        yield rule.finding(
            f"The weights of {optimizer} are set back outside of step() every {event.gap} steps{when}, and lose "
            f"{min(1.0, undone):.0%} of the way they had come since the time before.",
            cause="Something other than the optimizer writes the weights: averaged, saved or newly drawn ones take "
            "their place, and the trained ones do not come back. A backup made of p.data or state_dict() without a "
            "copy is the weights themselves, so restoring it restores nothing.",
            fix="Copy what is to come back: p.detach().clone(), copy.deepcopy(model.state_dict()). Do not load, "
            "average or initialise weights in the model that is being trained.",
            subject=Subject("optimizer", optimizer),
            place=step_place(record),
            evidence=[
                Evidence("times", event.times),
                Evidence("after steps", f"{steps}, ..."),
                Evidence("share of the way undone", undone, threshold=LARGE),
            ],
            severity=Severity.ERROR if certain else Severity.WARNING,
            confidence=Confidence.CERTAIN if certain else Confidence.LIKELY,
        )


rule.remedied_by(with_change("KeepWeights"))
