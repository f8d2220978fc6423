"""O03: what is back-propagated has been cut off the graph, so no parameter gets a gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from unstuck.events import (
    Backward,
    Crash,
    Event,
    Forward,
    InputFact,
    LossCall,
    ModelSeen,
    OptimizerSeen,
    OptimizerStep,
    Place,
    Setup,
    Trial,
    ZeroGrad,
)
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rule import Rule
from unstuck.rules.convergence._cut_in_run import cut_beginning
from unstuck.rules.shared import objects
from unstuck.source.flow import History, first_cut, papers_over, producers
from unstuck.source.values import Tensor, Value, members

if TYPE_CHECKING:
    from unstuck.record import Record
    from unstuck.source import Script

rule = Rule(
    code="O03",
    name="loss-detached",
    title="the loss is cut off the graph before backward()",
    severity=Severity.ERROR,
    explains=("G09", "G18", "O01", "O07", "O22", "R08"),
    needs=(Backward,),
)

CAUSE = "behind a cut there is no path back to the parameters, so they get no gradient and cannot learn."
FIXES = {
    "no_grad": "Run the training forward pass outside no_grad()/inference_mode(); keep those for evaluation.",
    "argmax": (
        "Back-propagate the loss (for example cross_entropy on the logits); argmax and accuracy have no gradient."
    ),
    "a comparison": "Back-propagate the loss, not a metric: comparisons and accuracy have no gradient.",
}
FIX = "Back-propagate the loss tensor itself, and use {cut} only on the copy that is logged."
EventType = TypeVar("EventType", bound=Event)

CUT_FIX = (
    "Between these layers and the loss, remove what cuts the graph (detach(), .data, numpy(), no_grad(), argmax); if "
    "that is meant, freeze them with requires_grad_(False)."
)
UNUSED = (
    "No path leads from them to the loss, so they keep their initial values; DistributedDataParallel stops on them."
)
UNUSED_FIX = "Use them in forward(), or remove them from the model."
BY_CHANCE = pattern(r"(?i)expert|moe|branch")
"""Parameters that only some batches reach."""

NO_GRAPH = "element 0 of tensors does not require grad"
REPEATED = 10
STEADY = 3
NUMBERS = {"float": "plain number", "int": "plain number", "ndarray": "numpy array", "float32": "number of numpy"}
"""What item(), float() and numpy() give."""


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Every way back from the value given to backward() is cut."""
    given = [value for made in script.facts.optimizers for value in members(made.parameters)]
    trained = {id(value) for value in given}
    for call in script.facts.backwards:
        if call.value is None:
            continue
        papered = _papered(call.value)
        history = History(papered.inputs[0] if papered else call.value, trained)
        if history.detached:
            yield from _cut_findings(history.cuts, call.event.place, papered)


def _papered(value: Value) -> Tensor | None:
    for maker in _itself_and_producers(value):
        if isinstance(maker, Tensor) and maker.op == "requires_grad_" and papers_over(maker.inputs[0]):
            return maker
    return None


def _itself_and_producers(value: Value) -> Iterator[Value]:
    """The value itself, then what made it."""
    yield value
    yield from producers(value)


def _cut_findings(cuts: Sequence[Tensor], backward: Place | None, papered: Tensor | None) -> Iterator[Finding]:
    cut = first_cut(cuts[0])
    under = "under no_grad()" if cut.cut == "no_grad" else f"by {cut.cut}"
    hidden = "; requires_grad_() only hides that" if papered else ""
    yield rule.finding(
        f"What backward() is called on was cut off the graph {under}{hidden}.",
        cause=_upper(CAUSE),
        fix=_fix(cut.cut),
        subject=Subject("loss", f"backward at {backward}"),
        place=cut.cut_place,
        related=(cut.place, papered.place if papered else None, backward),
    )


def _fix(cut: str) -> str:
    return FIXES.get(cut, FIX.format(cut="it" if cut == "no_grad" else cut))


