"""Reads a model and its optimizer and, given a batch, tries out a step and a few passes that leave no trace."""

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

    from unstuck.check.strays import Ran

UNTRIED = {
    "batch-mixing": ("examples", "the examples of this batch could not be exchanged one by one"),
    "future-leak": ("future", "the targets are not the inputs, shifted or not"),
}
"""By the name of a rule: the part of the trial it rests on, and why that may not have been possible."""

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
    Afterwards weights, buffers, gradients, modes, states and random generators are as they were. What the user's code
    raises passes on, with a note of who called it.
    """
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise TorchMissing(
            "Looking at a live model needs torch, which is not installed here: pip install torch"
        ) from None
    from unstuck.capture.objects import Objects
    from unstuck.check.groups import with_small_steps

    must_be_module(model)
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
        models=_seen_of(events, model, loss_fn) or (known.seen(0),),
        optimizers=tuple(optimizers) or tuple(event for event in events if isinstance(event, OptimizerSeen)),
        losses=tuple(event for event in events if isinstance(event, LossCall)),
        backwards=tuple(event for event in events if isinstance(event, Backward)),
        batches=tuple(event for event in events if isinstance(event, BatchSeen)),
        layers=tuple(event for event in events if isinstance(event, LayersRan)),
        missing_gradients=missing,
        trial=trial,
        untried=_untried(trial),
    )


def _seen_of(events: list[Event], *given: Any) -> tuple[ModelSeen, ...]:
    """The models that were given; a loss may call others, such as the opponent in a GAN."""
    from torch import nn

    keys = {id(parameter) for each in given if isinstance(each, nn.Module) for parameter in each.parameters()}
    seen = (event for event in events if isinstance(event, ModelSeen))
    return tuple(event for event in seen if keys.issuperset(fact.key for fact in event.parameters))


def _untried(trial: Trial | None) -> dict[str, str]:
    if trial is None:
        return dict.fromkeys(UNTRIED, "no batch and loss were given to try")
    return {name: why for name, (part, why) in UNTRIED.items() if part not in trial.done}


def _try_out(
    model: nn.Module, loss_fn: Callable[[Any, Any], Any], optimizers: list[Optimizer], batch: Any, events: list[Event]
) -> tuple[tuple[ParameterFact, ...], Trial]:
    """Run the batch once under watch, then on the side; the trainable parameters that got no gradient."""
    from torch import nn

    from unstuck.capture.objects import parameter_fact, parameters_of, unwrap
    from unstuck.check import strays, trial
    from unstuck.check.inputs import split
    from unstuck.check.restore import untouched

    must_have_shapes(model)
    inputs, target = split(batch)
    models = [model, loss_fn] if isinstance(loss_fn, nn.Module) else [model]
    ran = strays.Ran(models, (tensor for optimizer in optimizers for tensor in parameters_of(optimizer)))
    with untouched(*models, optimizers=optimizers), ran.watching():
        _forget_gradients(models)
        _step_under_watch(model, loss_fn, inputs, target, events, ran)
        inner = unwrap(model)
        missing = [(n, p) for n, p in inner.named_parameters() if p.requires_grad and p.grad is None]
        unregistered, cut_off, norms = ran.strays(), ran.cut_off(inner), strays.gradient_norms(inner)
        step = trial.one_step(inner, optimizers)
    with untouched(*models):
        seen = trial.in_evaluation(model, loss_fn, inputs, target)
    return tuple(parameter_fact(name, parameter) for name, parameter in missing), Trial(
        done=(*seen.done, "step") if step.taken else tuple(seen.done),
        between_examples=seen.between_examples,
        from_future=seen.from_future,
        copies_input=seen.copies_input,
        dropping=seen.dropping,
        cut_off=cut_off,
        unregistered=unregistered,
        unregistered_place=ran.stray_place,
        unmoved=step.unmoved,
        moved_frozen=step.moved_frozen,
        gradient_norms=norms,
    )


def as_watched(loss_fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A function such as `F.cross_entropy` under the name by which it is watched now."""
    from torch.nn import functional

    name = getattr(loss_fn, "__name__", "")
    if getattr(loss_fn, "__module__", "") == functional.__name__ and hasattr(functional, name):
        watched: Callable[[Any, Any], Any] = getattr(functional, name)
        return watched
    return loss_fn


def _forget_gradients(models: Iterable[nn.Module]) -> None:
    for parameter in (parameter for model in models for parameter in model.parameters()):
        parameter.grad = None


def _step_under_watch(
    model: nn.Module, loss_fn: Callable[[Any, Any], Any], inputs: Any, target: Any, events: list[Event], ran: Ran
) -> None:
    """Forward, loss and backward, as a training loop would."""
    import torch

    from unstuck.check.inputs import call

    session = Session(events.append)
    session.install()
    try:
        with torch.enable_grad():
            with _saying_who_called():
                with ran.inside_the_model():
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


def must_be_module(model: Any) -> None:
    """Raise if it is no module."""
    from torch import nn

    from unstuck.check.inputs import described

    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, and this is {described(model)}.")


def must_be_tensor(loss: Any) -> None:
    """Raise if there is nothing to call backward() on."""
    from torch import Tensor

    from unstuck.check.inputs import described

    if not isinstance(loss, Tensor):
        raise TypeError(f"loss_fn must return a tensor to call backward() on, and it returned {described(loss)}.")


def must_have_shapes(model: nn.Module) -> None:
    """Raise if a parameter has none yet."""
    from torch.nn.parameter import is_lazy

    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ValueError(
            f"{lazy[0]} has no shape yet, and trying a batch would fix it for good; call the model on a batch first, "
            "then check it."
        )


def as_list(optimizer: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer]:
    """None, one or several, as a list."""
    from torch.optim import Optimizer

    if optimizer is None:
        return []
    return [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
