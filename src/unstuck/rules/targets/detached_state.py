"""P26: the state of a recurrent module is detached at every step of a sequence."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import StateDetached
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule

rule = Rule(
    code="P26",
    name="detached-state",
    title="the state of a recurrent module is detached at every step, so no gradient goes back through time",
    severity=Severity.ERROR,
    explains=("O01", "O07", "R03", "R08"),
    needs=(),
)

FEWEST = 3


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """A module that gets its own output again in every call of a pass, always without its history."""
    modules: dict[tuple[str, str], list[StateDetached]] = {}
    for event in record.of(StateDetached):
        modules.setdefault((event.module, event.kind), []).append(event)
    for (module, kind), events in modules.items():
        last = events[-1]
        if len(events) < FEWEST or any(event.cut < event.calls - 1 for event in events):
            continue
        alone = all(event.reached == 1 for event in events)
        if not module and not alone:
            continue  # a forecast that is given back to the model, and is compared with its target in every step
        name = f"{module} ({kind})" if module else kind
        rest = (
            "the loss leads back to the last call only"
            if alone
            else f"the loss leads back to {last.reached} of the calls, and from none of them to an earlier one"
        )
        yield rule.finding(
            f"{name} is called {last.calls} times in a pass, each time with its own last output, and that is always "
            f"detached: {rest}.",
            cause="No gradient goes back through time, so the module is not trained to store what is needed later.",
            fix="Pass the state on as it is. Detach it only between two backwards, where the next sequence continues "
            "the last one.",
            subject=Subject("module", module or kind),
            place=last.place,
            evidence=[
                Evidence("calls in a pass", last.calls),
                Evidence("of these with a detached state", last.cut),
                Evidence("calls that the loss leads back to", last.reached),
                Evidence("passes looked at", len(events)),
            ],
            severity=Severity.ERROR if alone else Severity.WARNING,
            confidence=Confidence.CERTAIN if alone else Confidence.LIKELY,
        )
