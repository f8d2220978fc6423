"""O05 in a run: steps with dropout and normalization in eval mode, and evaluations in train mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from unstuck.events import (
    Backward,
    Evaluated,
    Event,
    Forward,
    LoaderSeen,
    LossCall,
    ModeChange,
    ModelSeen,
    OptimizerStep,
    Place,
)
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rules.convergence.wrong_mode import Mode, effect_of_eval, effect_of_train, rule
from unstuck.rules.shared.modes import says_evaluation

FEWEST_STEPS = 3
FEWEST_EVALUATIONS = 2
FEWEST_PASSES = 2
"""Batches of an evaluation; a single one may be an image for the log."""


class _Iteration(NamedTuple):
    """The forward passes of one model that one optimizer step used."""

    step: OptimizerStep
    forwards: list[Forward]

    @property
    def in_eval(self) -> bool:
        # Parts in eval mode inside a model in train mode are frozen on purpose.
        return all(forward.layers_train is False and not forward.training for forward in self.forwards)


def find(record: Record) -> Iterator[Finding]:
    """Training in eval mode, then evaluation in train mode."""
    iterations = _iterations(record)
    for model, own in iterations.items():
        yield from _trained_in_eval(record, model, own)
    for model, times, place, loss in _evaluated_in_train(record, set(iterations)):
        often = "once" if times == 1 else f"{times} times"
        yield rule.finding(
            f"{model} was evaluated {often} in train mode, and never in eval mode.",
            cause=effect_of_train(_dependent_layer(record, model)),
            fix="Call eval() on the model before the evaluation and train() before training continues.",
            subject=Subject("module", f"mode of {model}"),
            place=place,
            related=(loss,),
            evidence=[Evidence("evaluations in train mode", times)],
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            variant=Mode.EVALUATED_IN_TRAIN,
        )


def _dependent_layer(record: Record, model: str) -> str:
    """The class of a layer of the model that depends on the mode, or else the model."""
    seen = next((event for event in record.of(ModelSeen) if event.model == model), None)
    kinds = [module.kind for module in seen.modules] if seen else []
    return next((kind for kind in kinds if "BatchNorm" in kind or "Dropout" in kind), model)


def _trained_in_eval(record: Record, model: str, own: list[_Iteration]) -> Iterator[Finding]:
    """The last steps of the model all ran with its Dropout and BatchNorm layers in eval mode."""
    steps = 0
    while steps < len(own) and own[-1 - steps].in_eval:
        steps += 1
    if steps < FEWEST_STEPS:
        return
    first, before = own[len(own) - steps], own[: len(own) - steps]
    if not before and _trains_a_part(record, model, first.step.optimizer):
        return  # what is left as it was answers by its stored statistics, on purpose
    forward = first.forwards[0]
    certain = bool(before) and _evaluated_between(record, model, before[-1].step, first.step)
    since = f"Since step {first.step.step + 1}" if before else "From the start"
    yield rule.finding(
        f"{since} {model} trains in eval mode: {steps} of {len(own)} watched steps.",
        cause=effect_of_eval(_dependent_layer(record, model)),
        fix="Call train() on the model before every iteration that trains.",
        subject=Subject("module", f"mode of {model}"),
        place=_last_eval(record, model, forward) or forward.place,
        related=(forward.place, first.step.place),
        evidence=[Evidence("steps in eval mode", f"{steps} of {len(own)}")],
        severity=Severity.ERROR if certain else Severity.WARNING,
        confidence=Confidence.CERTAIN if certain else Confidence.LIKELY,
        variant=Mode.STAYS_IN_EVAL if before else Mode.STARTS_IN_EVAL,
    )


def _trains_a_part(record: Record, model: str, optimizer: str) -> bool:
    """Does the optimizer hold less than half of the weights of the model, as when its last block is tuned?"""
    setup = record.setup()
    mine = {fact.key for seen in setup.models if seen.model == model for fact in seen.parameters}
    given = {fact.key for seen in setup.optimizers if seen.optimizer == optimizer for fact in seen.parameters}
    return 2 * len(mine & given) < len(mine)


def _iterations(record: Record) -> dict[str, list[_Iteration]]:
    """For each model, every step that followed a backward through it, with its forward passes."""
    found: dict[str, list[_Iteration]] = {}
    forwards: dict[str, list[Forward]] = {}
    has_backward = False
    trains = _trained_by(record)
    for event in record.events:
        if isinstance(event, Forward) and event.grad_enabled and event.output_requires_grad:
            forwards.setdefault(event.model, []).append(event)
        elif isinstance(event, Backward):
            has_backward = not event.failed
        elif isinstance(event, OptimizerStep):
            for model, ran in forwards.items() if has_backward else ():
                if ran[0].layers_train is not None and model in trains.get(event.optimizer, ()):
                    found.setdefault(model, []).append(_Iteration(event, ran))
            forwards, has_backward = {}, False
    return found


def _trained_by(record: Record) -> dict[str, set[str]]:
    """The models that each optimizer trains, without a network that only judges the output of another."""
    setup = record.setup()
    keys = {optimizer.optimizer: {fact.key for fact in optimizer.parameters} for optimizer in setup.optimizers}
    own = {model.model: {fact.key for fact in model.parameters if fact.trainable} for model in setup.models}
    return {optimizer: {name for name, mine in own.items() if mine & given} for optimizer, given in keys.items()}


def _last_eval(record: Record, model: str, before: Event) -> Place | None:
    """The last call of eval() on the model before an event."""
    found = None
    for event in record.events:
        if event is before:
            break
        if isinstance(event, ModeChange) and event.model == model and not event.training:
            found = event
    return found.place if found else None


def _evaluated_between(record: Record, model: str, start: Event, end: Event) -> bool:
    positions = [index for index, event in enumerate(record.events) if event is start or event is end]
    between = record.events[positions[0] : positions[-1]]
    return any(isinstance(e, Forward) and e.model == model and not e.grad_enabled for e in between)


def _evaluated_in_train(record: Record, trained: set[str]) -> Iterator[tuple[str, int, Place | None, Place | None]]:
    """Trained models whose outputs without gradients went into a loss, always in train mode: the model, how often, and
    where the forward pass and the loss are."""
    found: dict[str, list[tuple[Forward, LossCall]]] = {}
    ever_in_eval: set[str] = set()
    last: Forward | None = None
    for event in record.events:
        if isinstance(event, Forward):
            last = event
            if event.layers_train is False or not event.training:
                ever_in_eval.add(event.model)
        elif isinstance(event, Backward | OptimizerStep):
            last = None
        elif isinstance(event, LossCall) and last is not None:
            in_train = not last.grad_enabled and last.layers_train is True
            if in_train and event.output_requires_grad is False:
                found.setdefault(last.model, []).append((last, event))
                last = None
    evaluations = [event for event in record.of(Evaluated) if not event.grad_enabled]
    ever_in_eval |= {event.model for event in evaluations if not event.training_mode}
    candidates = trained - ever_in_eval
    for model, calls in found.items():
        # A long run records few of its forward passes, but every evaluation.
        times = max(len(calls), sum(event.model == model for event in evaluations))
        if model in candidates and times >= FEWEST_EVALUATIONS:
            forward, loss = calls[0]
            yield model, times, forward.place, loss.place
    for model, stretches in _passes_without_loss(record).items():
        if model in candidates and model not in found:
            yield model, len(stretches), stretches[0][0].place, None


def _passes_without_loss(record: Record) -> dict[str, list[list[Forward]]]:
    """For each model, passes without gradients in train mode over all batches of a loader that is not trained on, or in
    a function whose name says that it evaluates: they may have computed only an accuracy."""
    lengths = {batches for loader in record.of(LoaderSeen) if (batches := _untrained_batches(record, loader))}
    found: dict[str, list[list[Forward]]] = {}
    for stretch in _stretches(record):
        named = all(forward.place and says_evaluation(forward.place.function) for forward in stretch)
        if len(stretch) >= FEWEST_PASSES and (named or len(stretch) in lengths):
            found.setdefault(stretch[0].model, []).append(stretch)
    return found


def _untrained_batches(record: Record, loader: LoaderSeen) -> int:
    """How many batches a loader yields, if no backward ever followed one; 0 if that is unknown."""
    trained = any(other.trained for other in record.of(LoaderSeen) if other.loader == loader.loader)
    if trained or not loader.length or not loader.batch_size:
        return 0
    return loader.length // loader.batch_size if loader.drop_last else -(-loader.length // loader.batch_size)


def _stretches(record: Record) -> Iterator[list[Forward]]:
    """Consecutive forward passes of one model, without gradients, with its layers in train mode."""
    stretch: list[Forward] = []
    for event in record.of(Forward, Backward, OptimizerStep):
        continues = isinstance(event, Forward) and not event.grad_enabled and event.layers_train is True
        if stretch and not (continues and isinstance(event, Forward) and event.model == stretch[0].model):
            yield stretch
            stretch = []
        if continues and isinstance(event, Forward):
            stretch.append(event)
    if stretch:
        yield stretch
