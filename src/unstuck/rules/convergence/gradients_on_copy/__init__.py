"""R28: gradients arrive at a copy of the network, and never at the weights that the optimizer holds."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Backward, Forward, ModelSeen, OptimizerSeen, OptimizerStep
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule

rule = Rule(
    code="R28",
    name="gradients-on-copy",
    title="gradients arrive at a copy of the network, not at what the optimizer holds",
    severity=Severity.ERROR,
    explains=("M14", "O01", "O02", "O07", "O22", "P21", "R03", "R08"),
    needs=(OptimizerStep,),
)

FEWEST = 5


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """An optimizer whose weights never have a gradient, next to a network of the same shapes that was trained on."""
    steps: dict[str, list[OptimizerStep]] = {}
    for step in record.of(OptimizerStep):
        steps.setdefault(step.optimizer, []).append(step)
    held = {event.optimizer: event for event in record.of(OptimizerSeen)}
    learning = {event.model for event in record.of(Forward) if event.output_requires_grad}
    for label, taken in steps.items():
        own = held.get(label)
        empty = all(step.with_grad == 0 and step.parameters for step in taken)
        if own is None or len(taken) < FEWEST or not empty or not any(record.of(Backward)):
            continue
        keys = {fact.key for fact in own.parameters}
        shapes = sorted(fact.shape for fact in own.parameters if fact.trainable)
        copies = [
            model
            for model in record.of(ModelSeen)
            if model.model in learning
            and keys.isdisjoint(fact.key for fact in model.parameters)
            and sorted(fact.shape for fact in model.parameters if fact.trainable) == shapes
        ]
        if shapes and copies:
            yield _finding(label, own, taken, copies)


def _finding(label: str, own: OptimizerSeen, taken: list[OptimizerStep], copies: list[ModelSeen]) -> Finding:
    copied = len({model.model for model in copies})
    networks = f"{copied} other networks" if copied > 1 else "another network"
    return rule.finding(
        f"{label} changes nothing: none of its {len(own.parameters)} parameters had a gradient in {len(taken)} steps, "
        f"while {networks} of the same shapes ({copies[-1].model}) took part in the loss.",
        cause="The loss is computed with a copy, such as copy.deepcopy(model), so backward() fills .grad of the copy. "
        "Nothing carries these gradients to the weights that the optimizer holds.",
        fix="Compute the loss with the network itself, or add the gradients of the copy to it before step(): "
        "for p, q in zip(model.parameters(), copy.parameters()): p.grad = q.grad.clone(). To differentiate through "
        "inner steps, use torch.func.functional_call.",
        subject=Subject("optimizer", label),
        place=taken[-1].place,
        related=(copies[-1].place,),
        evidence=[
            Evidence("steps without any gradient", len(taken)),
            Evidence("networks of the same shapes", copied),
        ],
    )
