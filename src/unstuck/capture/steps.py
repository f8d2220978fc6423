"""Watches what moves the weights: optimizers and their steps."""

from __future__ import annotations

import math
import sys
import weakref
from time import perf_counter
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from unstuck.capture.backwards import Backwards
from unstuck.capture.carried import Used, used
from unstuck.capture.nonfinite import Inspector
from unstuck.capture.objects import parameters_of
from unstuck.capture.tensor_gauges import Started, TensorMeter
from unstuck.capture.tensors import is_plain, may_measure, norms, reading
from unstuck.capture.untrained import Untrained
from unstuck.capture.watch import Watch
from unstuck.events import OptimizerStep, Place, StepSkipped

_SMALL = 4096
_LATELY = 200
_OPTIMIZER_FILE = sys.modules[Optimizer.__module__].__file__


class _Facts(NamedTuple):
    """The gradients an optimizer is about to use."""

    held: int
    with_grad: int
    norm: Any = None
    used: Used | None = None


class _Running:
    """An optimizer inside its `step()`."""

    def __init__(self, optimizer: Optimizer, frame: int, place: Place | None, backwards: int) -> None:
        self.optimizer = id(optimizer)
        self.frame = frame
        self.place = place
        self.backwards = backwards
        self.facts: _Facts | None = None
        self.started: Started | None = None
        self.began = 0.0

    def is_outside(self, frame: FrameType | None) -> bool:
        """Is it still on the stack, around the step that `frame` belongs to?"""
        while frame is not None:
            frame = _frame_of_step(frame.f_back)
            if id(frame) == self.frame:
                return True
        return False


