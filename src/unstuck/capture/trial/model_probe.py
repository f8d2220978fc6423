"""Tests whether the outputs of a model depend on what they must not: other examples, later elements.

The script's own first batch is used. What lies between the output of the model and the prediction that its loss is
given, such as a view or a slice, is found out from the graph and repeated.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unstuck.capture.places import Places
from unstuck.capture.trial.lab import Lab, copied, is_model
from unstuck.events import Place
from unstuck.events.losses import CLASS_LOSSES, VALUE_LOSSES

if TYPE_CHECKING:
    from unstuck.events import Trial

LOSSES = (*CLASS_LOSSES, *VALUE_LOSSES)
MOST_MODELS = 3
IGNORED = -100
LARGEST = 2**24
"""Elements of a prediction that single precision can number."""


class Taken(NamedTuple):
    """How a loss was called with a part of what a model returned."""

    function: Callable[..., Any]
    output: int
    """Which of the tensors in the output."""
    places: Tensor
    """Of each element of the prediction in it."""
    shape: torch.Size
    target: Tensor
    named: dict[str, Any]


class Called:
    """A model and its first batch."""

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.module = module
        self.inputs = as_one(module, copied(args), copied(kwargs))
        self.outputs: list[Tensor] = []
        self.losses: list[Taken] = []

    def loss(self, output: Any, target: Any) -> None:
        """Call the losses again as the script did."""
        from unstuck.capture.live_objects.arguments import tensors_in

        tensors = list(tensors_in(output))
        for taken in self.losses:
            prediction = tensors[taken.output].flatten()[taken.places].reshape(taken.shape)
            taken.function(prediction, taken.target, **taken.named)


class Compared(NamedTuple):
    """A call of a loss, with what it was given still in the graph."""

    name: str
    prediction: Tensor
    target: Tensor
    ignored: int
    called: Called
    taken: Taken | None
    """How the prediction was taken from what the model returned, if it is a part of that."""
    place: Place | None


class Listener:
    """Follows models and losses as the program calls them, while it is listening, and waits for backwards."""

    losses: tuple[str, ...] = LOSSES
    inside_models = False
    """Also losses that a model computes by itself?"""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._called: dict[int, Called] = {}
        self._compared: list[Compared] = []
        self.is_listening = True
        self._depth = 0
        self._is_in_backward = False
        lab.wrap(nn.Module, "__call__", self._calling)
        for name in self.losses:
            lab.wrap(F, name, functools.partial(self._comparing, name))
        for owner in (Tensor, torch.autograd):
            lab.wrap(owner, "backward", self._before_backward)

    def backward_begins(self, loss: Any, gradient: Any) -> None:
        """A backward is about to begin; its graph is whole."""
        raise NotImplementedError

    def was_called(self, called: Called) -> None:
        """A model has returned."""

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            wanted = self._depth == 0 and self.is_listening and torch.is_grad_enabled() and is_model(module)
            called = self._begin(module, args, kwargs) if wanted else None
            inside = is_model(module)  # a loss is a module, too
            self._depth += inside
            try:
                output = original(module, *args, **kwargs)
            finally:
                self._depth -= inside
            if called is not None:
                from unstuck.capture.live_objects.arguments import tensors_in

                called.outputs = list(tensors_in(output))
                self.was_called(called)
            return output

        return call

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called | None:
        if id(module) in self._called or len(self._called) >= MOST_MODELS:
            return None
        called = self._called[id(module)] = Called(module, args, kwargs)
        return called

    def _comparing(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def loss(*args: Any, **kwargs: Any) -> Any:
            if self.is_listening and (self._depth == 0 or self.inside_models):
                self._compare(name, original, args, kwargs)
            return original(*args, **kwargs)

        return loss

    def _compare(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = dict(zip(("input", "target"), args, strict=False)) | kwargs
        prediction, target = named.get("input"), named.get("target")
        if not (isinstance(prediction, Tensor) and isinstance(target, Tensor) and prediction.requires_grad):
            return
        ignored = {"ignore_index": kwargs["ignore_index"]} if "ignore_index" in kwargs else {}
        place = Places(self._lab.stage).here()
        for called in self._called.values():
            for index, output in enumerate(called.outputs):
                places = places_in_output(prediction, output)
                if places is not None:
                    its_target = target.detach().clone()
                    taken = Taken(function, index, places, prediction.shape, its_target, ignored)
                    called.losses.append(taken)
                    self._compared.append(
                        Compared(name, prediction, target, ignored.get("ignore_index", IGNORED), called, taken, place)
                    )
                    return
        called_last = next(reversed(self._called.values()), None)
        if called_last is not None:
            ignores = ignored.get("ignore_index", IGNORED)
            self._compared.append(Compared(name, prediction, target, ignores, called_last, None, place))

    def _before_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self.is_listening and self._called and not self._is_in_backward:
                self._is_in_backward = True
                try:
                    gradient = args[1] if len(args) > 1 else kwargs.get("gradient", kwargs.get("grad_tensors"))
                    self.backward_begins(args[0] if args else kwargs.get("tensors"), gradient)
                    return original(*args, **kwargs)
                finally:
                    self._is_in_backward = False
            return original(*args, **kwargs)

        return backward

    def forget(self) -> None:
        """Begin again with the next call."""
        self._called.clear()
        self._compared.clear()


class Probe(Listener):
    """Waits for the first backward, then tests."""

    def backward_begins(self, loss: Any, gradient: Any) -> None:
        """Test the models that led to it, and listen no more."""
        import msgspec

        self.is_listening = False
        answers = [_answer(called, Places(self._lab.stage)) for called in self._called.values()]
        self._lab.notes["probe"] = msgspec.to_builtins(_together(answers))
        self._lab.notes["probed"] = [type(called.module).__name__ for called in self._called.values()]
        self.forget()


def _answer(called: Called, places: Places) -> Trial:
    from unstuck.capture.live_objects.evaluation import in_evaluation
    from unstuck.capture.live_objects.restore import untouched
    from unstuck.events import Trial

    target = called.losses[0].target if called.losses else None
    with untouched(called.module):
        found = in_evaluation(called.module, called.loss, called.inputs, target, places)
    return Trial(
        done=tuple(found.done),
        between_examples=found.between_examples,
        from_future=found.from_future,
        copies_input=found.copies_input,
    )


def _together(answers: list[Trial]) -> Trial:
    """What any of the models showed."""
    from unstuck.events import Trial

    return Trial(
        done=tuple(dict.fromkeys(part for answer in answers for part in answer.done)),
        between_examples=next((a.between_examples for a in answers if a.between_examples), None),
        from_future=next((a.from_future for a in answers if a.from_future), None),
        copies_input=next((a.copies_input for a in answers if a.copies_input), ()),
    )


def as_one(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The inputs in the form that `setup` calls models with: by position or by name."""
    if not kwargs:
        return args
    if args:
        try:
            return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
        except (TypeError, ValueError):
            return args
    return kwargs


def places_in_output(prediction: Tensor, output: Tensor) -> Tensor | None:
    """Where the elements of a prediction are in an output, if it consists of these alone.

    A gradient of 1, 2, 3, ... at the prediction arrives at the elements of the output that it was taken from.
    """
    if prediction is output:
        return torch.arange(output.numel(), device=output.device)
    if not output.requires_grad or prediction.numel() > LARGEST or not output.is_floating_point():
        return None
    count = prediction.numel()
    numbers = torch.arange(1, count + 1, device=prediction.device, dtype=torch.float32).reshape(prediction.shape)
    try:
        arrived: Tensor | None = torch.autograd.grad(
            prediction, output, numbers.to(prediction.dtype), retain_graph=True, allow_unused=True
        )[0]
    except RuntimeError:
        return None
    if arrived is None:
        return None
    flat = arrived.flatten()
    taken = flat.nonzero().flatten()
    order = flat[taken].argsort()
    places = taken[order]
    whole = len(places) == count and torch.equal(flat[places], numbers.flatten().to(flat.dtype))
    return places if whole and torch.equal(output.flatten()[places], prediction.flatten()) else None


__all__ = ["Called", "Compared", "Listener", "Probe", "Taken", "as_one", "places_in_output"]