def _upper(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """The loss of the probed batch has no graph, or one that leaves out layers."""
    cut = [backward for backward in setup.backwards if backward.requires_grad is False]
    if cut and any(fact.trainable for model in setup.models for fact in model.parameters):
        yield rule.finding(
            "The loss of the batch is cut off the graph: backward() has nothing to go back through.",
            cause=_upper(CAUSE),
            fix="In the model or the loss function, remove what cuts the graph: item(), detach(), .data or no_grad().",
            subject=Subject("loss", "loss of the batch"),
            place=cut[0].place,
        )

    elif setup.trial is not None:
        yield from _without_gradient(setup, setup.trial)


def _without_gradient(setup: Setup, trial: Trial) -> Iterator[Finding]:
    """Parameters that an optimizer is to train and that the loss of the batch does not depend on."""
    held = {fact.key for optimizer in setup.optimizers for fact in optimizer.parameters}
    missing = [fact for fact in setup.missing_gradients if not held or fact.key in held]
    cut = [fact for fact in missing if fact.name.rpartition(".")[0] in trial.cut_off]
    unused = [fact for fact in missing if fact not in cut and not BY_CHANCE.search(fact.name)]
    trainable = sum(fact.trainable for model in setup.models for fact in model.parameters)
    for facts, words, cause, fix, severity in (
        (cut, "belong to layers that run", _upper(CAUSE), CUT_FIX, Severity.WARNING),
        (unused, "are not used in the forward pass", UNUSED, UNUSED_FIX, Severity.ADVICE),
    ):
        if facts:
            names = objects.listed([fact.name for fact in facts])
            yield rule.finding(
                f"{len(facts)} of {trainable} trainable parameters get no gradient from the batch; they {words} "
                f"({names}).",
                cause=cause,
                fix=fix,
                subject=Subject("parameter", names),
                evidence=[Evidence("trainable parameters without a gradient", f"{len(facts)} of {trainable}")],
                severity=severity,
                confidence=Confidence.LIKELY,
            )


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """backward() raised for want of a graph, or ran and gave no parameter a gradient."""
    events = list(record.events)
    crash = record.crash
    if crash is not None and NO_GRAPH in crash.message and _something_trains(record):
        yield _explained(events, crash)
        return
    if crash is not None and (number := _number(crash)) is not None:
        yield _plain_number(events, crash, number)
        return
    leaves = [event for event in events if isinstance(event, Backward) and event.leaf]
    empty = _empty_steps_after_backward(events)
    if len(leaves) >= STEADY and empty >= STEADY:
        yield _hand_made(events, leaves, empty)
    elif empty >= REPEATED and _holds_what_ran(record):
        yield _without_any(events, empty)
    else:
        yield from _never_reached(record)
        yield from _cut_inside(record)


def _holds_what_ran(record: Record) -> bool:
    """Has the only optimizer the parameters of a model that ran, and never found a gradient on any of them?"""
    steps, seen = list(record.of(OptimizerStep)), list(record.of(OptimizerSeen))
    held = {fact.key for optimizer in seen for fact in optimizer.parameters if fact.trainable}
    ran = {fact.key for model in record.of(ModelSeen) for fact in model.parameters}
    alone = len({step.optimizer for step in steps}) == 1
    return alone and bool(held) and held <= ran and all(step.with_grad == 0 for step in steps)


def _without_any(events: Sequence[Event], empty: int) -> Finding:
    """backward() runs to its end, and no step finds a gradient."""
    backward, loss = _last(events, Backward), _last(events, LossCall)
    held = max((event.parameters or 0 for event in events if isinstance(event, OptimizerStep)), default=0)
    return rule.finding(
        f"In {empty} steps, each after a backward(), none of the {held} parameters of the optimizer had a gradient.",
        cause=f"Between the model and the loss the graph is cut and begun anew: {CAUSE}",
        fix="Give the loss the output of the model itself; remove torch.tensor(...), numpy(), tolist(), detach() and "
        "requires_grad_(True) in between.",
        subject=Subject("loss", f"backward at {backward.place if backward else None}"),
        place=loss.place if loss else backward.place if backward else None,
        related=[backward.place if backward else None],
        evidence=[
            Evidence("steps that found no gradient", empty),
            Evidence("parameters with a gradient", f"0 of {held}"),
        ],
    )


def _cut_inside(record: Record) -> Iterator[Finding]:
    """The layers before a cut never get a gradient, those behind it learn."""
    cut = cut_beginning(record)
    if cut is None:
        return
    names = objects.listed(cut.names)
    yield rule.finding(
        f"{len(cut.names)} of {cut.trainable} trainable parameters of {cut.model} never got a gradient, though their "
        f"layers ran in every step watched ({names}).",
        cause=f"The graph is cut between them and {cut.first_learning}: {CAUSE}",
        fix=CUT_FIX,
        subject=Subject("parameter", names),
        place=cut.place,
        evidence=[
            Evidence("trainable parameters without a gradient", f"{len(cut.names)} of {cut.trainable}"),
            Evidence("optimizer steps", cut.steps),
        ],
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
    )


def _never_reached(record: Record) -> Iterator[Finding]:
    """Of several optimizers one steps again and again, and no backward ever reached what it holds."""
    steps: dict[str, list[OptimizerStep]] = {}
    for step in record.of(OptimizerStep):
        steps.setdefault(step.optimizer, []).append(step)
    if len(steps) < 2:
        return
    for label, taken in steps.items():
        held = max(step.parameters or 0 for step in taken)
        if len(taken) < REPEATED or held < 2 or any(step.with_grad != 0 for step in taken):
            continue
        yield rule.finding(
            f"In {len(taken)} steps of {label} none of its {held} parameters had a gradient.",
            cause="No backward() reaches what this optimizer holds: its part of the model never learns.",
            fix="Compute its loss from the output of that part with nothing detached in between, and call backward() "
            "before this step().",
            subject=Subject("optimizer", label),
            place=taken[0].place,
            evidence=[Evidence("steps seen", len(taken)), Evidence("parameters with a gradient", f"0 of {held}")],
        )


def _something_trains(record: Record) -> bool:
    """Were there trainable parameters? If not, the rule about nothing to train speaks instead."""
    models = list(record.of(ModelSeen))
    return not models or any(fact.trainable for model in models for fact in model.parameters)


def _explained(events: Sequence[Event], crash: Crash) -> Finding:
    turn = _since_last_backward(events)
    forward, loss = _last(turn, Forward), _last(turn, LossCall)
    recorded = [event for event in turn if isinstance(event, Forward) and event.output_requires_grad]
    message, place, cut = "backward() was called on a tensor without a graph.", crash.place, ""
    evidence: list[Evidence] = []
    if isinstance(forward, Forward) and not forward.grad_enabled and not recorded:
        message = f"The forward pass of {forward.model} ran with gradient recording off, so backward() has no graph."
        place, cut = forward.place, "no_grad"
        evidence.append(Evidence("gradient recording in the forward pass", "off", place=forward.place))
    elif isinstance(loss, LossCall) and loss.output_requires_grad:
        message = f"{loss.loss} returned a loss with a graph, but what backward() was called on has none."
        evidence.append(Evidence("loss still had its graph", True, place=loss.place))
    elif recorded:
        forward = recorded[-1]
        message = f"{forward.model} returned an output with a graph, but what backward() was called on has none."
        evidence.append(Evidence("model output still had its graph", True, place=forward.place))
    related = [crash.place, forward.place if forward else None, loss.place if loss else None]
    return rule.finding(
        message,
        cause=_upper(CAUSE),
        fix=_fix(cut)
        if cut
        else (
            "Between those two lines, remove what cuts the graph: item(), detach(), .data, numpy(), float() or "
            "torch.tensor()."
        ),
        subject=Subject("loss", f"backward at {crash.place}"),
        place=place,
        related=related,
        evidence=evidence,
    )


def _number(crash: Crash) -> InputFact | None:
    """What backward() is asked of, if it is a number or an array."""
    asked = next((fact for fact in crash.inputs if fact.name == "self" and fact.kind in NUMBERS), None)
    return asked if not crash.raised and "has no attribute 'backward'" in crash.message else None


def _plain_number(events: Sequence[Event], crash: Crash, number: InputFact) -> Finding:
    loss = _last(_since_last_backward(events), LossCall)
    return rule.finding(
        f"backward() is asked of `{crash.names.get('self', 'loss')}`, which is a {NUMBERS[number.kind]} and no tensor.",
        cause=_upper(CAUSE),
        fix="Call backward() on the tensor that the loss function returned; use item(), float() and numpy() only on "
        "the copy that is logged.",
        subject=Subject("loss", f"backward at {crash.place}"),
        place=crash.place,
        related=[loss.place if loss else None],
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


def _hand_made(events: Sequence[Event], leaves: Sequence[Backward], empty: int) -> Finding:
    loss = _last(events, LossCall)
    backward = leaves[-1]
    return rule.finding(
        "backward() is called on a tensor that has no history: requires_grad was set on it by hand.",
        cause=_upper(CAUSE),
        fix="Remove requires_grad_(True) and what cut the graph before it, and back-propagate the loss tensor itself.",
        subject=Subject("loss", f"backward at {backward.place}"),
        place=backward.place,
        related=[loss.place if loss else None],
        evidence=[
            Evidence("backward() calls without a graph", len(leaves)),
            Evidence("steps that found no gradient", empty),
        ],
    )
