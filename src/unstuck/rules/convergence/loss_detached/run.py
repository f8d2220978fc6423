"""O03 in a run: backward() raised because there was no graph, or ran and gave no parameter a gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from unstuck.events import (
    Backward,
    Crash,
    Event,
    Forward,
    LossCall,
    ModelSeen,
    OptimizerSeen,
    OptimizerStep,
    Place,
    ZeroGrad,
)
from unstuck.events.torch_errors import TorchError
from unstuck.findings import Confidence, Evidence, Finding, Subject
from unstuck.record import Record
from unstuck.rules.convergence.loss_detached import CAUSE, CUT_IN_MODEL_FIX, OUTSIDE_NO_GRAD, Detached, rule
from unstuck.rules.shared import objects
from unstuck.rules.shared.idle import cut_parts

EventType = TypeVar("EventType", bound=Event)

REPEATED = 10
STEADY = 3
NUMBERS = {"float": "plain number", "int": "plain number", "ndarray": "numpy array", "float32": "numpy number"}
"""What item(), float() and numpy() return."""


def find(record: Record) -> Iterator[Finding]:
    """What a crash shows, else what steps without gradients show."""
    events = list(record.events)
    crash = record.crash
    if crash is not None and TorchError.NO_GRAPH.is_in(crash.message) and _something_trains(record):
        yield _without_graph(events, crash)
        return
    if crash is not None and not crash.raised and TorchError.NO_BACKWARD_METHOD.is_in(crash.message):
        number = next((fact for fact in crash.inputs if fact.name == "self" and fact.kind in NUMBERS), None)
        if number is not None:
            yield _plain_number(events, crash, NUMBERS[number.kind])
            return
    leaves = [event for event in events if isinstance(event, Backward) and event.leaf]
    empty = _empty_steps_after_backward(events)
    if len(leaves) >= STEADY and empty >= STEADY:
        yield _requires_grad_by_hand(events, leaves, empty)
    elif empty >= REPEATED and _optimizer_has_what_ran(record):
        yield _no_gradient_at_all(events, empty)
    else:
        yield from _optimizer_not_reached(record)
        yield from _cut_in_model(record)


def _something_trains(record: Record) -> bool:
    """Were there trainable parameters? If not, the rule about parameters in no optimizer reports it."""
    models = list(record.of(ModelSeen))
    return not models or any(fact.trainable for model in models for fact in model.parameters)


def _without_graph(events: Sequence[Event], crash: Crash) -> Finding:
    recent = _since_last_backward(events)
    forward, loss = _last(recent, Forward), _last(recent, LossCall)
    recorded = [event for event in recent if isinstance(event, Forward) and event.output_requires_grad]
    message, place, variant = "backward() was called on a tensor without a graph.", crash.place, Detached.CUT
    evidence: list[Evidence] = []
    if isinstance(forward, Forward) and not forward.grad_enabled and not recorded:
        message = f"The forward pass of {forward.model} ran with gradient recording off, so backward() has no graph."
        place, variant = forward.place, Detached.NO_GRAD
        evidence.append(Evidence("gradient recording in the forward pass", "off", place=forward.place))
    elif isinstance(loss, LossCall) and loss.output_requires_grad:
        message = f"{loss.loss} returned a loss with a graph, but the tensor backward() was called on has none."
        evidence.append(Evidence("the loss had a graph", True, place=loss.place))
    elif recorded:
        forward = recorded[-1]
        message = f"{forward.model} returned an output with a graph, but the tensor backward() was called on has none."
        evidence.append(Evidence("the model output had a graph", True, place=forward.place))
    return rule.finding(
        message,
        cause=CAUSE,
        fix=OUTSIDE_NO_GRAD
        if variant is Detached.NO_GRAD
        else "Remove what cuts the graph between those two lines: item(), detach(), .data, numpy(), float() or "
        "torch.tensor().",
        subject=Subject.at("loss", "backward", crash.place),
        place=place,
        related=[crash.place, forward.place if forward else None, loss.place if loss else None],
        evidence=evidence,
        variant=variant,
    )


def _plain_number(events: Sequence[Event], crash: Crash, kind: str) -> Finding:
    loss = _last(_since_last_backward(events), LossCall)
    return rule.finding(
        f"backward() is called on `{crash.names.get('self', 'loss')}`, which is a {kind}, not a tensor.",
        cause=CAUSE,
        fix="Call backward() on the tensor that the loss function returned; use item(), float() and numpy() only on "
        "the copy you log.",
        subject=Subject.at("loss", "backward", crash.place),
        place=crash.place,
        related=[loss.place if loss else None],
        variant=Detached.PLAIN_NUMBER,
    )


def _since_last_backward(events: Sequence[Event]) -> list[Event]:
    """What led to the backward that failed."""
    earlier = [i for i, event in enumerate(events) if isinstance(event, Backward) and not event.failed]
    return list(events[earlier[-1] + 1 :] if earlier else events)


def _last(events: Sequence[Event], kind: type[EventType]) -> EventType | None:
    return next((event for event in reversed(events) if isinstance(event, kind)), None)


def _empty_steps_after_backward(events: Sequence[Event]) -> int:
    """Steps that found no gradient although a backward had run and nothing was cleared since."""
    count, fresh = 0, False
    for event in events:
        if isinstance(event, Backward):
            fresh = True
        elif isinstance(event, ZeroGrad):
            fresh = False
        elif isinstance(event, OptimizerStep):
            count += fresh and event.with_grad == 0
            fresh = False
    return count


def _requires_grad_by_hand(events: Sequence[Event], leaves: Sequence[Backward], empty: int) -> Finding:
    loss = _last(events, LossCall)
    backward = leaves[-1]
    return rule.finding(
        "backward() is called on a tensor without a graph: requires_grad was set on it by hand.",
        cause=CAUSE,
        fix="Remove requires_grad_(True) and what cut the graph before it, and call backward() on the loss tensor "
        "itself.",
        subject=Subject.at("loss", "backward", backward.place),
        place=backward.place,
        related=[loss.place if loss else None],
        evidence=[
            Evidence("backward() calls without a graph", len(leaves)),
            Evidence("steps that found no gradient", empty),
        ],
        variant=Detached.REQUIRES_GRAD_BY_HAND,
    )


def _optimizer_has_what_ran(record: Record) -> bool:
    """Does the only optimizer hold the parameters of a model that ran, and did it never find a gradient on them?"""
    steps, seen = list(record.of(OptimizerStep)), list(record.of(OptimizerSeen))
    given = {fact.key for optimizer in seen for fact in optimizer.parameters if fact.trainable}
    ran = {fact.key for model in record.of(ModelSeen) for fact in model.parameters}
    alone = len({step.optimizer for step in steps}) == 1
    return alone and bool(given) and given <= ran and all(step.with_grad == 0 for step in steps)


def _no_gradient_at_all(events: Sequence[Event], empty: int) -> Finding:
    """backward() succeeds, and no step finds a gradient."""
    backward, loss = _last(events, Backward), _last(events, LossCall)
    given = max((event.parameters or 0 for event in events if isinstance(event, OptimizerStep)), default=0)
    return rule.finding(
        f"In {empty} steps, each after a backward(), none of the {given} parameters of the optimizer had a gradient.",
        cause=f"The graph is cut between the model and the loss, and a new one starts there. {CAUSE}",
        fix="Pass the model's output itself to the loss; remove torch.tensor(...), numpy(), tolist(), detach() and "
        "requires_grad_(True) in between.",
        subject=Subject.at("loss", "backward", backward.place if backward else None),
        place=loss.place if loss else backward.place if backward else None,
        related=[backward.place if backward else None],
        evidence=[
            Evidence("steps that found no gradient", empty),
            Evidence("parameters with a gradient", f"0 of {given}"),
        ],
        variant=Detached.CUT,
    )


def _optimizer_not_reached(record: Record) -> Iterator[Finding]:
    """One of several optimizers keeps stepping, and no backward ever reaches its parameters."""
    steps: dict[str, list[OptimizerStep]] = {}
    for step in record.of(OptimizerStep):
        steps.setdefault(step.optimizer, []).append(step)
    if len(steps) < 2:
        return
    for label, taken in steps.items():
        given = max(step.parameters or 0 for step in taken)
        if len(taken) < REPEATED or given < 2 or any(step.with_grad != 0 for step in taken):
            continue
        message = f"In {len(taken)} steps of {label} none of its {given} parameters had a gradient."
        cause = "No backward() reaches the parameters of this optimizer, so its part of the model never learns."
        fix = "Compute its loss from the output of that part without detaching it; call backward() before this step()."
        other, place = _owner_besides(record, label)
        if other:
            message = f"{label} has the parameters of {other}; in {len(taken)} steps none of them had a gradient."
            cause = "It was built from the parameters of another network than the one whose loss it should lower."
            fix = "Build it from the parameters of the network that its loss is meant to train."
        yield rule.finding(
            message,
            cause=cause,
            fix=fix,
            subject=Subject("optimizer", label),
            place=place or taken[0].place,
            related=[taken[0].place] if place else [],
            evidence=[Evidence("steps seen", len(taken)), Evidence("parameters with a gradient", f"0 of {given}")],
            variant=Detached.OPTIMIZER_NOT_REACHED,
        )


def _owner_besides(record: Record, label: str) -> tuple[str, Place | None]:
    """Another optimizer that has all parameters of this one, and where this one was built; empty if there is none."""
    seen = {event.optimizer: event for event in record.of(OptimizerSeen)}
    built = next((event.place for event in record.of(OptimizerSeen) if event.optimizer == label and event.place), None)
    own = {fact.key for fact in seen[label].parameters} if label in seen else set()
    for other, event in seen.items():
        if own and other != label and own <= {fact.key for fact in event.parameters}:
            return other, built
    return "", None


def _cut_in_model(record: Record) -> Iterator[Finding]:
    """The first layers of a model run in every step and never get a gradient, while the layers after them learn.

    Only the first layers count: unused heads, experts and branches come after layers that learn. Loaded weights may be
    meant to stay as they are.
    """
    if record.ended is None or record.continues:
        return
    loaded = {
        module.name for model in record.of(ModelSeen) for module in model.modules if module.numbers.get("pretrained")
    }
    for part in cut_parts(record):
        owners = {each.name.rpartition(".")[0] for each in part.still}
        steps = [step for step in record.of(OptimizerStep) if step.optimizer == part.still[0].optimizer]
        if owners & loaded or len(steps) < REPEATED:
            continue
        if any(step.parameters is None or step.parameters - (step.with_grad or 0) < len(part.still) for step in steps):
            continue
        model, share = part.model.model, f"{len(part.still)} of {part.trainable}"
        names = objects.listed([each.name for each in part.still])
        yield rule.finding(
            f"{share} trainable parameters of {model} never got a gradient, although their layers ran in every watched "
            f"step ({names}).",
            cause=f"The graph is cut between them and {part.next_name}. {CAUSE}",
            fix=CUT_IN_MODEL_FIX,
            subject=Subject("parameter", names),
            place=part.model.place,
            evidence=[
                Evidence("trainable parameters without a gradient", share),
                Evidence("optimizer steps", record.ended.steps or len(steps)),
            ],
            confidence=Confidence.LIKELY,
            variant=Detached.CUT_IN_MODEL,
        )
