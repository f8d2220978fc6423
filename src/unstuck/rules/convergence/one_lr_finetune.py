"""O19: a new head and a pretrained backbone share a learning rate, and the backbone is lost within a few steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from unstuck.events import ModelSeen, OptimizerSeen, Setup, TensorGauges
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics, objects

rule = Rule(
    code="O19",
    name="one-lr-finetune",
    title="a new head and a pretrained backbone share a learning rate that is too high for the backbone",
    severity=Severity.WARNING,
    explains=("O22", "M14"),
    needs=(ModelSeen, TensorGauges),
)

EARLY = 20
"""Steps in which the untrained head sends large gradients into the backbone."""
FEWEST = 4
LOST = 0.5
"""A weight that moves by this share of its norm within these steps is no longer the pretrained one."""
STEP_IS_RATE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")
HIGH_RATE = 1e-3
CAUSE = (
    "At first the new head is random, and its large gradients reach the pretrained layers at the full learning rate: "
    "what they learned is overwritten before the head can use it."
)
FIX = (
    "Give the backbone a group with a 10 to 100 times lower learning rate: [{'params': head.parameters(), 'lr': 1e-3}, "
    "{'params': backbone.parameters(), 'lr': 1e-5}]; or train the head alone first, then unfreeze."
)


class _Case(NamedTuple):
    """A model with both parts, and the optimizer that trains them at one learning rate."""

    model: ModelSeen
    optimizer: OptimizerSeen
    head: str
    backbone: frozenset[str]
    rate: float


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """How far the backbone moved over the first steps."""
    first: dict[str, ModelSeen] = {}
    for seen in record.of(ModelSeen):
        first.setdefault(seen.model, seen)
    setup = record.setup()
    fresh = tuple(model for model in first.values() if model.step == 0)
    for case in _cases(Setup(models=fresh, optimizers=setup.optimizers)):
        drifts = _drifts(record, case)
        middle = dynamics.median([drift for _, drift in drifts])
        if middle is None or middle < LOST:
            continue
        worst = max(drifts, key=lambda item: item[1])
        yield _finding(
            case,
            f"The pretrained weights of {case.model.model} moved by {middle:.0%} of their norm in {EARLY} steps, "
            f"at the learning rate of the new {case.head} ({case.rate:g}).",
            [
                Evidence("total update of the backbone", middle, "of its norm", LOST),
                Evidence("largest", f"{worst[0]} ({worst[1]:.0%})"),
            ],
            None,
        )


def _drifts(record: Record, case: _Case) -> list[tuple[str, float]]:
    """The sum of the updates of each pretrained matrix over the first steps, as a share of its norm."""
    found = []
    for series in dynamics.tensors(record):
        if series.optimizer != case.optimizer.optimizer or series.name not in case.backbone or series.dimension < 2:
            continue
        known = zip(series.steps, series.update_ratio, strict=True)
        early = [(step, ratio) for step, ratio in known if ratio is not None and step < EARLY]
        if len(early) >= FEWEST:
            # Not every step is measured: each measurement counts for the steps up to the next.
            ends = [*(step for step, _ in early[1:]), EARLY]
            found.append(
                (series.name, sum(ratio * (end - step) for (step, ratio), end in zip(early, ends, strict=True)))
            )
    return found


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Both share a learning rate for training from scratch, in an optimizer whose steps are as large as that rate."""
    for case in _cases(setup):
        if case.optimizer.kind in STEP_IS_RATE and case.rate >= HIGH_RATE:
            yield _finding(
                case,
                f"The new {case.head} and the pretrained rest of {case.model.model} share a learning rate of "
                f"{case.rate:g}.",
                [Evidence("learning rate of both", case.rate, "", HIGH_RATE)],
                Severity.ADVICE,
            )


def _cases(setup: Setup) -> Iterator[_Case]:
    for model in setup.models:
        head = _fresh_head(model)
        pretrained = any(module.numbers.get("pretrained") == 1 for module in model.modules)
        if not head or not pretrained:
            continue
        backbone = {
            fact.key: fact
            for fact in model.parameters
            if fact.trainable and not _is_under(fact.name, head) and not _is_adapter(fact.name, model)
        }
        for optimizer in setup.optimizers:
            rates = {g.rate for g, facts in objects.by_group(optimizer) if any(f.trainable for f in facts) and g.rate}
            keys = {fact.key for fact in optimizer.parameters}
            own = [fact for fact in model.parameters if _is_under(fact.name, head) and fact.key in keys]
            matrices = [fact for key, fact in backbone.items() if key in keys and len(fact.shape) > 1]
            if own and matrices and len(rates) == 1:
                names = frozenset(fact.name for fact in matrices)
                yield _Case(model, optimizer, head.rpartition(".")[2], names, rates.pop() or 0.0)


def _fresh_head(model: ModelSeen) -> str:
    """The last Linear, if its weights are still the random initial ones."""
    layers = [module for module in model.modules if module.kind == "Linear"]
    return layers[-1].name if layers and layers[-1].numbers.get("pretrained") == 0 else ""


def _is_adapter(name: str, model: ModelSeen) -> bool:
    """Is it a new part around a frozen layer, as in LoRA?"""
    owner = name.rpartition(".")[0]
    return bool(owner) and any(not fact.trainable and _is_under(fact.name, owner) for fact in model.parameters)


def _is_under(name: str, module: str) -> bool:
    return name.startswith(f"{module}.")


def _finding(case: _Case, message: str, evidence: list[Evidence], severity: Severity | None) -> Finding:
    return rule.finding(
        message,
        cause=CAUSE,
        fix=FIX,
        subject=Subject("optimizer", case.optimizer.optimizer),
        place=case.optimizer.place,
        evidence=evidence,
        severity=severity,
        confidence=Confidence.LIKELY,
    )
