"""M24: the weight of a log-probability gets gradients, so the policy's loss also trains what computes the weight."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Backward
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule

rule = Rule(
    code="M24",
    name="live-advantage",
    title="an advantage that is not detached, so that the policy's loss also trains the critic",
    severity=Severity.ERROR,
    needs=(Backward,),
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """A log-probability times something that a network computed with gradients."""
    for backward in record.of(Backward):
        if backward.graph is not None and backward.graph.live_weight is not None:
            yield rule.finding(
                "The loss multiplies the log-probability of an action by a factor that gets gradients too.",
                cause="In a policy gradient the advantage is a constant weight. Here it is not detached, so the loss "
                "also changes the network that computes it: the critic learns to make the policy's loss small "
                "instead of predicting returns.",
                fix="Detach it: `-(log_prob * advantage.detach()).mean()`.",
                subject=Subject("loss", "policy"),
                place=backward.place,
                evidence=[Evidence("shape of the factor", str(list(backward.graph.live_weight)))],
                confidence=Confidence.LIKELY,
            )
            return
