"""Watches `backward()`."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from unstuck.capture.forwards import Forwards
from unstuck.capture.nonfinite import Inspector
from unstuck.capture.scalars import Slot
from unstuck.capture.watch import Watch
from unstuck.events import Backward, Gauges


class Backwards:
    """Follows `backward()`, and the loss through a gradient scaler to its true value."""

    def __init__(self, watch: Watch, inspector: Inspector, forwards: Forwards) -> None:
        self._watch = watch
        self._inspector = inspector
        self._forwards = forwards
        self._scaled: tuple[weakref.ref[Tensor], Tensor] | None = None
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
        value = self._inspector.loss_seen(loss, self._true_value(loss), place)
        if value is not None:
            watch.losses.append(value)
        watch.in_backward = True
        watch.hold()
        if any(args[2:4]) or kwargs.get("retain_graph") or kwargs.get("create_graph"):
            self._inspector.forget_graph()
        return place, value, loss.requires_grad, loss.requires_grad and loss.grad_fn is None, carried

    def _carried(self) -> Any:
        watch = self._watch
        labels = {label for _, label in watch.objects.optimizers()}
        return watch.carried.measure(watch.scalars, alone=len(labels) == 1)

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
        if sampled and (watch.losses or grad_norm is not None):
            loss = self._loss_of_window(in_closure)
            gauges_step = watch.clock.steps if step is None else step
            watch.tell(Gauges(step=gauges_step, loss=loss, grad_norm=grad_norm, rates=current_rates))  # type: ignore[arg-type]
        watch.losses.clear()
        self._forwards.drop_stale()
        watch.turn()
        self._inspector.window_ended()

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
