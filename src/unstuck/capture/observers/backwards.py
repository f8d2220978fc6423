"""Observes `backward()`."""

from __future__ import annotations

import math
import weakref
from collections import deque
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from unstuck.capture.detect import graph
from unstuck.capture.detect.nonfinite import Inspector
from unstuck.capture.measure.activations import ActivationMeter
from unstuck.capture.measure.tensors import Slot, is_plain, may_measure, reading, tensors_in
from unstuck.capture.observers.data import Loaders
from unstuck.capture.observers.evaluations import Evaluations
from unstuck.capture.observers.forwards import Forwards
from unstuck.capture.observers.gradients import GradientNorms, StaleGradients, Zeroing
from unstuck.capture.observers.scores import Scores
from unstuck.capture.players.players import Players
from unstuck.capture.tasks.tasks import Tasks
from unstuck.capture.torch_hooks.internals import function_transforms
from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.window import Observer, Watch
from unstuck.capture.written_weights.between_steps import WrittenWeights
from unstuck.capture.written_weights.by_hand import HandSteps
from unstuck.events import Backward, GraphFact, GraphsKept, Place

FEWEST = 8
"""A variable may hold on to the graph of one step; that so many in a row are held is a leak."""
_MOST = 64
_FIRST_READS = 3
_MOST_PLACES = 16


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


