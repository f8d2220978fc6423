"""P17: a target or average network that never follows its source, or a state that is not a copy."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import CopySeen, ModelSeen, RunStatus, StateLoaded
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Rule


class Copied(Variant):
    """What is wrong with the copy."""

    NEVER_CHANGES = "never-changes", "a copy of the network is asked in every step, and never follows it"
    OWN_WEIGHTS = "own-weights", "load_state_dict() gets the model's own weights, so it changes nothing"


rule = Rule(
    code="P17",
    name="frozen-copy",
    title="a target or average network that never changes, or a saved state that is the model's own weights",
    severity=Severity.WARNING,
    explains=("O07", "R08"),
    needs=(ModelSeen,),
    variants=Copied.titles(),
)

FEWEST = 20
"""Watched steps in which the copy was asked: the first fifty are all watched."""
LONG = 2000
"""Steps within which a target network is updated, also where the run was stopped."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Networks of the same shape, of which one learns and the other stays; and states that were loaded into
    themselves."""
    last = {event.model: event for event in record.of(CopySeen)} if _is_over(record) else {}
    for event in last.values():
        # A reference or a teacher is given what the network itself is given, and is meant to stay.
        is_reference = 2 * event.same_inputs > event.windows or event.loaded
        if event.windows >= FEWEST and not event.changes and event.moves and not is_reference:
            yield _never_changes(record, event)
    lines = {load.place: load for load in record.of(StateLoaded) if load.own and load.step > 0 and not load.failed}
    for load in lines.values():
        yield _own_weights(load, sum(1 for other in record.of(StateLoaded) if other.place == load.place and other.own))


def _is_over(record: Record) -> bool:
    """A run that goes on, or was cut short, may not have come to its first update of the copy."""
    ended = record.ended
    return ended is not None and (ended.status in (RunStatus.FINISHED, RunStatus.EXITED) or ended.steps >= LONG)


def _never_changes(record: Record, event: CopySeen) -> Finding:
    steps = record.ended.steps if record.ended is not None else event.step
    return rule.finding(
        f"{event.model}, a copy of {event.source} that is asked in training, kept its weights for all {steps} steps, "
        f"while {event.source} changed.",
        cause="A target or average network must follow the one that learns. This one still answers as it did before "
        "training, so the goals it gives never improve.",
        fix="Copy the weights every so many steps (target.load_state_dict(model.state_dict())), or blend them in at "
        "every step (p_target.lerp_(p, 0.005) under no_grad). Check that the code that does it is reached.",
        subject=Subject("module", event.model),
        place=event.place,
        evidence=[
            Evidence("watched steps in which it was asked", event.windows),
            Evidence("changes of its weights", event.changes),
            Evidence(f"changes of those of {event.source}", event.moves),
        ],
        confidence=Confidence.LIKELY,
        variant=Copied.NEVER_CHANGES,
    )


def _own_weights(load: StateLoaded, count: int) -> Finding:
    return rule.finding(
        f"load_state_dict() was given the model's own weights ({count} times), so it changed nothing.",
        cause="state_dict() returns references to the weights, not a copy: a state that was kept from it changes with "
        "the model. And a target made by assignment (target = model) is the model itself.",
        fix="Keep a copy: copy.deepcopy(model.state_dict()). Make a target network with copy.deepcopy(model).",
        subject=Subject.at("call", "load_state_dict", load.place),
        place=load.place,
        evidence=[Evidence("calls", count), Evidence("tensors loaded", load.matched)],
        variant=Copied.OWN_WEIGHTS,
    )
