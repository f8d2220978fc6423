"""M15: backward() reaches a part of the graph that an earlier backward() has freed."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Backward, Crash, Event, Forward, LossCall
from unstuck.events.torch_errors import TorchError
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.crashes import crash_of, word

rule = Rule(
    code="M15",
    name="graph-reused",
    title="backward() through a graph that an earlier backward() has freed",
    severity=Severity.ERROR,
    explains=("M03",),
)

CAUSE = (
    "backward() frees what the forward pass stored. retain_graph=True would hide the error, but every step "
    "would then go back through all earlier steps."
)
KEPT_HIDDEN = (
    "If it is a state carried from batch to batch, detach it once per batch: `{name} = {name}.detach()`, for "
    "a tuple `tuple(part.detach() for part in {name})`. If it is computed from parameters, compute it again "
    "in every step."
)
SUMMED = (
    "Call backward() on the loss of this iteration, and sum `loss.item()` for the log; or sum in the loop and "
    "call backward() once after it."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The error was raised; the graph in the crash shows why."""
    crash = crash_of(record, TorchError.SECOND_BACKWARD)
    if crash is None:
        return
    message, fix = _explained(crash, _same_again(list(record.events)))
    yield rule.finding(
        message,
        cause=CAUSE,
        fix=fix,
        subject=Subject.at("call", "backward", crash.place),
        place=crash.place,
        related=crash.suspect_places,
        evidence=[Evidence("still in the graph", list(crash.suspects))] if crash.suspects else [],
    )


def _explained(crash: Crash, same_again: bool) -> tuple[str, str]:
    how = word(crash, "how")
    name = crash.suspects[0] if crash.suspects else ""
    if how == "carried" and any(variable.name == name for variable in crash.variables):
        return f"`{name}` adds up losses, and backward() already ran on some of them in an earlier iteration.", SUMMED
    if how in ("kept", "carried") and name:
        what = "still references" if how == "kept" else "is computed from its previous value, which belongs to"
        return f"`{name}` {what} the graph of an earlier step, which has been freed.", KEPT_HIDDEN.format(name=name)
    if how == "before the loop":
        return (
            f"`{name}` is computed once before the loop, and every iteration back-propagates through it.",
            f"Compute `{name}` inside the loop; or use `{name}.detach()`, if you do not train what produced it.",
        )
    if how == "shared":
        return (
            f"`{name}` is used by this loss and by another one, whose backward() has freed the shared part.",
            "Add the two losses and call backward() once; or, if the first loss should not train what "
            f"produced `{name}`, pass it `{name}.detach()`; or pass retain_graph=True to the first backward().",
        )
    if same_again:
        return (
            "backward() is called twice on the same graph, with no forward pass in between.",
            "Remove one of the two calls; for two losses of one forward pass, call `(loss1 + loss2).backward()`.",
        )
    return (
        "This loss depends on something that an earlier backward() has already freed.",
        "Look for a tensor with a graph that outlives its step (a hidden state, a cached output, a running "
        "sum), and detach it or compute it again.",
    )


def _same_again(events: list[Event]) -> bool:
    """Did nothing run between the last backward that worked and the one that failed?"""
    backwards = [index for index, event in enumerate(events) if isinstance(event, Backward)]
    if len(backwards) < 2 or not getattr(events[backwards[-1]], "failed", False):
        return False
    between = events[backwards[-2] + 1 : backwards[-1]]
    return not any(isinstance(event, Forward | LossCall) for event in between)
