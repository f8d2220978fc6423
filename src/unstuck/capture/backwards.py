"""Watches `backward()`."""

from __future__ import annotations

import weakref
from time import perf_counter
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from unstuck.capture.activations import ActivationMeter
from unstuck.capture.formulas import Formulas
from unstuck.capture.forwards import Forwards
from unstuck.capture.nonfinite import Inspector
from unstuck.capture.objects import rates
from unstuck.capture.scalars import Slot
from unstuck.capture.sums import Sums
from unstuck.capture.timings import Timings, memory_used
from unstuck.capture.watch import Watch
from unstuck.events import Backward, Gauges, GraphFact, LossesBetween

_MOST_BETWEEN = 100


class Backwards:
    """Follows `backward()`, and the loss through a gradient scaler to its true value."""

    def __init__(self, watch: Watch, inspector: Inspector, forwards: Forwards) -> None:
        self._watch = watch
        self._inspector = inspector
        self._forwards = forwards
        self._scaled: tuple[weakref.ref[Tensor], Tensor] | None = None
        self._sums = Sums(watch)
        self._formulas = Formulas(watch)
        self._graph: GraphFact | None = None
        self._activations = ActivationMeter(watch)
        self._began = 0.0
        self._between: list[tuple[int, float]] = []
        self.count = 0

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """`Tensor.backward` or `torch.autograd.backward` is called; the first calls the second."""
        watch = self._watch
        if watch.in_backward:
            return None
        watch.settle_thread()
        if not watch.is_listening():
            return None
        self._forwards.drop_stale()
        loss = _first(args[0] if args else kwargs.get("tensors"))
        if loss is None:
            return None
        if watch.clock.is_survey:
            watch.announce_models()
        place = watch.places.here() if watch.clock.sampled else None
        carried = self._carried() if watch.clock.sampled else None
        self._graph = self._formulas.read(loss, place)
        true = self._true_value(loss)
        value = self._inspector.loss_seen(loss, true, place)
        if value is not None:
            watch.losses.append(value)
        summed = self._sums.before()
        if watch.clock.is_detailed:
            self._activations.read(loss)
        watch.in_backward = True
        watch.hold()
        self._began = perf_counter()
        if any(args[2:4]) or kwargs.get("retain_graph") or kwargs.get("create_graph"):
            self._inspector.forget_graph()
        leaf = loss.requires_grad and loss.grad_fn is None
        return place, value, loss.requires_grad, leaf, carried, true is not loss, summed

    def _carried(self) -> Any:
        watch = self._watch
        labels = {label for _, label in watch.objects.optimizers()}
        return watch.carried.measure(watch.scalars, alone=len(labels) == 1)

    def after(self, facts: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        """It returned or raised."""
        watch = self._watch
        watch.in_backward = False
        watch.timings.backward += perf_counter() - self._began
        self.count += 1
        if error is not None:
            self._inspector.forget_graph()
        place, value, requires_grad, leaf, carried, scaled, summed = facts
        after = self._sums.after()
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
                scaled=scaled,
                grad_norm_before=summed,
                grad_norm=after,
                synced=watch.synced,
                graph=self._graph,
            )
        watch.release(event)
        was_sampled = watch.clock.sampled
        if watch.clock.backward_done():
            self.end_window(was_sampled)

    def scaled(self, call: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        """`scaler.scale(loss)` returned."""
        loss = call[0]
        if isinstance(loss, Tensor) and isinstance(result, Tensor) and result is not loss:
            self._scaled = (weakref.ref(result), loss.detach())

    def end_window(
        self,
        sampled: bool,
        optimizer: Optimizer | None = None,
        grad_norm: Any = None,
        step: int | None = None,
        in_closure: bool = False,
    ) -> None:
        """Tell the gauges of the window that just ended, and begin a new one."""
        watch = self._watch
        timings, watch.timings = watch.timings, Timings()
        if sampled and (watch.losses or grad_norm is not None):
            watch.tell(
                Gauges(
                    step=watch.clock.steps if step is None else step,
                    optimizer=watch.objects.optimizer(optimizer) if optimizer is not None else "",
                    loss=self._loss_of_window(in_closure),  # type: ignore[arg-type]
                    grad_norm=grad_norm,
                    rates=rates(optimizer) if optimizer is not None else (),
                    memory=memory_used() if watch.clock.is_survey else None,
                    seconds=timings.seconds,
                    forward_seconds=timings.forward,
                    backward_seconds=timings.backward,
                    step_seconds=timings.step,
                )
            )
        self._keep_between(sampled, optimizer, step, in_closure)
        watch.losses.clear()
        self._forwards.window_ended()
        watch.turn()
        self._inspector.window_ended()
        watch.after_window()

    def _keep_between(self, sampled: bool, optimizer: Optimizer | None, step: int | None, in_closure: bool) -> None:
        """Losses of windows that are not sampled are told together."""
        watch = self._watch
        if not sampled and optimizer is not None and step is not None and watch.clock.optimizers == 1:
            loss = self._loss_of_window(in_closure)
            if isinstance(loss, float):
                self._between.append((step, float(f"{loss:.6g}")))
        if self._between and (sampled or len(self._between) >= _MOST_BETWEEN):
            self.tell_between()

    def tell_between(self) -> None:
        """Tell the losses kept so far."""
        kept, self._between = self._between, []
        if kept:
            steps, values = zip(*kept, strict=True)
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
