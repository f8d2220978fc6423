"""M15: backward() goes through a part of the graph that an earlier backward() has freed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.events import Backward, Crash, Event, Forward, LossCall
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.rules.shared.crashes import crash_of, word

if TYPE_CHECKING:
    from unstuck.record import Record

rule = Rule(
    code="M15",
    name="graph-reused",
    title="backward() through a graph that an earlier backward() has freed",
    severity=Severity.ERROR,
    explains=("M03",),
)

SECOND = "backward through the graph a second time"
CAUSE = (
    "backward() frees what the forward pass had stored. retain_graph=True would silence the error, and every step "
    "would go back through all steps before it."
)
KEPT_HIDDEN = (
    "If it is a state that goes on from batch to batch, cut it once per batch: `{name} = {name}.detach()`, for a tuple "
    "`tuple(part.detach() for part in {name})`. If it is computed from parameters, compute it anew in every step."
)
SUMMED = (
    "Call backward() on the loss of this turn, and sum `loss.item()` for the log; or sum in the loop and call "
    "backward() once after it."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The error is raised; what the wreck shows of the graph tells why."""
    crash = crash_of(record, SECOND)
    if crash is None:
        return
    message, fix = _explained(crash, _same_again(list(record.events)))
    yield rule.finding(
        message,
        cause=CAUSE,
        fix=fix,
        subject=Subject("call", f"backward at {crash.place}"),
        place=crash.place,
        related=crash.suspect_places,
        evidence=[Evidence("still in the graph", list(crash.suspects))] if crash.suspects else [],
    )


def _explained(crash: Crash, same_again: bool) -> tuple[str, str]:
    how = word(crash, "how")
    name = crash.suspects[0] if crash.suspects else ""
    if how == "carried" and any(variable.name == name for variable in crash.variables):
        return f"`{name}` adds up losses, and parts of it have had their backward() in an earlier turn.", SUMMED
    if how in ("kept", "carried") and name:
        what = "holds on to" if how == "kept" else "is computed from its own last value, and so leads into"
        return f"`{name}` {what} the graph of an earlier step, which is already freed.", KEPT_HIDDEN.format(name=name)
    if how == "before the loop":
        return (
            f"`{name}` is computed once before the loop, and every turn goes back through it.",
            f"Compute `{name}` inside the loop; or use `{name}.detach()`, if what made it is not to be trained.",
        )
    if how == "shared":
        return (
            f"`{name}` is behind this loss and behind another one, whose backward() has freed what they share.",
            f"Add the two losses and call backward() once; or, where the first is not to train what made `{name}`, "
            f"give it `{name}.detach()`; or pass retain_graph=True to the first backward().",
        )
    if same_again:
        return (
            "backward() is called twice on the same graph, with no forward pass in between.",
            "Remove one of the two calls; for two losses of one forward pass, call `(loss1 + loss2).backward()`.",
        )
    return (
        "This loss is computed from something that an earlier backward() has already gone through.",
        "Look for a tensor with a history that outlives its step (a hidden state, a cached output, a running sum), and "
        "detach it or compute it anew.",
    )


def _same_again(events: list[Event]) -> bool:
    """Did nothing run between the last backward that worked and the one that failed?"""
    backwards = [index for index, event in enumerate(events) if isinstance(event, Backward)]
    if len(backwards) < 2 or not getattr(events[backwards[-1]], "failed", False):
        return False
    between = events[backwards[-2] + 1 : backwards[-1]]
    return not any(isinstance(event, Forward | LossCall) for event in between)
