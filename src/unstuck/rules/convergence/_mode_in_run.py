"""O05 in the record of a run: steps taken while dropout and normalisation were in evaluation mode, and the reverse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

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
from unstuck.rules.shared.modes import says_evaluation

if TYPE_CHECKING:
    from unstuck.record import Record

FEWEST_STEPS = 3
FEWEST_EVALUATIONS = 2
FEWEST_PASSES = 2
"""Batches of an evaluation; a single one may be a picture for the log."""


class TrainedInEval(NamedTuple):
    """Steps that a model took with all its Dropout and BatchNorm layers in evaluation mode."""

    model: str
    steps: int
    since: int
    of: int
    """How many steps of it were seen in all."""
    place: Place | None
    """Where eval() was called, as far as the run shows."""
    forward: Place | None
    step: Place | None
    trained_before: bool
    """It had been in training mode in earlier steps."""
    evaluated: bool
    """And was evaluated in between."""


class EvaluatedInTrain(NamedTuple):
    """Forward passes without gradients that lead to a loss, with Dropout or BatchNorm in training mode."""

    model: str
    times: int
    place: Place | None
    loss: Place | None


class _Turn(NamedTuple):
    """The forward passes of one model that one optimizer step rests on."""

    step: OptimizerStep
    forwards: list[Forward]

    @property
    def in_eval(self) -> bool:
        # Parts in eval mode inside a model in train mode are frozen on purpose.
        return all(forward.layers_train is False and not forward.training for forward in self.forwards)


def layers_of(record: Record, model: str) -> str:
    """The class of a layer of the model that heeds the mode, for the sentence about it."""
    seen = next((event for event in record.of(ModelSeen) if event.model == model), None)
    kinds = [module.kind for module in seen.modules] if seen else []
    return next((kind for kind in kinds if "BatchNorm" in kind or "Dropout" in kind), model)


def trained_in_eval(record: Record) -> Iterator[TrainedInEval]:
    """Models whose last steps were all taken in evaluation mode."""
    turns = _turns(record)
    for model, own in turns.items():
        stuck = 0
        while stuck < len(own) and own[-1 - stuck].in_eval:
            stuck += 1
        if stuck < FEWEST_STEPS:
            continue
        first = own[len(own) - stuck]
        before = own[: len(own) - stuck]
        change = _last_change(record, model, first.forwards[0])
        yield TrainedInEval(
            model=model,
            steps=stuck,
            since=first.step.step,
            of=len(own),
            place=change.place if change else None,
            forward=first.forwards[0].place,
            step=first.step.place,
            trained_before=bool(before),
            evaluated=bool(before) and _evaluated_between(record, model, before[-1].step, first.step),
        )


def _turns(record: Record) -> dict[str, list[_Turn]]:
    """By model: each step that followed a backward through it, with its forward passes."""
    found: dict[str, list[_Turn]] = {}
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
                    found.setdefault(model, []).append(_Turn(event, ran))
            forwards, has_backward = {}, False
    return found


def _trained_by(record: Record) -> dict[str, set[str]]:
    """By optimizer: the models it trains. A network that only judges the output of another one is not among them."""
    setup = record.setup()
    held = {optimizer.optimizer: {fact.key for fact in optimizer.parameters} for optimizer in setup.optimizers}
    own = {model.model: {fact.key for fact in model.parameters if fact.trainable} for model in setup.models}
    return {optimizer: {name for name, mine in own.items() if mine & keys} for optimizer, keys in held.items()}


def _last_change(record: Record, model: str, before: Event) -> ModeChange | None:
    found = None
    for event in record.events:
        if event is before:
            break
        if isinstance(event, ModeChange) and event.model == model and not event.training:
            found = event
    return found


def _evaluated_between(record: Record, model: str, start: Event, end: Event) -> bool:
    first, last = _position(record, start), _position(record, end)
    between = record.events[first:last]
    return any(isinstance(e, Forward) and e.model == model and not e.grad_enabled for e in between)


def _position(record: Record, wanted: Event) -> int:
    return next(index for index, event in enumerate(record.events) if event is wanted)


def evaluated_in_train(record: Record) -> Iterator[EvaluatedInTrain]:
    """Trained models with losses computed on their output without gradients, always in training mode."""
    trained = {model for model, turns in _turns(record).items() if turns}
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
        elif isinstance(event, LossCall) and last is not None and _is_evaluation(last, event):
            found.setdefault(last.model, []).append((last, event))
            last = None
    told = [event for event in record.of(Evaluated) if not event.grad_enabled]
    ever_in_eval |= {event.model for event in told if not event.training_mode}
    for model, calls in found.items():
        # Few forward passes of a long run are on record, but every evaluation is.
        times = max(len(calls), sum(event.model == model for event in told))
        if model in trained and model not in ever_in_eval and times >= FEWEST_EVALUATIONS:
            forward, loss = calls[0]
            yield EvaluatedInTrain(model, times, forward.place, loss.place)
    for model, runs in _passes_without_loss(record).items():
        if model in trained and model not in ever_in_eval and model not in found:
            yield EvaluatedInTrain(model, len(runs), runs[0][0].place, None)


def _passes_without_loss(record: Record) -> dict[str, list[list[Forward]]]:
    """By model: passes without gradients, in training mode, over all batches of a loader that nothing is trained on,
    or in a function whose name says that it evaluates. Only an accuracy may have come of them."""
    lengths = {batches for loader in record.of(LoaderSeen) if (batches := _untrained_batches(record, loader))}
    found: dict[str, list[list[Forward]]] = {}
    for stretch in _stretches(record):
        named = all(forward.place and says_evaluation(forward.place.function) for forward in stretch)
        if len(stretch) >= FEWEST_PASSES and (named or len(stretch) in lengths):
            found.setdefault(stretch[0].model, []).append(stretch)
    return found


def _untrained_batches(record: Record, loader: LoaderSeen) -> int:
    """How many batches a loader gives that no backward ever followed; 0 if that is not known."""
    trained = any(other.trained for other in record.of(LoaderSeen) if other.loader == loader.loader)
    if trained or not loader.length or not loader.batch_size:
        return 0
    return loader.length // loader.batch_size if loader.drop_last else -(-loader.length // loader.batch_size)


def _stretches(record: Record) -> Iterator[list[Forward]]:
    """Forward passes of one model in a row, without gradients, with its layers in training mode."""
    stretch: list[Forward] = []
    for event in record.of(Forward, Backward, OptimizerStep):
        goes_on = isinstance(event, Forward) and not event.grad_enabled and event.layers_train is True
        if stretch and not (goes_on and isinstance(event, Forward) and event.model == stretch[0].model):
            yield stretch
            stretch = []
        if goes_on and isinstance(event, Forward):
            stretch.append(event)
    if stretch:
        yield stretch


def _is_evaluation(forward: Forward, loss: LossCall) -> bool:
    return not forward.grad_enabled and forward.layers_train is True and loss.output_requires_grad is False
