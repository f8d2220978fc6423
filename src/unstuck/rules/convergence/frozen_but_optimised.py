"""O17: frozen parameters that the optimizer keeps updating."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Backward, FrozenMoved, OptimizerSeen, OptimizerStep, Setup, ZeroGrad
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import modes, objects
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits, both, fix_with
from unstuck.source.facts import Frozen, OptimizerMade
from unstuck.source.trace import Happened, events_in
from unstuck.source.values import Const, Instance, Parameters, Value, alternatives, members

rule = Rule(
    code="O17",
    name="frozen-but-optimised",
    title="frozen parameters that the optimizer keeps updating",
    severity=Severity.WARNING,
    explains=("O19", "O22"),
    needs=(OptimizerSeen,),
)

CAUSE = (
    "Their gradients are set to zero instead of None, and on a zero gradient {optimizer} still applies {reason}, so "
    "the frozen weights keep moving."
)
ALWAYS = {
    "Adam": "its moments",
    "AdamW": "its moments and weight decay",
    "NAdam": "its moments",
    "RAdam": "its moments",
    "Adamax": "its moments",
}
"""Optimizers that keep moving a parameter after its gradient has become zero."""
LET_GO = (
    "Set their .grad to None once (zero_grad() without set_to_none=False does), or build the optimizer without them."
)
HOLDS = (
    "An optimizer skips a parameter only if its .grad is None, whatever requires_grad says. To any other gradient, "
    "even zeros, it applies momentum, moments and weight decay."
)
FEWEST_STEPS = 2


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """A module is frozen after it was trained, and zero_grad(set_to_none=False) leaves it gradients of zeros."""
    frozen = [fact for fact in script.facts.frozen if not fact.trainable and not fact.partly]
    if not frozen:
        return
    events = list(events_in(script.facts.trace))
    for made in script.facts.optimizers:
        clears = [item for item in events if isinstance(item.event, ZeroGrad) and item.subject is made.optimizer]
        reason = _moves_on(made.optimizer)
        if not reason or not clears or not _keeps_zeros(script, events, clears):
            continue
        for fact in frozen:
            if _goes_on(script, events, made, fact):
                yield _finding(script, made, fact, reason, clears)


def _keeps_zeros(script: Script, events: list[Happened], clears: list[Happened]) -> bool:
    """Does every zero_grad in the script leave zeros instead of None?"""
    every = [item.event for item in events if isinstance(item.event, ZeroGrad)]
    by_optimizer = all(isinstance(item.event, ZeroGrad) and not item.event.set_to_none for item in clears)
    return by_optimizer and len(every) == len(clears) and ".grad = None" not in script.text


def _moves_on(optimizer: Instance) -> str:
    """What moves a parameter with a zero gradient; empty if nothing is certain to."""
    if optimizer.last in ALWAYS:
        return ALWAYS[optimizer.last]
    named = {"momentum": "momentum", "weight_decay": "weight decay"}
    given = [words for name, words in named.items() if _positive(optimizer.kwargs.get(name))]
    return " and ".join(given) if optimizer.last in ("SGD", "RMSprop") else ""


def _positive(value: Value | None) -> bool:
    return isinstance(value, Const) and isinstance(value.value, int | float) and value.value > 0


def _goes_on(script: Script, events: list[Happened], made: OptimizerMade, fact: Frozen) -> bool:
    """Was the module given to the optimizer, trained, then frozen for good, and does the optimizer step again?"""
    owners = alternatives(fact.owner)
    if fact.time < made.time or not all(isinstance(owner, Instance) and _holds(made, owner) for owner in owners):
        return False
    toggled = any(
        other.trainable and any(owner is one for owner in owners for one in alternatives(other.owner))
        for other in script.facts.frozen
    )
    before = any(isinstance(item.event, Backward) and item.time < fact.time for item in events)
    after = any(
        isinstance(item.event, OptimizerStep) and item.time > fact.time and item.subject is made.optimizer
        for item in events
    )
    rebuilt = any(other.time > fact.time for other in script.facts.optimizers)
    return before and after and not toggled and not rebuilt


def _holds(made: OptimizerMade, module: Instance) -> bool:
    """Was the optimizer certainly given all parameters of the module?"""
    whole = [value for value in members(made.parameters) if isinstance(value, Parameters) and not value.partial]
    return any(isinstance(value.owner, Instance) and modes.within(module, value.owner) for value in whole)


def _finding(script: Script, made: OptimizerMade, fact: Frozen, reason: str, clears: list[Happened]) -> Finding:
    owner = next(option for option in alternatives(fact.owner) if isinstance(option, Instance))
    name, optimizer = owner.label or owner.last, made.optimizer.label or made.optimizer.last
    return rule.finding(
        f"{name} is frozen here, but {optimizer} keeps updating it.",
        cause=CAUSE.format(optimizer=made.optimizer.last, reason=reason),
        fix=fix_with(
            "Drop set_to_none=False, or rebuild the optimizer with the parameters that still train.",
            _without_zeros(script, clears),
            "unsafe",
        ),
        subject=Subject("module", name),
        place=fact.place,
        related=(made.place, clears[0].event.place),
    )


def _without_zeros(script: Script, clears: list[Happened]) -> Edits | None:
    editor = Editor(script)
    places = [item.event.place for item in clears if item.event.place is not None]
    return both(*(editor.remove_keyword(place, "set_to_none") for place in dict.fromkeys(places)))


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Frozen parameters that moved between two measurements, before and after a step."""
    built = {optimizer.optimizer: optimizer.place for optimizer in record.setup().optimizers}
    moved: dict[str, list[FrozenMoved]] = {}
    for event in record.of(FrozenMoved):
        if event.what == "parameters" and event.change:
            moved.setdefault(event.optimizer, []).append(event)
    for optimizer, events in moved.items():
        if len(events) < FEWEST_STEPS:
            continue
        last = events[-1]
        share = sum(event.change or 0.0 for event in events) / len(events)
        yield rule.finding(
            f"{objects.counted(last.count, 'frozen parameter')} ({objects.listed(last.names)}) moved by "
            f"{share:.2g} of their norm in every step of {optimizer}.",
            cause=HOLDS,
            fix=LET_GO,
            subject=Subject("optimizer", optimizer),
            place=built.get(optimizer) or last.place,
            related=(last.place,),
            evidence=[
                Evidence("frozen parameters that moved", last.count),
                Evidence("change per step", share, "of their norm"),
                Evidence("first seen at step", events[0].step),
            ],
        )


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Frozen parameters that a step moves, or that still have a gradient, which the loop may yet clear."""
    moved = setup.trial.moved_frozen if setup.trial else ()
    if moved:
        names = objects.listed([fact.name for fact in moved])
        yield rule.finding(
            f"One step moved {objects.counted(len(moved), 'frozen parameter')} without a gradient ({names}).",
            cause="This optimizer updates every parameter it holds, with or without a gradient.",
            fix="Pass only trainable parameters: [p for p in model.parameters() if p.requires_grad].",
            subject=Subject("optimizer", setup.optimizers[0].optimizer),
            evidence=[Evidence("frozen parameters that moved", len(moved))],
        )
    for optimizer in setup.optimizers:
        stale = [fact for fact in optimizer.parameters if fact.stale]
        if stale:
            yield rule.finding(
                f"{optimizer.kind} holds {objects.counted(len(stale), 'frozen parameter')} with a leftover gradient "
                f"({objects.listed([fact.name for fact in stale])}).",
                cause=HOLDS,
                fix=LET_GO,
                subject=Subject("optimizer", optimizer.optimizer),
                evidence=[Evidence("frozen parameters with a gradient", len(stale))],
                severity=Severity.ADVICE,
                confidence=Confidence.LIKELY,
            )
