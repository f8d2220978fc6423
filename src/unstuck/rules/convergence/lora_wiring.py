"""O21: LoRA adapters that are missing, frozen or get no gradient, or a new head left frozen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.events import ModelSeen, Place, Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics, objects

if TYPE_CHECKING:
    from unstuck.rules.shared.dynamics import TensorSeries

rule = Rule(
    code="O21",
    name="lora-wiring",
    title="LoRA adapters that are missing, frozen or without gradient, or a new head left frozen",
    severity=Severity.ERROR,
    explains=("O01", "O07", "O22", "R08", "G09"),
    needs=(ModelSeen,),
)

ADAPTER = pattern(r"(^|[._])lora_(A|B|a|b|down|up|embedding)", 0)
HEADS = ("classifier", "score", "qa_outputs", "head", "fc")
ALWAYS_NEW = ("classifier", "score", "qa_outputs")
"""Heads that a library creates for the task."""
FIRST_STEPS = 3
"""`lora_B` starts at 0, so the gradient of `lora_A` is exactly 0 at the first step by design."""
FEWEST = 3
TOO_FEW = 1e-5
FROZEN = "Frozen adapters never change, so the model behaves as it did before, however long it trains."
HEAD = "A frozen new head stays random, so the adapters have to compensate for it."
NO_GRADIENT = (
    "If lora_A and lora_B both start at 0, each gets its gradient through the other and neither ever moves. An adapted "
    "layer that the loss does not depend on shows the same."
)
MISSED = "PEFT adapts layers whose names end in one of the targets, and does not report a target that matches none."
SMALL = "So few parameters can barely change the model; usually the adapters are in one layer only."


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Parameter names and requires_grad flags."""
    yield from _in_objects(setup)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The same, and adapters without a gradient after the first steps."""
    setup = record.setup()
    yield from _in_objects(setup)
    adapters = [series for series in dynamics.tensors(record) if ADAPTER.search(series.name)]
    idle = [series for series in adapters if _is_idle(series)]
    pairs = {series.name: series for series in idle if _partners(series.name, adapters) <= {s.name for s in idle}}
    if pairs:
        everything = len(pairs) == len(adapters)
        place = next((o.place for o in setup.optimizers if o.optimizer == idle[0].optimizer), None)
        yield rule.finding(
            f"{len(pairs)} of {len(adapters)} LoRA tensors have had no gradient since step {FIRST_STEPS} "
            f"({objects.listed(list(pairs))}).",
            cause=NO_GRADIENT,
            fix="Initialize lora_A randomly (kaiming_uniform_) and only lora_B with 0; check that the layer is used.",
            subject=Subject("module", "adapters without gradient"),
            place=place,
            evidence=[Evidence("adapters without gradient", f"{len(pairs)} of {len(adapters)}")],
            severity=Severity.ERROR if everything else Severity.WARNING,
            confidence=Confidence.CERTAIN if everything else Confidence.LIKELY,
        )


def _is_idle(series: TensorSeries) -> bool:
    later = [norm for step, norm in zip(series.steps, series.grad_norm, strict=True) if step >= FIRST_STEPS]
    return len(later) >= FEWEST and not any(later)


def _partners(name: str, adapters: list[TensorSeries]) -> set[str]:
    """The names of both halves of one adapter."""
    stem = ADAPTER.sub("", name)
    return {series.name for series in adapters if ADAPTER.sub("", series.name) == stem}


def _in_objects(setup: Setup) -> Iterator[Finding]:
    place = next((optimizer.place for optimizer in setup.optimizers), None)
    for model in setup.models:
        adapters = [fact for fact in model.parameters if ADAPTER.search(fact.name)]
        if not adapters:
            continue
        yield from _missed(model, place)
        if not any(fact.trainable for fact in adapters):
            yield rule.finding(
                f"All {len(adapters)} LoRA tensors of {model.model} are frozen.",
                cause=FROZEN,
                fix="Unfreeze them: requires_grad_(True) on the adapters, or PeftModel.from_pretrained(..., "
                "is_trainable=True).",
                subject=Subject("module", f"adapters of {model.model}"),
                place=place,
                evidence=[Evidence("trainable adapters", f"0 of {len(adapters)}")],
            )
            continue
        yield from _frozen_head(model, place)
        yield from _too_few(model, place)


def _missed(model: ModelSeen, place: Place | None) -> Iterator[Finding]:
    asked = {key: count for m in model.modules for key, count in m.numbers.items() if key.startswith("target ")}
    missed = sorted(key.removeprefix("target ") for key, count in asked.items() if count == 0)
    if missed:
        yield rule.finding(
            f"No layer is called {' or '.join(missed)}, which target_modules lists; "
            f"{objects.counted(len(asked) - len(missed), 'other target')} matched.",
            cause=MISSED,
            fix="Use names from [name for name, _ in model.named_modules()], or target_modules='all-linear'.",
            subject=Subject("module", f"targets of {model.model}"),
            place=place,
            evidence=[Evidence("targets without a layer", ", ".join(missed))],
            severity=Severity.WARNING,
        )


def _frozen_head(model: ModelSeen, place: Place | None) -> Iterator[Finding]:
    """The last Linear, if it has the name of a head, is frozen and is new: untrained, or created by a library."""
    layers = [module for module in model.modules if module.kind == "Linear" and not ADAPTER.search(module.name)]
    last = layers[-1] if layers else None
    name = last.name.rpartition(".")[2] if last else ""
    if last is None or name not in HEADS:
        return
    own = objects.parameters_in(model, last.name)
    fresh = last.numbers.get("pretrained") == 0 or (name in ALWAYS_NEW and last.numbers.get("pretrained") != 1)
    if fresh and own and not any(fact.trainable for fact in own):
        yield rule.finding(
            f"The new head {last.name} is frozen, and only the adapters train.",
            cause=HEAD,
            fix=f"Train it too: set modules_to_save=[{name!r}] or the right task_type in LoraConfig, or unfreeze it.",
            subject=Subject("module", last.name),
            place=place,
            evidence=[Evidence("size of the head", sum(fact.size for fact in own))],
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
        )


def _too_few(model: ModelSeen, place: Place | None) -> Iterator[Finding]:
    trainable = sum(fact.size for fact in model.parameters if fact.trainable)
    total = sum(fact.size for fact in model.parameters)
    if trainable < TOO_FEW * total:
        yield rule.finding(
            f"Only {trainable:,} of {total:,} weights of {model.model} are trainable ({trainable / total:.4%}).",
            cause=SMALL,
            fix="Adapt more layers (target_modules='all-linear') or raise the rank r.",
            subject=Subject("module", f"adapters of {model.model}"),
            place=place,
            evidence=[Evidence("trainable share", trainable / total, "", TOO_FEW)],
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
        )
