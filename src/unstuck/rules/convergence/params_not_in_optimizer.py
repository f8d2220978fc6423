"""O02: parameters that should be trained and that no optimizer holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import (
    Crash,
    Forward,
    ModelSeen,
    OptimizerSeen,
    OptimizerStep,
    ParameterFact,
    Place,
    Setup,
    UntrainedGradients,
)
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.rules.convergence import _optimizer_source as source

if TYPE_CHECKING:
    from unstuck.interventions import Intervention
    from unstuck.record import Record
    from unstuck.source import Script

rule = Rule(
    code="O02",
    name="params-not-in-optimizer",
    title="parameters that should be trained and that no optimizer holds",
    severity=Severity.ERROR,
    explains=("O01", "O03", "O07", "O22", "R08"),
    needs=(ModelSeen, OptimizerSeen),
)

NEVER_MOVES = (
    "An optimizer updates only the tensors it was given, so these keep their initial values for the whole run."
)
STALE = "The optimizer still holds the tensors that were replaced, so it updates weights that the model no longer uses."
NOTHING = "With requires_grad=False everywhere there is no gradient to compute and nothing for the optimizer to update."
REBUILD = (
    "Build the optimizer after the model is complete, and anew whenever the model is replaced, or add the new "
    "parameters with optimizer.add_param_group()."
)
FREEZE_OR_GIVE = "Give them to an optimizer; if they are meant to stay fixed, say so with requires_grad_(False)."
EMPTY_LIST = "optimizer got an empty parameter list"
NO_GRAPH = "element 0 of tensors does not require grad"
NAMES_SHOWN = 4


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """What the order of the script's own statements makes certain, and modules that nothing optimises."""
    for fact in source.find(script):
        yield rule.finding(
            fact.message,
            cause=fact.cause,
            fix=fact.fix,
            subject=Subject("module", fact.name),
            place=fact.place,
            related=fact.related,
            severity=None if fact.certain else Severity.WARNING,
            confidence=Confidence.CERTAIN if fact.certain else Confidence.LIKELY,
        )


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Compare the tensors of the models with those of the optimizers, and look at what a step has done."""
    yield from _nothing_trainable(setup)
    trial = setup.trial
    if trial and trial.unregistered:
        facts, place = trial.unregistered, trial.unregistered_place
        yield _unregistered(UntrainedGradients(parameters=facts, place=place))
    if trial and trial.unmoved:
        yield _unmoved(trial.unmoved, setup)
    if not setup.optimizers:
        return
    held = {fact.key for optimizer in setup.optimizers for fact in optimizer.parameters}
    missing = [fact for model in setup.models for fact in model.parameters if fact.trainable and fact.key not in held]
    if missing:
        yield _not_held(missing, setup)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Parameters that got gradients and never moved, optimizers with stale tensors, nothing to train at all."""
    setup = record.setup()
    if record.crash is not None:
        yield from _explained(record.crash, setup)
        return
    if _steps_find_nothing(record):
        yield from _nothing_trainable(setup)
    latest = _latest(record.of(UntrainedGradients))
    for seen in latest:
        yield from _untrained(seen, _without_replaced(record, setup, seen)) if seen.place is None else ()
    for calls in _by_function(latest):
        yield _unregistered(*calls)


def _latest(events: Iterable[UntrainedGradients]) -> list[UntrainedGradients]:
    """The last word on each place: later reports take in what earlier ones named."""
    return list({event.place: event for event in events}.values())


def _by_function(events: Iterable[UntrainedGradients]) -> list[list[UntrainedGradients]]:
    """Layers of one list are called in several lines of one forward()."""
    found: dict[tuple[str, str], list[UntrainedGradients]] = {}
    for event in events:
        if event.place is not None:
            found.setdefault((event.place.document, event.place.function), []).append(event)
    return list(found.values())


def _steps_find_nothing(record: Record) -> bool:
    steps = list(record.of(OptimizerStep))
    return bool(steps) and all(step.with_grad == 0 for step in steps)


def _nothing_trainable(setup: Setup, place: Place | None = None) -> Iterator[Finding]:
    built = [optimizer.place for optimizer in setup.optimizers]
    for model in setup.models:
        if model.parameters and not any(fact.trainable for fact in model.parameters):
            yield rule.finding(
                f"All {len(model.parameters)} parameters of {model.model} have requires_grad=False: nothing "
                "can be trained.",
                cause=NOTHING,
                fix=(
                    "Leave the part that should learn unfrozen: call requires_grad_(True) on it before the "
                    "optimizer is built."
                ),
                subject=Subject("module", model.model),
                place=place or model.place,
                related=(model.place, *built),
                evidence=(Evidence("trainable parameters", f"0 of {len(model.parameters)}"),),
            )


def _explained(crash: Crash, setup: Setup) -> Iterator[Finding]:
    if NO_GRAPH in crash.message:
        yield from _nothing_trainable(setup, crash.place)
    elif EMPTY_LIST in crash.message:
        yield rule.finding(
            "The optimizer was given no parameters at all.",
            cause=(
                "The iterable was empty: every parameter was filtered out, the layers sit in a plain list, or it "
                "was used up before."
            ),
            fix=(
                "Check what you pass: list(model.parameters()) must not be empty. Layers belong in "
                "nn.ModuleList, and a generator can be read only once."
            ),
            subject=Subject("optimizer", f"optimizer at {crash.place}"),
            place=crash.place,
            evidence=(Evidence("parameters given", 0),),
        )


