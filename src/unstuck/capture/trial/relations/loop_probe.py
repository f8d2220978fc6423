"""Asks the script's own loop, with its batch frozen: what is the loss, and its gradient, at these weights and inputs?

The weights are put back after every step, so each iteration answers one question: the same again, weights a little
along the optimizer's own step, an input exchanged between examples. Nothing of the script has to be called by us, so
this works whatever lies between the model and the loss.
"""

from __future__ import annotations

import math
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.places import Places
from unstuck.capture.trial.lab import Arguments, Lab, is_data, map_tensors
from unstuck.capture.trial.relations.inputs import Exchange, Given, given_to
from unstuck.events import Place
from unstuck.findings.relations import Answer

LARGEST = 2 * 10**8
"""Weights of an optimizer that are copied a few times."""
MOST_BACKWARDS = 8
SECONDS = 20.0
"""From the first question on; what was not asked by then is not asked."""

Tensors = list[Tensor | None]


class Ask(NamedTuple):
    """One iteration of the loop."""

    along: float = 0.0
    """The weights are moved by this share of the optimizer's own step."""
    exchange: Exchange | None = None
    differentiate: bool = False
    """Also differentiate each loss by ourselves."""
    is_free: bool = False
    """The step counts: weights are not put back after it."""


class Reply(NamedTuple):
    """What an iteration showed."""

    losses: tuple[float, ...]
    """What each backward was called on since the optimizer's last step."""
    gradient: Tensors
    """What the optimizer was given."""
    own: tuple[Tensors, ...]
    """The gradient of each of these losses."""
    step: list[Tensor]
    """What the optimizer did."""


Questions = Generator[Ask, Reply, None]


class Training:
    """One optimizer, its weights as they were before its first step, and its losses."""

    def __init__(self, optimizer: Optimizer, place: Place | None) -> None:
        self.optimizer = optimizer
        self.place = place
        self.parameters = [p for group in optimizer.param_groups for p in group["params"] if isinstance(p, Tensor)]
        self.base = [p.detach().clone() for p in self.parameters]
        self.step: list[Tensor] | None = None
        """The one that `Ask.along` is about."""
        self.losses: list[float] = []
        self.own: list[Tensors] = []
        self.uses_closure = False
        self._state = {key: _copy_of(entry) for key, entry in optimizer.state.items()}

    @property
    def name(self) -> str:
        """Its class."""
        return type(self.optimizer).__name__

    def put_back(self, along: float = 0.0) -> None:
        """Weights as they were, moved by a share of a step; momenta and the like, too."""
        with torch.no_grad():
            for index, (parameter, value) in enumerate(zip(self.parameters, self.base, strict=True)):
                moved = value + along * self.step[index] if along and self.step is not None else value
                parameter.data.copy_(moved)
        state = self.optimizer.state
        for key in [key for key in state if key not in self._state]:
            del state[key]
        for key, entry in self._state.items():
            state[key] = _copy_of(entry)

    def stay(self) -> None:
        """From now on these weights are the ones to come back to."""
        self.base = [p.detach().clone() for p in self.parameters]
        self._state = {key: _copy_of(entry) for key, entry in self.optimizer.state.items()}


def _copy_of(entry: Any) -> Any:
    return map_tensors(entry, lambda tensor: tensor.detach().clone()) if isinstance(entry, dict) else entry


