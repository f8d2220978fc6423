"""O18: a frozen backbone whose BatchNorm statistics keep changing."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import FrozenMoved, ModelSeen, ModuleFact, Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import objects

rule = Rule(
    code="O18",
    name="frozen-batchnorm-drift",
    title="frozen layers whose BatchNorm statistics keep changing",
    severity=Severity.WARNING,
    explains=("M13",),
    needs=(ModelSeen,),
)

CAUSE = (
    "requires_grad=False freezes the gain and bias of a BatchNorm, not its running mean and variance: every forward "
    "pass in train mode updates those, so the output of the frozen part changes from step to step."
)
FIX = "Call eval() on the frozen part after every model.train(), which puts all layers back into train mode."
NOTICEABLE = 0.01
"""A smaller change, as a share of their norm, is only the noise of other data."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Statistics that changed between two measurements of layers that stayed frozen."""
    last = {event.model: event for event in record.of(FrozenMoved) if event.what == "statistics"}
    for event in last.values():
        if (event.change or 0.0) < NOTICEABLE:
            continue
        yield rule.finding(
            f"The running statistics of {objects.counted(event.count, 'frozen BatchNorm layer')} "
            f"({objects.listed(event.names)}) changed by {event.change:.0%} from step {event.since} to {event.step}.",
            cause=CAUSE,
            fix=FIX,
            subject=Subject("module", event.model),
            place=event.place,
            evidence=[
                Evidence("frozen BatchNorm layers in train mode", event.count),
                Evidence("change of their statistics", event.change or 0.0, "of their norm", NOTICEABLE),
            ],
            confidence=Confidence.LIKELY,
        )


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Frozen BatchNorm layers that are in train mode; the loop may still change that."""
    for model in setup.models:
        frozen = [module for module in model.modules if _is_frozen(model, module)]
        trains = any(fact.trainable for fact in model.parameters)
        if not frozen or not trains:
            continue
        yield rule.finding(
            f"{model.model} has {objects.counted(len(frozen), 'frozen BatchNorm layer')} in train mode "
            f"({objects.listed([module.name for module in frozen])}).",
            cause=CAUSE,
            fix=FIX,
            subject=Subject("module", model.model),
            evidence=[Evidence("frozen BatchNorm layers in train mode", len(frozen))],
            severity=Severity.ADVICE,
            confidence=Confidence.LIKELY,
        )


def _is_frozen(model: ModelSeen, module: ModuleFact) -> bool:
    own = objects.parameters_in(model, module.name)
    updates = module.training and bool(module.numbers.get("track_running_stats"))
    return updates and "BatchNorm" in module.kind and bool(own) and not any(fact.trainable for fact in own)