def _untrained(seen: UntrainedGradients, setup: Setup) -> Iterator[Finding]:
    held = {fact.key for optimizer in setup.optimizers for fact in optimizer.parameters}
    missing = [fact for fact in seen.parameters if fact.key not in held]
    if not missing:
        return
    norms = dict(zip((fact.key for fact in seen.parameters), seen.norms, strict=False))
    largest = max((norms.get(fact.key, 0.0) for fact in missing), default=0.0)
    yield _not_held(missing, setup, (Evidence("largest gradient norm among them", largest),))


def _without_replaced(record: Record, setup: Setup, seen: UntrainedGradients) -> Setup:
    """Leave out the models that had run for the last time when the untrained one first ran, if nothing was trained
    since: it has taken their place."""
    missing = {fact.key for fact in seen.parameters}
    fresh = {model.model for model in setup.models if any(fact.key in missing for fact in model.parameters)}
    order = [event for event in record.events if isinstance(event, Forward | OptimizerStep)]
    began = next((at for at, event in enumerate(order) if isinstance(event, Forward) and event.model in fresh), None)
    if began is None:
        return setup
    since = order[began:]
    trained = any(isinstance(event, OptimizerStep) and event.with_grad != 0 for event in since)
    running = {event.model for event in since if isinstance(event, Forward)}
    if trained or running != fresh:
        return setup
    return msgspec.structs.replace(setup, models=tuple(model for model in setup.models if model.model in fresh))


def _unregistered(*calls: UntrainedGradients) -> Finding:
    parameters = list({fact.key: fact for seen in calls for fact in seen.parameters}.values())
    names = _listed(list(dict.fromkeys(fact.name for fact in parameters)))
    count = len(parameters)
    what = "1 parameter gets a gradient but belongs" if count == 1 else f"{count} parameters get gradients but belong"
    return rule.finding(
        f"{what} to layers that the model has not registered ({names}).",
        cause="Layers in a plain list or dict, or made inside forward(), are not part of model.parameters(), so no "
        "optimizer gets them.",
        fix="Create the layers in __init__ and keep them as attributes, in nn.ModuleList or nn.ModuleDict.",
        subject=Subject("module", names),
        place=calls[0].place,
        related=[seen.place for seen in calls[1:]],
        evidence=(
            Evidence("parameters not registered", count),
            Evidence("numbers never trained", _count(parameters)),
        ),
    )


def _unmoved(parameters: Sequence[ParameterFact], setup: Setup) -> Finding:
    names = _listed([fact.name for fact in parameters])
    kinds = " and ".join(dict.fromkeys(optimizer.kind for optimizer in setup.optimizers))
    return rule.finding(
        f"One step of {kinds} leaves {len(parameters)} parameters with a gradient as they were, bit by bit ({names}).",
        cause="The optimizer holds them and was given their gradients, and still its step does not write to them.",
        fix="Look at the step() of the optimizer: it must change the parameters in place, as p.add_(...) does.",
        subject=Subject("parameter", names),
        evidence=(Evidence("parameters with a gradient that did not move", len(parameters)),),
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
    )


def _stale(setup: Setup, missing: Sequence[ParameterFact]) -> list[ParameterFact]:
    """Tensors an optimizer holds in place of the missing ones: of no model, and as many of each dimension."""
    alive = {fact.key for model in setup.models for fact in model.parameters}
    strangers = [f for optimizer in setup.optimizers for f in optimizer.parameters if f.key not in alive]
    alike = sorted(len(fact.shape) for fact in strangers) == sorted(len(fact.shape) for fact in missing)
    return strangers if alike else []


def _not_held(missing: Sequence[ParameterFact], setup: Setup, evidence: Sequence[Evidence] = ()) -> Finding:
    stale = _stale(setup, missing)
    trainable = sum(fact.trainable for model in setup.models for fact in model.parameters)
    certain = len(missing) >= trainable or bool(stale)
    names = _listed([fact.name for fact in missing])
    kinds = " and ".join(dict.fromkeys(optimizer.kind for optimizer in setup.optimizers))
    tail = f"; {kinds} still holds {len(stale)} that the model no longer uses" if stale else ""
    built = [optimizer.place for optimizer in setup.optimizers]
    return rule.finding(
        f"{len(missing)} of {trainable} trainable parameters are in no optimizer ({names}){tail}.",
        cause=STALE if stale else NEVER_MOVES,
        fix=REBUILD if stale else FREEZE_OR_GIVE,
        subject=Subject("parameter", names),
        place=built[-1],
        related=[*built, *(model.place for model in setup.models)],
        evidence=[
            Evidence("trainable parameters in no optimizer", f"{len(missing)} of {trainable}"),
            Evidence("numbers never trained", _count(missing)),
            *evidence,
        ],
        severity=None if certain else Severity.WARNING,
        confidence=Confidence.CERTAIN if certain else Confidence.LIKELY,
    )


def _count(parameters: Iterable[ParameterFact]) -> int:
    return sum(fact.size for fact in parameters)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"


@rule.remedied_by
def remedied(finding: Finding) -> Iterator[Sequence[Intervention]]:
    """The optimizer is given what it lacks."""
    from unstuck.interventions import AddParameters

    yield (AddParameters(),)
