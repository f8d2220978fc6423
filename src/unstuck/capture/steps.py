"""Watches what moves the weights: backward, optimizers, schedulers and the gradient scaler."""

from __future__ import annotations

import math
import sys
import weakref
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from unstuck.capture.nonfinite import Inspector
from unstuck.capture.objects import parameters_of, rates
from unstuck.capture.scalars import Slot
from unstuck.capture.tensors import is_plain, may_measure, norm, norms, reading
from unstuck.capture.untrained import Untrained
from unstuck.capture.watch import Watch
from unstuck.events import Backward, Gauges, OptimizerStep, Place, SchedulerStep, StepSkipped, Unscale

_SMALL = 4096
_OPTIMIZER_FILE = sys.modules[Optimizer.__module__].__file__


class Backwards:
    """Follows `backward()`, and the loss through a gradient scaler to its true value."""

    def __init__(self, watch: Watch, inspector: Inspector) -> None:
        self._watch = watch
        self._inspector = inspector
        self._scaled: tuple[weakref.ref[Tensor], Tensor] | None = None
        self.count = 0
        self.losses: list[float | Slot] = []
        """The losses of this window."""

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """`Tensor.backward` or `torch.autograd.backward` is called; the first calls the second."""
        watch = self._watch
        if watch.in_backward:
            return None
        watch.settle_thread()
        if not watch.is_listening():
            return None
        target = args[0] if args else kwargs.get("tensors")
        loss = target if isinstance(target, Tensor) else next(iter(target or ()), None)
        if not isinstance(loss, Tensor):
            return None
        if watch.clock.is_survey:
            watch.announce_models()
        place = watch.places.here() if watch.clock.sampled else None
        carried = self._carried()
        value = self._inspector.loss_seen(loss, self._true_value(loss), place)
        if value is not None:
            self.losses.append(value)
        watch.in_backward = True
        watch.hold()
        if any(args[2:4]) or kwargs.get("retain_graph") or kwargs.get("create_graph"):
            self._inspector.forget_graph()
        return place, value, loss.requires_grad, loss.requires_grad and loss.grad_fn is None, carried

    def _carried(self) -> Any:
        """Norm of the gradients that a step has already used, where nothing cleared them before this backward."""
        watch = self._watch
        used, watch.gradients_used = watch.gradients_used, False
        if not used or not watch.clock.sampled or not may_measure():
            return None
        held = [p.grad for optimizer, _ in watch.objects.optimizers() for p in parameters_of(optimizer)]
        each = norms([gradient for gradient in held if gradient is not None and is_plain(gradient)])
        if each is None:
            return None
        with reading():
            return watch.scalars.later(torch.linalg.vector_norm(each))

    def after(self, facts: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        """It returned or raised."""
        watch = self._watch
        watch.in_backward = False
        self.count += 1
        place, value, requires_grad, leaf, carried = facts
        event = None
        if watch.clock.sampled and watch.clock.has_room(Backward):
            event = Backward(
                step=watch.clock.steps,
                place=place,
                requires_grad=requires_grad,
                leaf=leaf,
                value=value,
                carried=carried,
                failed=error is not None,
            )
        watch.release(event)
        was_sampled = watch.clock.sampled
        if watch.clock.backward_done():
            self.end_window(was_sampled, None, ())

    def scaled(self, call: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        """`scaler.scale(loss)` returned."""
        loss = call[0]
        if isinstance(loss, Tensor) and isinstance(result, Tensor):
            self._scaled = (weakref.ref(result), loss.detach())

    def end_window(
        self,
        sampled: bool,
        grad_norm: Any,
        current_rates: tuple[float, ...],
        step: int | None = None,
        in_closure: bool = False,
    ) -> None:
        """Tell the gauges of the window that just ended, and begin a new one."""
        watch = self._watch
        if sampled and (self.losses or grad_norm is not None):
            loss = self._loss_of_window(in_closure)
            gauges_step = watch.clock.steps if step is None else step
            watch.tell(Gauges(step=gauges_step, loss=loss, grad_norm=grad_norm, rates=current_rates))  # type: ignore[arg-type]
        self.losses = []
        watch.turn()
        self._inspector.window_ended()

    def _loss_of_window(self, in_closure: bool) -> float | Slot | None:
        """What the step minimises: the sum of its backwards, as micro-batches hold shares of it.

        A closure is evaluated again and again for one step, and a slot cannot be added before it has arrived: there
        the last value stands for all.
        """
        numbers = [loss for loss in self.losses if isinstance(loss, float)]
        if numbers and not in_closure:
            return sum(numbers)
        return self.losses[-1] if self.losses else None

    def _true_value(self, loss: Tensor) -> Tensor:
        scaled, self._scaled = self._scaled, None
        return scaled[1] if scaled is not None and scaled[0]() is loss else loss


class _Running:
    """An optimizer inside its `step()`."""

    def __init__(self, optimizer: Optimizer, frame: int, place: Place | None, backwards: int) -> None:
        self.optimizer = id(optimizer)
        self.frame = frame
        self.place = place
        self.backwards = backwards
        self.facts: tuple[int, int, Any] | None = None

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
        held, with_grad, grad_norm = running.facts or self._read_gradients(optimizer, place)
        sampled, step = watch.clock.sampled, watch.clock.steps
        watch.emit(
            OptimizerStep(
                step=step,
                place=place,
                optimizer=watch.objects.optimizer(optimizer),
                parameters=held,
                with_grad=with_grad,
                grad_norm=grad_norm,
                inside_closure=self._backwards.count > running.backwards,
            )
        )
        watch.gradients_used = True
        self._inspector.stepped(list(parameters_of(optimizer)) if sampled else (), place)
        watch.clock.step_taken()
        in_closure = self._backwards.count > running.backwards
        self._backwards.end_window(sampled, grad_norm, rates(optimizer) if sampled else (), step, in_closure)

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

    def _read_gradients(self, optimizer: Optimizer, place: Place | None) -> tuple[int, int, Any]:
        held = with_grad = 0
        if not self._watch.clock.sampled and not self._looks_broken(optimizer):
            return held, with_grad, None
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
            return held, with_grad, None
        with reading():
            total = torch.linalg.vector_norm(each)
            scale = getattr(optimizer, "grad_scale", None)
            if isinstance(scale, Tensor):
                total = total / scale.to(total.device)
        number = self._watch.scalars.later(total)
        self._inspector.gradients_seen(owners, gradients, each, number, place)
        return held, with_grad, number

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
