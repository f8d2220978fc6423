"""Watches `backward()`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from unstuck.capture.detect.formulas import Formulas
from unstuck.capture.detect.nonfinite import Inspector
from unstuck.capture.measure.activations import ActivationMeter
from unstuck.capture.measure.scalars import Slot
from unstuck.capture.measure.sums import Sums
from unstuck.capture.measure.timings import Timings, memory_used
from unstuck.capture.objects import rates
from unstuck.capture.observers.forwards import Forwards
from unstuck.capture.observers.progress import Progress
from unstuck.capture.watch import Watch
from unstuck.events import Backward, Gauges, GraphFact, LossesBetween, Place

_MOST_BETWEEN = 100


class _Call:
    """A backward under way, in a sampled window."""

    __slots__ = ("carried", "graph", "leaf", "place", "requires_grad", "scaled", "summed", "value")

    def __init__(self) -> None:
        self.place: Place | None = None
        self.value: float | Slot | None = None
        self.requires_grad = True
        self.leaf = self.scaled = False
        self.carried: Any = None
        self.summed: Any = None
        self.graph: GraphFact | None = None


_UNSEEN = _Call()
"""Stands for all backwards of windows that are not sampled."""


class Backwards:
    """Follows `backward()`, and the loss through a gradient scaler to its true value."""

    def __init__(self, watch: Watch, inspector: Inspector, forwards: Forwards, progress: Progress) -> None:
        self._watch = watch
        self._progress = progress
        self._inspector = inspector
        self._forwards = forwards
        self._scaled: tuple[weakref.ref[Tensor], Tensor] | None = None
        self._sums = Sums(watch)
        self._formulas = Formulas(watch)
        self.activations = ActivationMeter(watch)
        self._began = 0.0
        self._counted = False
        """Is the value of the backward under way among the losses of its window?"""
        self._between: list[tuple[int, float]] = []
        self.count = 0

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        """`torch.autograd.backward` is called, by the user or by `Tensor.backward`."""
        watch = self._watch
        if not watch.thread_settled:
            watch.settle_thread()
        loss = args[0] if args else kwargs.get("tensors")
        if type(loss) is not Tensor:
            loss = _first(loss)
        if loss is None or not watch.is_listening():
            return None
        self._progress.evaluations.backward()
        before = len(watch.losses)
        if watch.clock.sampled:
            self._progress.backward(args, kwargs)
            call = self._looked_at(loss)
        else:
            call = _UNSEEN
            self._look_at_value(loss)
        if (len(args) > 2 and any(args[2:4])) or kwargs.get("retain_graph") or kwargs.get("create_graph"):
            self._inspector.forget_graph()
        self._began = 0.0
        if watch.clock.measured:
            self.activations.read(loss)
            self._began = perf_counter()
        self._counted = len(watch.losses) > before
        watch.in_backward, watch.held = True, None
        return call

    def _look_at_value(self, loss: Tensor) -> None:
        """Between sampled windows."""
        true = self._true_value(loss) if self._scaled is not None else loss
        value = self._inspector.glance_at_loss(true) if true is loss else self._inspector.loss_seen(loss, true, None)
        if value is not None:
            self._watch.losses.append(value)

    def _looked_at(self, loss: Tensor) -> _Call:
        """A backward of a sampled window."""
        watch = self._watch
        true = self._true_value(loss)
        self._forwards.drop_stale()
        if watch.clock.is_survey:
            watch.announce_models()
        call = _Call()
        call.place = watch.places.here()
        call.carried = self._carried()
        call.graph = self._formulas.read(loss, call.place)
        call.requires_grad = loss.requires_grad
        call.leaf = loss.requires_grad and loss.grad_fn is None
        call.scaled = true is not loss
        call.value = self._inspector.loss_seen(loss, true, call.place)
        if call.value is not None:
            watch.losses.append(call.value)
        call.summed = self._sums.before()
        return call

    def _carried(self) -> Any:
        watch = self._watch
        labels = {label for _, label in watch.objects.optimizers()}
        return watch.carried.measure(watch.scalars, alone=len(labels) == 1)

    def after(self, call: _Call, result: Any, error: BaseException | None) -> None:
        """It returned or raised."""
        watch, clock = self._watch, self._watch.clock
        watch.in_backward = False
        self.count += 1
        if error is not None:
            self._inspector.forget_graph()
        sampled = clock.sampled
        if error is not None and self._counted and watch.losses:
            watch.losses.pop()
        if self._began:
            watch.timings.backward += perf_counter() - self._began
        if sampled or watch.held:
            seen = sampled and call is not _UNSEEN and clock.has_room(Backward)
            watch.release(self._event(call, error) if seen else None)
        if clock.backward_done():
            self.end_window(sampled)

    def _event(self, call: _Call, error: BaseException | None) -> Backward:
        watch = self._watch
        return Backward(
            step=watch.clock.steps,
            place=call.place,
            requires_grad=call.requires_grad,
            leaf=call.leaf,
            value=call.value,  # type: ignore[arg-type]
            carried=call.carried,
            failed=error is not None,
            scaled=call.scaled,
            grad_norm_before=call.summed,
            grad_norm=self._sums.after(),
            synced=watch.synced,
            graph=call.graph,
        )

    def scaled(self, call: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        """`scaler.scale(loss)` returned."""
        loss = call[0]
        if isinstance(loss, Tensor) and isinstance(result, Tensor) and result is not loss:
            self._scaled = (weakref.ref(result), loss.detach())

    def end_window(
        self,
        told: bool,
        optimizer: Optimizer | None = None,
        grad_norm: Any = None,
        step: int | None = None,
        in_closure: bool = False,
        keep: Callable[[Gauges], None] | None = None,
    ) -> None:
        """Begin a new window; if the last one is `told`, tell its gauges or have them kept for later."""
        watch = self._watch
        loss = self._loss_of_window(in_closure)
        if told and (loss is not None or grad_norm is not None or keep is not None):
            (keep or watch.tell)(self._gauges(optimizer, loss, grad_norm, watch.clock.steps if step is None else step))
        watch.timings = Timings()
        if not told and optimizer is not None and step is not None:
            self._keep_between(step, loss)
        if told:
            self.tell_between()
        watch.losses.clear()
        self._forwards.window_ended()
        watch.turn()
        self._inspector.window_ended()
        if watch.batches is not None and told:
            watch.batches.window_ended()
        watch.after_window()

    def _gauges(self, optimizer: Optimizer | None, loss: float | Slot | None, grad_norm: Any, step: int) -> Gauges:
        watch, timings = self._watch, self._watch.timings
        return Gauges(
            step=step,
            optimizer=watch.objects.optimizer(optimizer) if optimizer is not None else "",
            loss=loss,  # type: ignore[arg-type]
            grad_norm=grad_norm,
            rates=rates(optimizer) if optimizer is not None else (),
            memory=memory_used() if watch.clock.is_survey else None,
            seconds=timings.seconds,
            data_seconds=timings.data or None,
            forward_seconds=timings.forward or None,  # known in windows in which modules are looked at
            backward_seconds=timings.backward,
            step_seconds=timings.step or None,  # and where the beginning of a step is
        )

    def end_rest(self, step: int, optimizer: Optimizer, keep: Callable[[Gauges], None] | None) -> None:
        """A window between sampled ones ended, with a loss to tell of it, or its gauges to `keep`."""
        watch = self._watch
        losses = watch.losses
        loss = losses[0] if len(losses) == 1 else self._loss_of_window(False)
        if keep is not None:
            keep(self._gauges(optimizer, loss, None, step))
        elif losses:
            self._keep_between(step, loss)
        losses.clear()
        self._inspector.rested()
        clock = watch.clock
        if clock.sampled or clock.measured or watch.scalars.expecting:
            watch.timings = Timings()
            watch.turn()
        watch.after_window()

    def _keep_between(self, step: int, loss: float | Slot | None) -> None:
        """Losses of windows that are not sampled are told together."""
        if type(loss) is float and self._watch.clock.optimizers == 1:
            self._between.append((step, loss))
            if len(self._between) >= _MOST_BETWEEN:
                self.tell_between()

    def tell_between(self) -> None:
        """Tell the losses kept so far."""
        kept, self._between = self._between, []
        if kept:
            steps, values = zip(*((step, float(f"{loss:.6g}")) for step, loss in kept), strict=True)
            self._watch.tell(LossesBetween(step=steps[-1], steps=steps, values=values))

    def _loss_of_window(self, in_closure: bool) -> float | Slot | None:
        """What the step minimises: the sum of its backwards, as micro-batches hold shares of it.

        A closure is evaluated again and again for one step, and a slot cannot be added before it has arrived: there
        the last value stands for all.
        """
        losses = self._watch.losses
        numbers = [loss for loss in losses if isinstance(loss, float)]
        if numbers and not in_closure:
            return sum(numbers)
        return losses[-1] if losses else None

    def _true_value(self, loss: Tensor) -> Tensor:
        scaled, self._scaled = self._scaled, None
        return scaled[1] if scaled is not None and scaled[0]() is loss else loss


def _first(target: Any) -> Tensor | None:
    """The loss, or the first of several. An iterator is left alone: what we take out of it, torch would miss."""
    loss = target[0] if isinstance(target, list | tuple) and target else target
    return loss if isinstance(loss, Tensor) else None
