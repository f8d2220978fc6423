"""O29: the optimizer is built again and again for the same parameters, and forgets what it has averaged."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import ModelSeen, OptimizerSeen, OptimizerStep, Place, StateLoaded
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.dynamics import is_adaptive

rule = Rule(
    code="O29",
    name="optimizer-rebuilt",
    title="the optimizer is built again inside the loop and loses its averages",
    severity=Severity.WARNING,
    needs=(OptimizerSeen, OptimizerStep),
)

FEWEST = 5
"""A run in phases, or one that unfreezes layer by layer, builds fewer."""
SHORT = 20
"""Steps: Adam and momentum average over the last ten or so, and Adam's first steps have the full size of its rate."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Several optimizers of one line, which hold the same parameters of one model and step one after the other."""
    by_place: dict[Place, list[OptimizerSeen]] = {}
    homes: dict[str, Place | None] = {}
    known: set[tuple[str, str]] = set()
    for seen in record.of(OptimizerSeen):
        home = homes.setdefault(seen.optimizer, seen.place)
        # Those that a loop rebuilds share one label in the record of their training; what they continue differs.
        identity = seen.optimizer, seen.continues
        if home is not None and seen.models and identity not in known:
            by_place.setdefault(home, []).append(seen)
            known.add(identity)
    steps = list(record.of(OptimizerStep))
    stepping = {step.optimizer for step in steps}
    for place, built in by_place.items():
        built = [seen for seen in built if seen.optimizer in stepping]
        if len(built) >= FEWEST and stepping <= {seen.optimizer for seen in built} and _is_same(record, built):
            yield from _finding(record, place, built, steps)


def _is_same(record: Record, built: list[OptimizerSeen]) -> bool:
    """Do they hold the same parameters, of a model that is never built or loaded again?"""
    held = [{fact.key for fact in seen.parameters} for seen in built if seen.parameters]
    models = [model for model in record.of(ModelSeen) if held and held[0] & {fact.key for fact in model.parameters}]
    reset = sum(1 for load in record.of(StateLoaded) if load.step > 0)
    alike = bool(held) and len(held) >= FEWEST and all(keys == held[0] for keys in held)
    return alike and len({model.model for model in models}) == 1 and reset < len(built) - 1


def _finding(record: Record, place: Place, built: list[OptimizerSeen], steps: list[OptimizerStep]) -> Iterator[Finding]:
    total = record.ended.steps if record.ended is not None and record.ended.steps else len(steps)
    each = max(1, round(total / len(built)))
    first = built[0]
    remembers = is_adaptive(first) or any(group.momentum for group in first.groups)
    if not remembers:
        return
    every = "every step" if each == 1 else f"every {each} steps"
    yield rule.finding(
        f"{first.kind} is built again {every} ({len(built)} times so far) for the same parameters.",
        cause="A new optimizer has no momentum and no averages of past gradients, so each time it starts as in its "
        "first step. A scheduler of the old one no longer changes anything either.",
        fix=f"Build {first.kind} once, before the loop.",
        subject=Subject("optimizer", first.kind),
        place=place,
        evidence=[
            Evidence("optimizers built here", len(built)),
            Evidence("steps of each", each),
            Evidence("parameters of each", len(first.parameters)),
        ],
        severity=Severity.WARNING if each <= SHORT else Severity.ADVICE,
        confidence=Confidence.CERTAIN if each <= SHORT else Confidence.LIKELY,
    )
