"""O02 in live objects and in a run: the tensors of the models against those of the optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from unstuck.events import Backward, Crash, Forward, OptimizerStep, ParameterFact, Place, Setup, UntrainedGradients
from unstuck.events.torch_errors import TorchError
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rules.convergence.params_not_in_optimizer import ALL_FROZEN, Missing, rule
from unstuck.rules.shared.objects import listed

NEVER_MOVES = "An optimizer updates only the tensors it was given, so these keep their initial values."
STALE = "The optimizer still holds the tensors that were replaced, so it updates weights that the model no longer uses."
REBUILD = (
    "Build the optimizer after the model is complete, and rebuild it whenever the model is replaced, or add the new "
    "parameters with optimizer.add_param_group()."
)
FREEZE_OR_GIVE = "Pass them to an optimizer; if they should stay fixed, call requires_grad_(False) on them."


def in_setup(setup: Setup) -> Iterator[Finding]:
    """Compare the tensors of the models with those of the optimizers, and check what a step has changed."""
    yield from _all_frozen(setup)
    trial = setup.trial
    if trial and trial.unregistered:
        yield _unregistered(UntrainedGradients(parameters=trial.unregistered, place=trial.unregistered_place))
    if trial and trial.unmoved:
        yield _unmoved(trial.unmoved, setup)
    if not setup.optimizers:
        return
    given = {fact.key for optimizer in setup.optimizers for fact in optimizer.parameters}
    missing = [fact for model in setup.models for fact in model.parameters if fact.trainable and fact.key not in given]
    if missing:
        yield _not_given(missing, setup)


def in_run(record: Record) -> Iterator[Finding]:
    """Gradients on parameters that are in no optimizer, and steps that find nothing to update."""
    setup = record.setup()
    if record.crash is not None:
        yield from _crashed(record.crash, setup)
        return
    steps = list(record.of(OptimizerStep))
    if steps and all(step.with_grad == 0 for step in steps):
        yield from _all_frozen(setup)
        yield from _nothing_held(record, setup)
    # Later reports from one place include what earlier ones named.
    latest = list({event.place: event for event in record.of(UntrainedGradients)}.values())
    for seen in latest:
        yield from _untrained(seen, _without_replaced(record, setup, seen)) if seen.place is None else ()
    # Layers of one list are called on several lines of one forward().
    functions: dict[tuple[str, str], list[UntrainedGradients]] = {}
    for seen in latest:
        if seen.place is not None:
            functions.setdefault((seen.place.document, seen.place.function), []).append(seen)
    for calls in functions.values():
        yield _unregistered(*calls)


def _nothing_held(record: Record, setup: Setup) -> Iterator[Finding]:
    """No step finds a gradient, and nothing that the loss could train is in the optimizers that step."""
    stepping = {step.optimizer for step in record.of(OptimizerStep)}
    optimizers = tuple(seen for seen in setup.optimizers if seen.optimizer in stepping)
    ran = {event.model for event in record.of(Forward) if event.grad_enabled and event.output_requires_grad}
    models = tuple(model for model in setup.models if model.model in ran)
    trainable = [fact for model in models for fact in model.parameters if fact.trainable]
    held = {fact.key for seen in optimizers for fact in seen.parameters}
    known = all(seen.parameters for seen in optimizers)
    if trainable and known and held.isdisjoint(fact.key for fact in trainable) and any(record.of(Backward)):
        yield _not_given(trainable, Setup(models=models, optimizers=optimizers))


def _all_frozen(setup: Setup, place: Place | None = None) -> Iterator[Finding]:
    built = [optimizer.place for optimizer in setup.optimizers]
    for model in setup.models:
        if model.parameters and not any(fact.trainable for fact in model.parameters):
            yield rule.finding(
                f"All {len(model.parameters)} parameters of {model.model} have requires_grad=False: there is nothing "
                "to train.",
                cause=ALL_FROZEN,
                fix="Unfreeze the part that should learn: call requires_grad_(True) on it before you build the "
                "optimizer.",
                subject=Subject("module", model.model),
                place=place or model.place,
                related=(model.place, *built),
                evidence=(Evidence("trainable parameters", f"0 of {len(model.parameters)}"),),
                variant=Missing.ALL_FROZEN,
            )


def _crashed(crash: Crash, setup: Setup) -> Iterator[Finding]:
    if TorchError.NO_GRAPH.is_in(crash.message):
        yield from _all_frozen(setup, crash.place)
    elif TorchError.EMPTY_PARAMETER_LIST.is_in(crash.message):
        yield rule.finding(
            "The optimizer was given no parameters.",
            cause="The iterable was empty: every parameter was filtered out, the layers are in a plain list, or a "
            "generator was already used up.",
            fix="Check that list(model.parameters()) is not empty. Put layers in nn.ModuleList, and do not read a "
            "generator twice.",
            subject=Subject.at("optimizer", "optimizer", crash.place),
            place=crash.place,
            evidence=(Evidence("parameters given", 0),),
            variant=Missing.EMPTY_LIST,
        )


def _untrained(seen: UntrainedGradients, setup: Setup) -> Iterator[Finding]:
    given = {fact.key for optimizer in setup.optimizers for fact in optimizer.parameters}
    missing = [fact for fact in seen.parameters if fact.key not in given]
    if missing:
        norms = dict(zip((fact.key for fact in seen.parameters), seen.norms, strict=False))
        largest = max(norms.get(fact.key, 0.0) for fact in missing)
        yield _not_given(missing, setup, (Evidence("largest gradient norm among them", largest),))


def _without_replaced(record: Record, setup: Setup, seen: UntrainedGradients) -> Setup:
    """Drop the models that the untrained one has replaced: they did not run after its first forward pass, and nothing
    was trained since."""
    missing = {fact.key for fact in seen.parameters}
    fresh = {model.model for model in setup.models if any(fact.key in missing for fact in model.parameters)}
    events = [event for event in record.events if isinstance(event, Forward | OptimizerStep)]
    began = next((at for at, event in enumerate(events) if isinstance(event, Forward) and event.model in fresh), None)
    if began is None:
        return setup
    since = events[began:]
    trained = any(isinstance(event, OptimizerStep) and event.with_grad != 0 for event in since)
    running = {event.model for event in since if isinstance(event, Forward)}
    if trained or running != fresh:
        return setup
    return msgspec.structs.replace(setup, models=tuple(model for model in setup.models if model.model in fresh))


def _unregistered(*calls: UntrainedGradients) -> Finding:
    parameters = list({fact.key: fact for seen in calls for fact in seen.parameters}.values())
    names = listed(list(dict.fromkeys(fact.name for fact in parameters)))
    count = len(parameters)
    what = "1 parameter gets a gradient but belongs" if count == 1 else f"{count} parameters get gradients but belong"
    return rule.finding(
        f"{what} to layers that the model does not register ({names}).",
        cause="Layers in a plain list or dict, or created inside forward(), are not part of model.parameters(), so no "
        "optimizer gets them.",
        fix="Create the layers in __init__ and store them as attributes, in nn.ModuleList or in nn.ModuleDict.",
        subject=Subject("module", names),
        place=calls[0].place,
        related=[seen.place for seen in calls[1:]],
        evidence=(
            Evidence("parameters not registered", count),
            Evidence("numbers never trained", sum(fact.size for fact in parameters)),
        ),
        variant=Missing.UNREGISTERED,
    )


def _unmoved(parameters: Sequence[ParameterFact], setup: Setup) -> Finding:
    names = listed([fact.name for fact in parameters])
    kinds = " and ".join(dict.fromkeys(optimizer.kind for optimizer in setup.optimizers))
    return rule.finding(
        f"One step of {kinds} leaves {len(parameters)} parameters with a gradient unchanged, bit for bit ({names}).",
        cause="The optimizer has these parameters and their gradients, but its step does not write to them.",
        fix="Check the step() of the optimizer: it must change the parameters in place, as p.add_(...) does.",
        subject=Subject("parameter", names),
        evidence=(Evidence("parameters with a gradient that did not move", len(parameters)),),
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        variant=Missing.STEP_WITHOUT_EFFECT,
    )


def _stale(setup: Setup, missing: Sequence[ParameterFact]) -> list[ParameterFact]:
    """Tensors an optimizer holds instead of the missing ones: they are in no model, and match in their dimensions."""
    alive = {fact.key for model in setup.models for fact in model.parameters}
    foreign = [fact for optimizer in setup.optimizers for fact in optimizer.parameters if fact.key not in alive]
    alike = sorted(len(fact.shape) for fact in foreign) == sorted(len(fact.shape) for fact in missing)
    return foreign if alike else []


def _not_given(missing: Sequence[ParameterFact], setup: Setup, evidence: Iterable[Evidence] = ()) -> Finding:
    stale = _stale(setup, missing)
    known = {fact.key for model in setup.models for fact in model.parameters if fact.trainable}
    # Some may have been frozen when their model was described.
    trainable = len(known | {fact.key for fact in missing})
    certain = len(missing) >= trainable or bool(stale)
    names = listed([fact.name for fact in missing])
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
            Evidence("numbers never trained", sum(fact.size for fact in missing)),
            *evidence,
        ],
        severity=None if certain else Severity.WARNING,
        confidence=Confidence.CERTAIN if certain else Confidence.LIKELY,
        variant=Missing.REPLACED_LATER if stale else Missing.NEVER_GIVEN,
    )