class LoopProbe:
    """Follows each optimizer of the program, and asks the questions of one after the other. Its batch is frozen."""

    def __init__(self, lab: Lab, examine: Callable[[LoopProbe, Training], Questions]) -> None:
        self._lab = lab
        self._examine = examine
        self._trainings: dict[int, Training] = {}
        self._waiting: list[Training] = []
        self._active: Training | None = None
        self._questions: Questions | None = None
        self._ask = Ask()
        self._before: list[Tensor] = []
        self._reply: Reply | None = None
        self._is_over = False
        self._is_differentiating = False
        self._is_stepping: Training | None = None
        self._visits: Counter[int] = Counter()
        self._began = 0.0
        self.given: dict[tuple[int, int], Given] = {}
        """What models are called with, by the number of the model and of its call in an iteration."""
        self._models: list[nn.Module] = []
        self.answers: list[Answer] = []
        lab.notes["relations"] = []
        for owner in (Tensor, torch.autograd):
            lab.wrap(owner, "backward", self._backward)
        lab.change_calls(self._call)
        lab.before_steps(self._guarded(self._before_step))
        lab.after_steps(self._guarded(self._after_step))
        lab.when_step_ends.append(self._window_ended)

    @property
    def has_time(self) -> bool:
        """Is there time for another question?"""
        return time.monotonic() - self._began < SECONDS

    def answer(self, answer: Answer) -> None:
        """Note what became of a relation, at once: the trial may end at any moment."""
        self.answers.append(answer)
        self._lab.notes["relations"] = msgspec.to_builtins(self.answers)

    # What the program does.

    def _guarded(self, action: Callable[[Optimizer], None]) -> Callable[[Optimizer], None]:
        def guarded(optimizer: Optimizer) -> None:
            if not self._is_over:
                try:
                    action(optimizer)
                except Exception:
                    self._fail()

        return guarded

    def _fail(self) -> None:
        """An error of ours ends the questions and not the trial."""
        self._is_over = True
        self._lab.notes["failed"] = traceback.format_exc()[-2000:]
        if os.environ.get("UNSTUCK_RAISE"):
            raise

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(loss: Any, gradient: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not self._is_over and not self._is_differentiating and isinstance(loss, Tensor) and loss.numel() == 1:
                self._is_differentiating = True
                try:
                    self._differentiated(loss, kwargs.get("grad_tensors", gradient))
                    return original(loss, gradient, *args, **kwargs)
                finally:
                    self._is_differentiating = False
            return original(loss, gradient, *args, **kwargs)

        return backward

    def _differentiated(self, loss: Tensor, gradient: Any) -> None:
        value = float(loss.detach())
        if self._is_stepping is not None:
            self._is_stepping.uses_closure = True
        for training in self._trainings.values():
            training.losses.append(value)
            if self._ask.differentiate and training is self._active:
                weight = gradient if isinstance(gradient, Tensor) else None
                training.own.append(_gradient_of(loss, training.parameters, weight))

    def _call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        if self._is_over or not torch.is_grad_enabled():
            return args, kwargs
        number = next((i for i, known in enumerate(self._models) if known is module), len(self._models))
        if number == len(self._models):
            self._models.append(module)
        key = (number, self._visits[number])
        self._visits[number] += 1
        self.given[key] = given_to(module, args, kwargs)
        exchange = self._ask.exchange
        if exchange is None or exchange.call != key:
            return args, kwargs
        rest = iter(range(len(self.given[key].tensors)))
        changed = map_tensors((args, kwargs), lambda t: exchange.applied(next(rest), t) if is_data(t) else t)
        return tuple(changed[0]), dict(changed[1])

    def _before_step(self, optimizer: Optimizer) -> None:
        training = self._trainings.get(id(optimizer))
        if training is None:
            training = self._trainings[id(optimizer)] = Training(optimizer, Places(self._lab.stage).here())
            if sum(p.numel() for p in training.parameters) <= LARGEST:
                self._waiting.append(training)
        self._is_stepping = training
        if training is self._active:
            self._before = [p.detach().clone() for p in training.parameters]

    def _after_step(self, optimizer: Optimizer) -> None:
        training = self._trainings[id(optimizer)]
        self._is_stepping = None
        if training is self._active and not training.uses_closure:
            step = [p.detach() - before for p, before in zip(training.parameters, self._before, strict=True)]
            gradient = [None if p.grad is None else p.grad.detach().clone() for p in training.parameters]
            self._reply = Reply(tuple(training.losses[-MOST_BACKWARDS:]), gradient, tuple(training.own), step)
        training.losses.clear()
        training.own.clear()

    def _window_ended(self) -> None:
        if self._is_over:
            return
        try:
            self._next_question()
        except Exception:
            self._fail()

    def _next_question(self) -> None:
        self._visits.clear()
        for training in self._trainings.values():
            training.stay() if self._ask.is_free else training.put_back()
        if self._active is not None and self._active.uses_closure:
            self._questions = self._active = None
        if self._active is None:
            self._begin()
        elif self._reply is not None and self._questions is not None:
            reply, self._reply = self._reply, None
            try:
                self._ask = self._questions.send(reply)
            except StopIteration:
                self._active = None
                self._begin()
        self._lab.inputs_differ = self._active is not None and self._ask.exchange is not None
        if self._active is not None and self._ask.along:
            self._active.put_back(self._ask.along)

    def _begin(self) -> None:
        """The questions about the next optimizer."""
        self._ask, self._reply = Ask(), None
        self._began = self._began or time.monotonic()
        while self._waiting:
            training = self._waiting.pop(0)
            if not training.uses_closure:
                self._active = training
                self._questions = self._examine(self, training)
                self._ask = next(self._questions)
                return
        self._is_over = bool(self._trainings) and self._lab.steps > 3 * len(self._trainings)


def _gradient_of(loss: Tensor, parameters: Sequence[Tensor], weight: Tensor | None) -> Tensors:
    wanted = [p for p in parameters if p.requires_grad]
    try:
        found = iter(torch.autograd.grad(loss, wanted, weight, retain_graph=True, allow_unused=True))
    except RuntimeError:  # some checkpoints allow only backward()
        return [None] * len(parameters)
    return [next(found) if p.requires_grad else None for p in parameters]


def added(gradients: Iterable[Tensors]) -> Tensors:
    """Their sum, tensor by tensor."""
    total: Tensors = []
    for gradient in gradients:
        dense = [
            None if one is None else one.to_dense() if one.layout is not torch.strided else one for one in gradient
        ]
        total = [
            a if b is None else b if a is None else a + b
            for a, b in zip(total or [None] * len(dense), dense, strict=True)
        ]
    return total


def product(ones: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> float:
    """Their inner product; what is missing is 0."""
    terms = (
        float((_exact(one) * _exact(other)).sum())
        for one, other in zip(ones, others, strict=True)
        if one is not None and other is not None
    )
    return math.fsum(terms)


def _exact(tensor: Tensor) -> Tensor:
    dense = _dense(tensor)
    return (dense.cpu() if dense.device.type == "mps" else dense).double()  # which has no double


def _dense(tensor: Tensor) -> Tensor:
    return tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()


def cosine(ones: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> float | None:
    """Of the angle between them; None where one of them is 0 or not finite."""
    size = product(ones, ones) * product(others, others)
    return product(ones, others) / math.sqrt(size) if size > 0 and math.isfinite(size) else None
