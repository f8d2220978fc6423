"""O03 in the source: what cuts the value that backward() is called on."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Finding, Subject
from unstuck.rules.convergence.loss_detached import CAUSE, OUTSIDE_NO_GRAD, Detached, rule
from unstuck.source import Script
from unstuck.source.flow import History, first_cut, papers_over, producers
from unstuck.source.values import Tensor, Value, members

METRICS = {
    "argmax": "Call backward() on the loss (for example cross_entropy of the logits); argmax and accuracy have no "
    "gradient.",
    "a comparison": "Call backward() on the loss, not on a metric: comparisons and accuracy have no gradient.",
}


def find(script: Script) -> Iterator[Finding]:
    """One finding for each backward() whose value is cut on every path."""
    trained = {id(value) for made in script.facts.optimizers for value in members(made.parameters)}
    for call in script.facts.backwards:
        if call.value is None:
            continue
        by_hand = _requires_grad_by_hand(call.value)
        history = History(by_hand.inputs[0] if by_hand else call.value, trained)
        if not history.detached:
            continue
        cut = first_cut(history.cuts[0])
        how = "under no_grad()" if cut.cut == "no_grad" else f"by {cut.cut}"
        hidden = "; requires_grad_() only hides that" if by_hand else ""
        variant = Detached.REQUIRES_GRAD_BY_HAND if by_hand else Detached.CUT
        fix = f"Call backward() on the loss tensor itself, and use {cut.cut} only on the copy you log."
        if cut.cut == "no_grad":
            variant, fix = Detached.NO_GRAD, OUTSIDE_NO_GRAD
        elif cut.cut in METRICS:
            variant, fix = Detached.METRIC, METRICS[cut.cut]
        yield rule.finding(
            f"The value that backward() is called on was cut off the graph {how}{hidden}.",
            cause=CAUSE,
            fix=fix,
            subject=Subject.at("loss", "backward", call.event.place),
            place=cut.cut_place,
            related=(cut.place, by_hand.place if by_hand else None, call.event.place),
            variant=variant,
        )


def _requires_grad_by_hand(value: Value) -> Tensor | None:
    """The `requires_grad_()` that makes a cut value look like one with a graph."""
    for maker in (value, *producers(value)):
        if isinstance(maker, Tensor) and maker.op == "requires_grad_" and papers_over(maker.inputs[0]):
            return maker
    return None