class Backwards(Observer):
    """Follows `backward()`, and the loss through a gradient scaler to its true value."""

    def __init__(
        self,
        watch: Watch,
        inspector: Inspector,
        forwards: Forwards,
        evaluations: Evaluations,
        loaders: Loaders,
        stale: StaleGradients,
        zeroing: Zeroing,
        scores: Scores,
        players: Players,
        tasks: Tasks,
        written: WrittenWeights,
    ) -> None:
        self._watch = watch
        self._zeroing = zeroing
        self._written = written
        self._scores = scores
        self._players = players
        self._tasks = tasks
        self._inspector = inspector
        self._forwards = forwards
        self._evaluations = evaluations
        self._loaders = loaders
        self._stale = stale
        self._graphs = RetainedGraphs(watch)
        self._scaled: tuple[weakref.ref[Tensor], Tensor] | None = None
        self._norms = GradientNorms(watch)
        self._formulas = Formulas(watch)
        self._activations = ActivationMeter(watch)
        self._by_hand = HandSteps(watch)
        self._began = 0.0
        self._counted = False
        """Is the value of the backward under way among the losses of its window?"""
        self.count = 0

    def attach(self, patches: Patches) -> None:
        """`Tensor.backward` calls `torch.autograd.backward` by this name."""
        inside = self._watch.is_inside_backward
        patches.around(torch.autograd, "backward", self.before, self.after, skip=inside)
        patches.around(torch.autograd, "grad", self.before_grad, self.after_grad)
        if hasattr(function_transforms, "grad_and_value_impl"):
            patches.around(function_transforms, "grad_and_value_impl", self.before_transform, self.after_transform)
        patches.around(torch.amp.GradScaler, "scale", lambda args, kwargs: args[1:] or None, self.scaled)

    def flush(self) -> None:
        """Record what was counted of activations."""
        self._activations.flush()

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        """`torch.autograd.backward` is called, by the user or by `Tensor.backward`."""
        watch, window = self._watch, self._watch.window
        given = args[0] if args else kwargs.get("tensors")
        loss = given if type(given) is Tensor else _first(given)
        if not watch.may_begin_backward() or loss is None:
            return None
        self._by_hand.asked(loss, kwargs.get("inputs"))
        self._written.look()
        self._evaluations.backward()
        retained = (len(args) > 2 and any(args[2:4])) or kwargs.get("retain_graph") or kwargs.get("create_graph")
        if window.losses:
            self._zeroing.backward()
        before = len(window.losses)
        if window.sampled:
            self._loaders.backward()
            if isinstance(given, Tensor):
                self._graphs.backward(given, bool(retained))
            call = self._looked_at(loss)
        else:
            call = _UNSEEN
            self._look_at_value(loss)
        if retained:
            self._inspector.forget_graph()
        self._began = 0.0
        if window.measured:
            self._activations.read(loss)
            self._began = perf_counter()
        self._counted = len(window.losses) > before
        watch.begin_backward()
        return call

    def before_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Call | None]:
        """`torch.autograd.grad` is called: in a loop without an optimizer it stands for a backward."""
        if not self._watch.is_inside_backward() and self._by_hand.takes_part(args, kwargs):
            outputs, inputs = (*args, kwargs.get("outputs"))[0], args[1] if len(args) > 1 else kwargs.get("inputs")
            return (self.before((outputs,), {"inputs": inputs}),)
        self._evaluations.gradients_asked()
        return (None,)

    def after_grad(self, call: tuple[_Call | None], result: Any, error: BaseException | None) -> None:
        """It returned or raised."""
        if call[0] is not None:
            self.after(call[0], result, error)

    def before_transform(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor] | None:
        """`torch.func.grad(loss)(weights, ...)` is called; the second argument says which one holds the weights."""
        if len(args) < 4 or kwargs or not isinstance(args[1], int) or not may_measure():
            return None
        weights = tensors_in(args[3][args[1]], depth=3)
        return weights if self._watch.may_begin_backward() and self._by_hand.may_train(weights) else None

    def after_transform(self, weights: list[Tensor], result: Any, error: BaseException | None) -> None:
        """It returned gradients and the value of the loss."""
        loss = result[1][0] if error is None and isinstance(result[1], tuple) else result[1] if error is None else None
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not is_plain(loss):
            return
        self._by_hand.asked(loss, weights)
        self._evaluations.backward()
        self._look_at_value(loss.detach())
        self.count += 1
        window = self._watch.window
        window.backward_done()
        self._by_hand.answered(self._watch.places.here() if window.sampled else None, tensors_in(result[0], depth=3))

    def _look_at_value(self, loss: Tensor) -> None:
        """Between sampled windows."""
        true = self._true_value(loss) if self._scaled is not None else loss
        value = self._inspector.glance_at_loss(true) if true is loss else self._inspector.loss_seen(loss, true, None)
        if value is not None:
            self._watch.window.losses.append(value)

    def _looked_at(self, loss: Tensor) -> _Call:
        """A backward of a sampled window."""
        watch = self._watch
        true = self._true_value(loss)
        self._forwards.drop_stale()
        if watch.window.is_survey:
            watch.announce_models()
        call = _Call()
        call.place = watch.places.here()
        labels = {label for _, label in watch.objects.optimizers()}
        call.carried = self._stale.measure(alone=len(labels) == 1)
        call.graph = self._formulas.read(loss, call.place)
        self._scores.backward(loss, call.place)
        self._players.backward(loss, call.place)
        self._tasks.backward(loss, call.place)
        call.requires_grad = loss.requires_grad
        call.leaf = loss.requires_grad and loss.grad_fn is None
        call.scaled = true is not loss
        call.value = self._inspector.loss_seen(loss, true, call.place)
        if call.value is not None:
            watch.window.losses.append(call.value)
        call.summed = self._norms.before()
        return call

    def after(self, call: _Call, result: Any, error: BaseException | None) -> None:
        """It returned or raised."""
        watch, window = self._watch, self._watch.window
        inside = watch.end_backward()
        self.count += 1
        if error is not None:
            self._inspector.forget_graph()
            if self._counted and window.losses:
                window.losses.pop()
        if self._began:
            window.timings.backward += perf_counter() - self._began
        if window.sampled and call is not _UNSEEN and window.has_room(Backward):
            watch.tell(self._event(call, error))
        for event in inside:
            watch.tell(event)
        window.backward_done()
        if error is None:
            self._by_hand.answered(call.place, result)

    def _event(self, call: _Call, error: BaseException | None) -> Backward:
        watch = self._watch
        return Backward(
            step=watch.window.steps,
            place=call.place,
            requires_grad=call.requires_grad,
            leaf=call.leaf,
            value=call.value,  # type: ignore[arg-type]
            carried=call.carried,
            failed=error is not None,
            scaled=call.scaled,
            grad_norm_before=call.summed,
            grad_norm=self._norms.after(),
            synced=self._forwards.synced,
            graph=call.graph,
        )

    def scaled(self, call: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        """`scaler.scale(loss)` returned."""
        loss = call[0]
        if isinstance(loss, Tensor) and isinstance(result, Tensor) and result is not loss:
            self._scaled = (weakref.ref(result), loss.detach())

    def _true_value(self, loss: Tensor) -> Tensor:
        scaled, self._scaled = self._scaled, None
        return scaled[1] if scaled is not None and scaled[0]() is loss else loss


class Formulas:
    """Decides when the end of a graph is read: at the first backwards of a place, then less and less often.

    The graph of the first loss that is NaN or infinite is always read: it shows the operation at its edge.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._reads: dict[Place | None, int] = {}
        self._next: dict[Place | None, int] = {}
        self._has_broken = False

    def read(self, loss: Tensor, place: Place | None) -> GraphFact | None:
        """The end of the graph of `loss`, if it is time to look."""
        window = self._watch.window
        if not window.sampled or loss.grad_fn is None or not may_measure():
            return None
        wanted = (window.is_survey and self._is_due(place)) or self._breaks(loss)
        return graph.loss_fact(loss.grad_fn) if wanted else None

    def _breaks(self, loss: Tensor) -> bool:
        """Is this the first loss that is NaN or infinite? On the CPU only: elsewhere the program would have to wait."""
        if self._has_broken or loss.device.type != "cpu" or loss.numel() != 1 or loss.is_complex():
            return False
        with reading():
            self._has_broken = not math.isfinite(loss.item())
        return self._has_broken

    def _is_due(self, place: Place | None) -> bool:
        step, reads = self._watch.window.steps, self._reads.get(place, 0)
        if step < self._next.get(place, 0) or (reads == 0 and len(self._reads) >= _MOST_PLACES):
            return False
        self._reads[place] = reads + 1
        if reads + 1 >= _FIRST_READS:
            self._next[place] = max(10, 3 * step)
        return True


class RetainedGraphs:
    """Records when the graphs of 8, 16, 32 and 64 recorded steps are in memory at once."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._graphs: deque[weakref.ref[graph.Token]] = deque(maxlen=_MOST)
        self._window = -1
        self._next = FEWEST
        self._key = f"unstuck.loss.{id(self)}"
        """Another watch of the same program puts its own token next to ours."""

    def backward(self, loss: Tensor, retained: bool) -> None:
        """`backward()` begins, in a sampled window. Only the first of a window counts."""
        window = self._watch.window
        node: Any = loss.grad_fn
        if window.number == self._window or node is None or retained or self._next > _MOST or not may_measure():
            return
        self._window = window.number
        token = graph.Token()
        # A node outlives its Python object; what is in its metadata does not outlive the node.
        node.metadata[self._key] = token
        self._graphs.append(weakref.ref(token))
        alive = 0
        for reference in reversed(self._graphs):
            if reference() is None:
                break
            alive += 1
        if alive // window.stepped_lately >= self._next:
            self._next *= 2
            self._watch.tell(GraphsKept(step=window.steps, place=self._watch.places.here(), alive=alive))


def _first(target: Any) -> Tensor | None:
    """The loss, or the first of several. An iterator is left alone: what we take out of it, torch would miss."""
    loss = target[0] if isinstance(target, list | tuple) and target else target
    return loss if isinstance(loss, Tensor) else None
