"""M22: one module is in several places of a ModuleList, as `[layer] * 3` puts it there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unstuck.events import ModelSeen, Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.record.trend import Direction
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics, objects

rule = Rule(
    code="M22",
    name="repeated-module",
    title="one layer is in several places of a ModuleList, so all of them share its weights",
    severity=Severity.WARNING,
    explains=("O01", "O07"),
    needs=(ModelSeen,),
)


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """The children of the containers of each model."""
    yield from _findings(setup.models, Severity.WARNING)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The same. Where the loss falls steadily, sharing may be meant, as in ALBERT."""
    troubled = not dynamics.alternating(record) and dynamics.trend(record).word != Direction.FALLING
    yield from _findings(record.setup().models, Severity.WARNING if troubled else Severity.ADVICE)


def _findings(models: Iterable[ModelSeen], severity: Severity) -> Iterator[Finding]:
    for model in models:
        for container in model.modules:
            if not container.repeated:
                continue
            count, name = len(container.repeated), container.name or model.model
            child = f"{container.name}.{container.repeated[0]}" if container.name else container.repeated[0]
            kind = next((module.kind for module in model.modules if module.name == child), "module")
            size = sum(fact.size for fact in objects.parameters_in(model, child))
            yield rule.finding(
                f"{name} ({container.kind}) holds the same {kind} {count} times: its {size:,} parameters are shared by "
                "all of them.",
                cause="[layer] * n repeats a reference to one layer, so the places have the same weights and give the "
                "same outputs for the same input; each step moves them for all at once.",
                fix=f"Build a layer for each place: nn.{container.kind}([Layer(...) for _ in range({count})]), or "
                "copy.deepcopy(layer).",
                subject=Subject("module", f"{name} of {model.model}"),
                place=model.place,
                evidence=[
                    Evidence("places", objects.listed(list(container.repeated))),
                    Evidence("parameters in each", size),
                ],
                severity=severity,
                confidence=Confidence.LIKELY,
            )
