"""M09 in a run: what the text shows, confirmed by the parameters, or else what the objects show."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Setup
from unstuck.findings import Evidence, Finding, Subject
from unstuck.record import Record
from unstuck.rules.wiring.freeze_without_effect import CAUSES, NoEffect, rule
from unstuck.rules.wiring.freeze_without_effect.setup import find as find_in_setup, unfrozen, unresized
from unstuck.rules.wiring.freeze_without_effect.source import Mistake, mistakes


def find(record: Record) -> Iterator[Finding]:
    """The same in a run, at the line where its text shows one, with the state of the parameters."""
    from unstuck.source.what_ran import script_of

    setup = record.setup()
    script = script_of(record)
    confirmed = [mistake for mistake in mistakes(script) if _is_confirmed(mistake, setup)] if script else []
    if not confirmed:
        yield from find_in_setup(setup)
    trainable = [fact.trainable for model in setup.models for fact in model.parameters]
    for mistake in confirmed:
        share = f"{sum(trainable)} of {len(trainable)}"
        resized = mistake.variant is NoEffect.NOT_RESIZED
        tail = "" if resized else f": {share} parameters of the run are trainable"
        yield rule.finding(
            f"{mistake.what} has no effect{tail}.",
            cause=CAUSES[mistake.variant],
            fix=mistake.fix,
            subject=Subject("module", mistake.what),
            place=mistake.place,
            evidence=[] if resized else [Evidence("trainable parameters", share)],
            variant=mistake.variant,
        )


def _is_confirmed(mistake: Mistake, setup: Setup) -> bool:
    """Does the run confirm the text: did the layer keep its size, or was nothing frozen?"""
    if mistake.variant is NoEffect.NOT_RESIZED:
        return any(unresized(setup))
    frozen = any(not fact.trainable for model in setup.models for fact in model.parameters)
    return bool(setup.models) and (any(unfrozen(setup)) or not frozen)
