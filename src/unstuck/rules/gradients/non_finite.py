"""G10: the first value of a run that was NaN or infinite, and where it came from."""

from __future__ import annotations

import math
from collections.abc import Iterator

from unstuck.events import Backward, Gauges, NonFinite
from unstuck.events.torch_errors import TorchError
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.crashes import crash_of, evidence_of, given

rule = Rule(
    code="G10",
    name="non-finite",
    title="a value became NaN or infinite; the finding names the first one",
    severity=Severity.ERROR,
    is_final=True,
    needs=(Backward,),
    logged=(Gauges,),
)

FIXES = {
    "input": (
        "Find and fix the bad samples: assert torch.isfinite(x).all() in the dataset, and check for division "
        "by a standard deviation of 0."
    ),
    "activation": (
        "Check what this module computes and its inputs: guard log, sqrt and division with a small epsilon, "
        "and keep exp in range. If the weights had grown huge before, lower the learning rate."
    ),
    "loss": (
        "Use the stable form of the loss (functions that take logits), or guard log, sqrt and division with a "
        "small epsilon."
    ),
    "gradient": (
        "Guard the operation whose derivative is not finite there: sqrt(x + eps), norm with eps, clamp before "
        "acos or division."
    ),
    "parameter": ("Lower the learning rate or clip the gradients before step(); check the learning rate of that step."),
}
INITIAL = (
    "Check how it is initialised or loaded: test torch.isfinite on every parameter right after building the model."
)
REFUSED = (
    "Find out what is NaN first, with torch.isfinite(...).all(): the batch, the weights (then lower the "
    "learning rate or clip the gradients), or a log, sqrt or division in forward (then guard it with a small "
    "epsilon)."
)
CAUSE = "Once one value is not finite, the next update spreads it to every weight it touches, and learning stops."


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Report the first non-finite value in order of execution."""
    for event in record.of(NonFinite):
        settings = _settings(record, event)
        yield rule.finding(
            _message(event),
            cause=CAUSE,
            fix=f"Give the optimizer a finite {settings[0].name}." if settings else _fix(event),
            subject=Subject(
                {"input": "module", "activation": "module", "loss": "loss"}.get(event.what, "parameter"),
                event.name or event.what,
            ),
            place=event.place,
            evidence=[*settings, *_evidence(event)],
        )
        return
    yield from _refused(record)


def _settings(record: Record, event: NonFinite) -> list[Evidence]:
    """Settings of the optimizer that are not finite, if an update made the weights non-finite."""
    if event.what != "parameter" or event.before_training:
        return []
    rates = [rate for gauge in record.of(Gauges) if gauge.step == event.step for rate in gauge.rates]
    groups = [group for optimizer in record.setup().optimizers for group in optimizer.groups]
    settings = {
        "learning rate": rates,
        "weight decay": [group.weight_decay for group in groups],
        "momentum": [group.momentum for group in groups],
    }
    return [
        Evidence(name, str(value)) for name, values in settings.items() for value in values if not math.isfinite(value)
    ][:3]


def _refused(record: Record) -> Iterator[Finding]:
    """A loss that raises on NaN, before any backward() could show it."""
    crash = crash_of(record, TorchError.INPUT_NO_PROBABILITY)
    scores = given(crash, "input") if crash is not None else None
    if crash is None or scores is None or not scores.broken:
        return
    step = f"after {crash.step} optimizer step{'s' * (crash.step != 1)}"
    data = next((fact for fact in crash.variables if fact.broken and not fact.requires_grad), None)
    origin = f" `{data.name}` already holds such values: the data is the origin, not the model." if data else ""
    yield rule.finding(
        f"{100 * scores.broken:.3g} % of the prediction given to {crash.function} {step} is NaN or infinite.{origin}",
        cause=f"{crash.function} takes probabilities only and raises on anything else.",
        fix=FIXES["input"] if data else REFUSED,
        subject=Subject("loss", crash.function),
        place=crash.place,
        evidence=evidence_of(crash, "input", "target"),
    )


def _message(event: NonFinite) -> str:
    """Only what was measured: inputs that were not examined are not mentioned."""
    when = f"at step {event.step + 1}"
    word = "NaN" if event.value == "nan" else "infinite"
    name = f"{event.name} ({event.kind})" if event.kind and event.name else event.name or event.kind
    match event.what:
        case "input":
            return f"The input of {name} was already {word} {when}: the data is the origin, not the model."
        case "activation" if event.until:
            return f"A value between {name} and {event.until} became {word} {when}."
        case "activation":
            return f"The output of {name} became {word} {when}{_while_inputs(event)}."
        case "gradient":
            return f"The loss was finite {when}, but the gradient of {name} became {word}."
        case "parameter":
            if event.before_training:
                return f"{name} was already {word} before the first update."
            unseen = ", whose gradients were not examined" if event.gradients_unseen else ""
            return f"{name} became {word} through the update {when}{unseen}."
    finite = ", while the outputs of all modules were still finite" if event.inputs_finite else ""
    return f"The loss became {word} {when}{finite}."


def _while_inputs(event: NonFinite) -> str:
    if event.inputs_finite is None:
        return ""
    if event.inputs_finite:
        return ", while its input was still finite"
    return "; its input already was, from an operation between the modules before it"


def _fix(event: NonFinite) -> str:
    if event.until:
        closer = "To find the module, run again with --replay-nonfinite (fix the seeds first)."
        return f"{FIXES[event.what]} {closer}"
    if event.gradients_unseen:
        closer = "To see whether its gradient was first, run again with --replay-nonfinite (fix the seeds first)."
        operations = " or ".join(_operation(name) for name in event.suspects[:3])
        risky = f" or guard {operations}, whose derivative may not be finite" if operations else ""
        return f"Lower the learning rate or clip the gradients before step(){risky}. {closer}"
    if event.suspects and event.what in ("activation", "loss", "gradient"):
        operations = " or ".join(_operation(name) for name in event.suspects[:3])
        return f"Check {operations}, which can produce it. {FIXES[event.what]}"
    return INITIAL if event.before_training else FIXES.get(event.what, FIXES["loss"])


def _operation(node: str) -> str:
    """`LogBackward0` as the user wrote it: `log`."""
    return node.removesuffix("0").removesuffix("Backward").lower()


def _evidence(event: NonFinite) -> list[Evidence]:
    evidence = [Evidence("optimizer steps before it", event.step), Evidence("first non-finite value", event.what)]
    if event.low is not None and event.high is not None:
        evidence.append(Evidence("range of the finite input", f"{event.low:.4g} to {event.high:.4g}"))
    if event.suspects:
        evidence.append(Evidence("operations that can produce it", [_operation(name) for name in event.suspects]))
    if event.also:
        evidence.append(Evidence("non-finite in the same step", list(event.also[:6])))
    return evidence
