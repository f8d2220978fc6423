"""Watches what moves the weights: optimizers, schedulers and the gradient scaler."""

from __future__ import annotations

import math
import sys
import weakref
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from unstuck.capture.backwards import Backwards
from unstuck.capture.carried import Used, used
from unstuck.capture.nonfinite import Inspector
from unstuck.capture.objects import parameters_of, rates
from unstuck.capture.tensors import is_plain, may_measure, norm, norms, reading
from unstuck.capture.untrained import Untrained
from unstuck.capture.watch import Watch
from unstuck.events import OptimizerStep, Place, SchedulerStep, StepSkipped, Unscale

_SMALL = 4096
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
        self._running: list[_Running] = []
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._in_scaler = False
        self._scaler_stepped = False

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
            watch.clock.optimizers = len(self._stepped)
        if watch.clock.is_survey:
            self._untrained.check()
        if not (len(args) > 1 and args[1]) and not kwargs.get("closure"):
            running.facts = self._read_gradients(optimizer, place)

    def after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Global step post-hook."""
        watch = self._watch
        if not self._running or self._running[-1].optimizer != id(optimizer):
            return
        running = self._running.pop()
        if self._running:
            return
        self._scaler_stepped = True
        place = running.place
        if _found_inf(optimizer):
            self._skipped(optimizer)
            return
        facts = running.facts or self._read_gradients(optimizer, place)
        sampled, step = watch.clock.sampled, watch.clock.steps
        watch.emit(
            OptimizerStep(
                step=step,
                place=place,
                optimizer=watch.objects.optimizer(optimizer),
                parameters=facts.held,
                with_grad=facts.with_grad,
                grad_norm=facts.norm,
                inside_closure=self._backwards.count > running.backwards,
            )
        )
        watch.carried.stepped(optimizer, facts.used if sampled else None)
        self._inspector.stepped(list(parameters_of(optimizer)) if sampled else (), place)
        watch.clock.step_taken()
        in_closure = self._backwards.count > running.backwards
        self._backwards.end_window(sampled, facts.norm, rates(optimizer) if sampled else (), step, in_closure)

    def built(self, optimizer: Optimizer, result: Any, error: BaseException | None) -> None:
        """`Optimizer.__init__` or `add_param_group` returned."""
        if error is None:
            self._watch.announce_optimizer(optimizer)

    def scaler_step_before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Optimizer | None:
        """`scaler.step(optimizer)` is called."""
        optimizer = args[1] if len(args) > 1 else kwargs.get("optimizer")
        if not isinstance(optimizer, Optimizer) or not self._watch.is_listening():
            return None
        self._in_scaler, self._scaler_stepped = True, False
        return optimizer

    def scaler_step_after(self, optimizer: Optimizer, result: Any, error: BaseException | None) -> None:
        """It returned; if no step hook was called it left the step out."""
        self._in_scaler = False
        if error is None and not self._scaler_stepped:
            self._skipped(optimizer)

    def unscale_before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Unscale | None:
        """`scaler.unscale_(optimizer)` is called: by the user, or by `scaler.step`, which does not count."""
        watch = self._watch
        optimizer = args[1] if len(args) > 1 else kwargs.get("optimizer")
        if self._in_scaler or not watch.clock.sampled or not watch.is_listening():
            return None
        if not isinstance(optimizer, Optimizer):
            return None
        label = watch.objects.optimizer(optimizer)
        return Unscale(step=watch.clock.steps, place=watch.places.here(), optimizer=label)

    def unscale_after(self, event: Unscale, result: Any, error: BaseException | None) -> None:
        """It returned."""
        if error is None:
            self._watch.emit(event)

    def _skipped(self, optimizer: Optimizer) -> None:
        watch = self._watch
        label = watch.objects.optimizer(optimizer)
        sampled = watch.clock.sampled
        watch.emit(StepSkipped(step=watch.clock.steps, place=watch.places.here(), optimizer=label))
        watch.clock.step_skipped()
        self._backwards.end_window(sampled, None, ())

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
            total = torch.linalg.vector_norm(each)
            scale = getattr(optimizer, "grad_scale", None)
            if isinstance(scale, Tensor):
                total = total / scale.to(total.device)
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
        if glance is None or not may_measure():
            return False
        return not self._watch.scalars.is_immediate(glance) or not math.isfinite(norm(glance).item())

    def _is_training_thread(self) -> bool:
        watch = self._watch
        # An optimizer may step inside a backward, from a hook on the gradient.
        inside, watch.in_backward = watch.in_backward, False
        listening = watch.is_listening()
        watch.in_backward = inside
        return listening


class Schedulers:
    """Follows learning-rate schedulers; the step a scheduler takes while it is built does not count."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._depth = 0

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`scheduler.step` is called; chained schedulers call the steps of others."""
        self._depth += 1
        return args[0]

    def after(self, scheduler: Any, result: Any, error: BaseException | None) -> None:
        """It returned."""
        self._depth -= 1
        watch = self._watch
        initial = getattr(scheduler, "_is_initial", False)
        if self._depth or error is not None or initial or not watch.clock.sampled or not watch.is_listening():
            return
        optimizer = getattr(scheduler, "optimizer", None)
        watch.emit(
            SchedulerStep(
                step=watch.clock.steps,
                place=watch.places.here(),
                kind=type(scheduler).__name__,
                rates=rates(optimizer) if isinstance(optimizer, Optimizer) else (),
            )
        )


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
