"""Reads a model and its optimizer and, given a batch, tries one step and a few passes, then puts everything back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from unstuck.capture import Session, TorchMissing
from unstuck.events import (
    Backward,
    BatchSeen,
    Event,
    LayersRan,
    LossCall,
    ModelSeen,
    OptimizerSeen,
    ParameterFact,
    Setup,
    Trial,
)

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from unstuck.check.modules_run import ModulesRun

UNTRIED = {
    "examples": "the examples of this batch could not be exchanged one by one",
    "future": "the targets are not the inputs, shifted or not",
}
"""The parts of the trial that rules need, and why each may have been impossible."""

WHO_CALLED = (
    "unstuck.check called your model on the batch you gave; a tuple or list of inputs is given as "
    "model(*inputs), a dict as model(**inputs), and the loss as loss_fn(output, target)."
)


def probe(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    batch: Any = None,
) -> Setup:
    """What `check` looks at; given `loss_fn` and `batch` it runs forward, loss, backward and step once, and a few
    passes in evaluation mode with a part of the batch changed.

    `batch` is `(inputs, target)`, where a tuple or list of inputs is given as `model(*inputs)` and a dict as
    `model(**inputs)`; or one dict or tensor, given as `model(**batch)` or `model(batch)` and, in place of a target,
    to `loss_fn`.
    Afterwards weights, buffers, gradients, modes, states and random generators are as they were. An exception of the
    user's code passes through, with a note that says who called it.
    """
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise TorchMissing(
            "Looking at a live model needs torch, which is not installed here: pip install torch"
        ) from None
    from unstuck.capture.live_objects.arguments import as_list, must_be_loss, must_be_module
    from unstuck.capture.objects import Objects
    from unstuck.check.optimizer_step import with_small_steps

    must_be_module(model)
    if loss_fn is not None:
        must_be_loss(loss_fn)
    objects = Objects()
    known = objects.model(model)
    objects.learn_names(known)
    given = as_list(optimizer)
    optimizers = [with_small_steps(item, objects.optimizer_seen(item, 0, None)) for item in given]
    events: list[Event] = []
    missing: tuple[ParameterFact, ...] = ()
    trial: Trial | None = None
    if loss_fn is not None and batch is not None:
        missing, trial = _try_out(model, loss_fn, given, batch, events)
    return Setup(
        models=_given_models(events, model, loss_fn) or (known.seen(0),),
        optimizers=tuple(optimizers) or tuple(event for event in events if isinstance(event, OptimizerSeen)),
        losses=tuple(event for event in events if isinstance(event, LossCall)),
        backwards=tuple(event for event in events if isinstance(event, Backward)),
        batches=tuple(event for event in events if isinstance(event, BatchSeen)),
        layers=tuple(event for event in events if isinstance(event, LayersRan)),
        missing_gradients=missing,
        trial=trial,
        untried=_untried(trial),
    )


def _given_models(events: list[Event], *given: Any) -> tuple[ModelSeen, ...]:
    """The models that were given; a loss may call others, such as the opponent in a GAN."""
    from torch import nn

    keys = {id(parameter) for each in given if isinstance(each, nn.Module) for parameter in each.parameters()}
    seen = (event for event in events if isinstance(event, ModelSeen))
    return tuple(event for event in seen if keys.issuperset(fact.key for fact in event.parameters))


def _untried(trial: Trial | None) -> dict[str, str]:
    if trial is None:
        return dict.fromkeys(UNTRIED, "no batch and loss were given to try")
    return {part: why for part, why in UNTRIED.items() if part not in trial.done}


def _try_out(
    model: nn.Module, loss_fn: Callable[[Any, Any], Any], optimizers: list[Optimizer], batch: Any, events: list[Event]
) -> tuple[tuple[ParameterFact, ...], Trial]:
    """Train on the batch once under watch, then ask in evaluation mode. Also: the parameters without a gradient."""
    from torch import nn

    from unstuck.capture.live_objects.arguments import must_have_shapes, split
    from unstuck.capture.live_objects.evaluation import in_evaluation
    from unstuck.capture.live_objects.restore import untouched
    from unstuck.capture.objects import parameter_fact, parameters_of, unwrap
    from unstuck.check import modules_run
    from unstuck.check.optimizer_step import one_step

    must_have_shapes(model)
    inputs, target = split(batch)
    models = [model, loss_fn] if isinstance(loss_fn, nn.Module) else [model]
    modules = modules_run.ModulesRun(
        models, (tensor for optimizer in optimizers for tensor in parameters_of(optimizer))
    )
    with untouched(*models, optimizers=optimizers), modules.watching():
        _forget_gradients(models)
        _step_under_watch(model, loss_fn, inputs, target, events, modules)
        inner = unwrap(model)
        missing = [(n, p) for n, p in inner.named_parameters() if p.requires_grad and p.grad is None]
        unregistered, cut_off, norms = modules.strays(), modules.cut_off(inner), modules_run.gradient_norms(inner)
        step = one_step(inner, optimizers)
    with untouched(*models):
        answers = in_evaluation(model, loss_fn, inputs, target)
    return tuple(parameter_fact(name, parameter) for name, parameter in missing), Trial(
        done=(*answers.done, "step") if step.taken else tuple(answers.done),
        between_examples=answers.between_examples,
        from_future=answers.from_future,
        copies_input=answers.copies_input,
        dropping=answers.dropping,
        cut_off=cut_off,
        unregistered=unregistered,
        unregistered_place=modules.stray_place,
        unmoved=step.unmoved,
        moved_frozen=step.moved_frozen,
        gradient_norms=norms,
    )


def _forget_gradients(models: Iterable[nn.Module]) -> None:
    for parameter in (parameter for model in models for parameter in model.parameters()):
        parameter.grad = None


def _step_under_watch(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Any],
    inputs: Any,
    target: Any,
    events: list[Event],
    modules: ModulesRun,
) -> None:
    """Forward, loss and backward, as a training loop would."""
    import torch

    from unstuck.capture.live_objects.arguments import as_watched, call, must_be_tensor

    session = Session(events.append)
    session.install()
    try:
        with torch.enable_grad():
            with _saying_who_called():
                with modules.inside_the_model():
                    output = call(model, inputs)
                loss = as_watched(loss_fn)(output, target)
            must_be_tensor(loss)
            if loss.requires_grad:
                with _saying_who_called():
                    loss.backward()
            else:
                events.append(Backward(requires_grad=False, leaf=False, failed=True))
    finally:
        session.remove()


@contextlib.contextmanager
def _saying_who_called() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(WHO_CALLED)
        raise