class Steps:
    """Follows optimizers: their construction, their steps and the steps a scaler leaves out."""

    def __init__(self, watch: Watch, inspector: Inspector, backwards: Backwards, untrained: Untrained) -> None:
        self._watch = watch
        self._inspector = inspector
        self._backwards = backwards
        self._untrained = untrained
        self._meter = TensorMeter(watch)
        self._running: list[_Running] = []
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._turns: dict[int, int] = {}
        """When each optimizer stepped last, counted in windows."""
        self.in_scaler = False
        self.scaler_stepped = False
        self.skips = 0
        """Steps that a scaler has left out."""

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Global step pre-hook."""
        watch = self._watch
        if not self._is_training_thread():
            return
        own = _frame_of_step(sys._getframe())
        if self._running:
            # torch calls no post-hook for a step that raised: only those still on the stack are running.
            self._running = [running for running in self._running if running.is_outside(own)]
        place = watch.places.here() if watch.clock.sampled else None
        running = _Running(optimizer, id(own), place, self._backwards.count)
        self._running.append(running)
        if len(self._running) > 1:
            return
        if optimizer not in self._stepped:
            watch.announce_models()
            watch.announce_optimizer(optimizer)
            self._stepped.add(optimizer)
            self._inspector.first_step(list(parameters_of(optimizer)))
        self._count_turns(optimizer)
        if watch.clock.is_survey:
            self._untrained.check()
        if (args[1] if len(args) > 1 else kwargs.get("closure")) is None:
            running.facts = self._read_gradients(optimizer, place)
        if watch.clock.sampled:
            running.started = self._meter.before(optimizer)
            running.began = perf_counter()

    def after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Global step post-hook."""
        watch = self._watch
        if not self._running or self._running[-1].optimizer != id(optimizer):
            return
        running = self._running.pop()
        if self._running:
            return
        self.scaler_stepped = True
        place = running.place
        if _found_inf(optimizer):
            self.skipped(optimizer)
            return
        if watch.clock.sampled:
            watch.timings.step += perf_counter() - running.began
        facts = running.facts or self._read_gradients(optimizer, place)
        if running.started is not None:
            self._meter.after(optimizer, running.started, facts.used)
        sampled, step = watch.clock.sampled, watch.clock.steps
        in_closure = self._backwards.count > running.backwards
        if sampled:
            self._tell(optimizer, facts, place, in_closure)
        watch.carried.stepped(optimizer, facts.used if sampled else None)
        self._inspector.stepped(list(parameters_of(optimizer)) if sampled else (), place)
        watch.clock.step_taken()
        self._backwards.end_window(sampled, optimizer, facts.norm, step, in_closure)

    def _count_turns(self, optimizer: Optimizer) -> None:
        """Optimizers take turns if they have stepped lately; one of a phase that is over does not count."""
        clock = self._watch.clock
        self._turns[id(optimizer)] = clock.windows
        if len(self._turns) > 1:
            self._turns = {key: window for key, window in self._turns.items() if clock.windows - window <= _LATELY}
        clock.optimizers = len(self._turns)

    def _tell(self, optimizer: Optimizer, facts: _Facts, place: Place | None, in_closure: bool) -> None:
        watch = self._watch
        watch.emit(
            OptimizerStep(
                step=watch.clock.steps,
                place=place,
                optimizer=watch.objects.optimizer(optimizer),
                parameters=facts.held,
                with_grad=facts.with_grad,
                grad_norm=facts.norm,
                inside_closure=in_closure,
                through_scaler=self.in_scaler,
            )
        )

    def built(self, optimizer: Optimizer, result: Any, error: BaseException | None) -> None:
        """`Optimizer.__init__` or `add_param_group` returned."""
        if error is None:
            self._watch.announce_optimizer(optimizer)

    def skipped(self, optimizer: Optimizer) -> None:
        """A scaler left this step out."""
        self.skips += 1
        watch = self._watch
        label = watch.objects.optimizer(optimizer)
        sampled = watch.clock.sampled
        watch.emit(StepSkipped(step=watch.clock.steps, place=watch.places.here(), optimizer=label))
        watch.clock.step_skipped()
        self._backwards.end_window(sampled)

    def _read_gradients(self, optimizer: Optimizer, place: Place | None) -> _Facts:
        held = with_grad = 0
        if not self._watch.clock.sampled and not self._looks_broken(optimizer):
            return _Facts(held, with_grad)
        owners: list[Tensor] = []
        gradients: list[Tensor] = []
        for parameter in parameters_of(optimizer):
            held += parameter.requires_grad
            gradient = parameter.grad
            if gradient is not None:
                with_grad += 1
                if is_plain(gradient):
                    owners.append(parameter)
                    gradients.append(gradient)
        each = norms(gradients) if may_measure() and not _found_inf(optimizer) else None
        if each is None:
            return _Facts(held, with_grad)
        with reading():
            scale = getattr(optimizer, "grad_scale", None)
            if isinstance(scale, Tensor):
                each = each / scale.to(each.device)
            total = torch.linalg.vector_norm(each)
        number = self._watch.scalars.later(total)
        self._inspector.gradients_seen(owners, gradients, each, number, place)
        return _Facts(held, with_grad, number, used(owners, gradients, each))

    def _looks_broken(self, optimizer: Optimizer) -> bool:
        """A glance between sampled windows: NaN flows down to the first layer, so one gradient tells."""
        glance: Tensor | None = None
        for parameter in parameters_of(optimizer):
            gradient = parameter.grad
            if gradient is None or not is_plain(gradient):
                continue
            if gradient.numel() <= _SMALL:
                glance = gradient
                break
            glance = gradient if glance is None else glance
        if glance is None or not self._watch.scalars.is_immediate(glance) or not may_measure():
            return False  # on a device the loss of the next step tells
        # A gradient has no history, so no graph is built; `reading()` would take as long as the norm itself.
        return not math.isfinite(torch.linalg.vector_norm(glance).item())

    def _is_training_thread(self) -> bool:
        watch = self._watch
        # An optimizer may step inside a backward, from a hook on the gradient.
        inside, watch.in_backward = watch.in_backward, False
        listening = watch.is_listening()
        watch.in_backward = inside
        return listening


def _frame_of_step(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of torch around a running `step()`, at or above this one."""
    while frame is not None:
        if frame.f_code.co_name == "wrapper" and frame.f_code.co_filename == _OPTIMIZER_FILE:
            break
        frame = frame.f_back
    return frame


def _found_inf(optimizer: Optimizer) -> bool:
    """A fused optimizer under a scaler steps always, and does nothing where the scaler found infinity."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, Tensor) and found.device.type == "cpu" and bool(found)
