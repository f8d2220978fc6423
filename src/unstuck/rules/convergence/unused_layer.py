"""O27: a layer or a parameter that is built and handed to the optimizer, and that the loss does not depend on."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import LayersUnused, TensorGauges
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics, objects
from unstuck.rules.shared.idle import Idle, cut_parts, idle_parts


class Unused(Variant):
    """What is unused."""

    NEVER_CALLED = "never-called", "a layer is built, and forward() never calls it"
    OUTPUT_UNUSED = "output-unused", "a layer runs, and its output reaches no loss"
    PARAMETER_UNUSED = "parameter-unused", "a parameter is declared, and forward() never uses it"


rule = Rule(
    code="O27",
    name="unused-layer",
    title="a layer or parameter that the optimizer holds and the loss does not depend on",
    severity=Severity.WARNING,
    needs=(TensorGauges,),
    variants=Unused.titles(),
)

CAUSE = "What the loss does not depend on gets no gradient, so it keeps its initial values and the model does without."


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Parameters of the program's own models that never had a gradient, while others of their optimizer had."""
    uncalled = {event.model: set(event.names) for event in record.of(LayersUnused)}
    cut = {series.name for part in cut_parts(record) for series in part.still}
    for idle in idle_parts(record):
        if any(series.name in cut for series in idle.tensors):
            continue  # not unused: the layers after it use what it returns
        parent = idle.name.rpartition(".")[0]
        # A library builds layers for tasks that a program need not use, such as the pooler of BERT.
        if not any(module.own for module in idle.model.modules if module.name == parent):
            continue
        variant = _variant(idle, uncalled.get(idle.model.model, set()))
        optimizer = idle.tensors[0].optimizer
        troubled = not dynamics.alternating(record) and dynamics.trend(record, optimizer).word in dynamics.UNHEALTHY
        # Where the loss falls, a part that runs beside the others may be meant so: a probe, a fixed target.
        if variant is not None and (troubled or variant is not Unused.OUTPUT_UNUSED):
            yield _finding(record, idle, variant, Severity.WARNING if troubled else Severity.ADVICE)


def _variant(idle: Idle, uncalled: set[str]) -> Unused | None:
    owners = {series.name.rpartition(".")[0] for series in idle.tensors}
    if owners <= uncalled:
        return Unused.NEVER_CALLED
    if any(series.name == idle.name for series in idle.tensors):
        return Unused.PARAMETER_UNUSED if all(series.depth >= 0 for series in idle.tensors) else None
    ran = all(series.depth >= 0 for series in idle.tensors) and not owners & uncalled
    return Unused.OUTPUT_UNUSED if ran else None


def _finding(record: Record, idle: Idle, variant: Unused, severity: Severity) -> Finding:
    model, steps = idle.model, record.ended.steps if record.ended is not None else idle.tensors[0].steps[-1]
    kind = next((f" ({module.kind})" for module in model.modules if module.name == idle.name), "")
    messages = {
        Unused.NEVER_CALLED: f"{model.model} builds {idle.name}{kind}, and its forward() never calls it.",
        Unused.OUTPUT_UNUSED: f"{idle.name}{kind} runs in {model.model}, and no loss depends on what it returns.",
        Unused.PARAMETER_UNUSED: f"{model.model} declares the parameter {idle.name}, and its forward() never uses it.",
    }
    names = [series.name for series in idle.tensors]
    return rule.finding(
        messages[variant],
        cause=CAUSE,
        fix=f"Use {idle.name} in forward(), or delete it.",
        subject=Subject("module", f"{idle.name} of {model.model}"),
        place=model.place,
        evidence=[
            Evidence("parameters without a gradient", objects.listed(names)),
            Evidence("numbers in them", sum(series.size for series in idle.tensors)),
            Evidence("optimizer steps", steps),
        ],
        severity=severity,
        confidence=Confidence.CERTAIN if severity is Severity.ADVICE else Confidence.LIKELY,
        variant=variant,
    )
