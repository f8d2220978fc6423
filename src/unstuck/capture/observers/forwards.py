"""Watches modules being called and switched between training and evaluation."""

from __future__ import annotations

import sys
from time import perf_counter
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from unstuck.capture.detect.nonfinite import Inspector
from unstuck.capture.measure.layers import Layers
from unstuck.capture.measure.tensors import tensors_in
from unstuck.capture.observers.batches import has_weights
from unstuck.capture.watch import Watch
from unstuck.events import Forward, ModeChange, Place

_CALL = "_call_impl"
"""The function of torch that calls a module and its hooks."""
_Called = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class Forwards:
    """Follows calls of modules; a model is a module called while no other one runs."""

    def __init__(self, watch: Watch, inspector: Inspector) -> None:
        self._watch = watch
        self._inspector = inspector
        self._running: list[nn.Module] = []
        self._layers = Layers(watch)
        self._began = 0.0
        self._calls = 0
        self.calls = 0
        """How many modules ran in the last sampled window."""
        self._frame = 0
        """Identity of the frame in which the outermost of them runs."""

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Called | None:
        """A module is called; `args` begins with it."""
        watch = self._watch
        if not watch.is_listening():
            return None
        if watch.clock.sampled or watch.attentive:
            self.before(args[0], args[1:])
        elif not torch.is_grad_enabled():
            return None
        return args[0], args[1:], kwargs

    def finish(self, call: _Called, output: Any, error: BaseException | None) -> None:
        """It returned or raised."""
        if error is None or isinstance(error, Exception):
            self.after(*call, output)

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """In a sampled window, or in an evaluation that is looked at."""
        watch = self._watch
        if not self._running or module is self._running[0]:
            own = _calling(sys._getframe())
            self._drop_stale(own.f_back if own else None)
            if not self._running:
                self._frame, self._began = id(own), perf_counter()
        self._running.append(module)
        self._calls += 1
        if watch.batches is not None and watch.clock.sampled:
            (watch.batches.begins if len(self._running) == 1 else watch.batches.entered)(module, args)

    def window_ended(self) -> None:
        """Count anew."""
        if self._calls:
            self.calls, self._calls = self._calls, 0
        self.drop_stale()

    def drop_stale(self) -> None:
        """Forget modules that ended by an exception which skips hooks, such as a KeyboardInterrupt."""
        self._drop_stale(sys._getframe())

    def _drop_stale(self, frame: FrameType | None) -> None:
        frame = _calling(frame) if self._running else None
        while frame is not None and id(frame) != self._frame:
            frame = _calling(frame.f_back)
        if frame is None:
            self._running.clear()

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """It returned, or raised an exception: then `output` is None."""
        watch = self._watch
        if not watch.is_listening():
            return
        if not watch.clock.sampled:
            if torch.is_grad_enabled():
                self._inspector.remember(module, args, output)
            if watch.attentive and self._leave(module) and not self._running:
                self._evaluated(module, watch.places.here(), (args, kwargs), output)
        elif self._leave(module):
            if self._running:
                self._inner_module_ran(module, (args, kwargs), output)
            else:
                self._model_ran(module, (args, kwargs), output)

    def _leave(self, module: nn.Module) -> bool:
        # Modules above it ended by an exception that skips hooks, such as KeyboardInterrupt.
        while self._running:
            if self._running.pop() is module:
                return True
        return False

    def _inner_module_ran(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            self._inspector.missed()
            return
        place = self._watch.places.here()
        self._watch.order.note(module, place)
        self._inspector.measure(module, place, arguments, output)
        if module._parameters:
            self._watch.model(self._running[0]).note_inner(module, place)

    def _model_ran(self, module: nn.Module, arguments: Any, output: Any) -> None:
        watch = self._watch
        if type(module).__module__ == "torch.nn.modules.loss":
            return
        model = watch.model(module)
        place = watch.places.here()
        model.place = model.place or place
        model.called = True
        if torch.is_grad_enabled():
            # The attribute of DistributedDataParallel that `no_sync()` sets; the forward pass decides.
            watch.synced = getattr(module, "require_backward_grad_sync", None)
            self._inspector.took(module, place, arguments)
            self._inspector.measure(module, place, arguments, output)
            watch.order.note(module, place)
            self._layers.ran(model, self._inspector.outputs)
            watch.timings.forward += perf_counter() - self._began
        else:
            self._inspector.missed()
        if watch.batches is not None:
            watch.batches.ended(module, arguments, output)
        self._evaluated(module, place, arguments, output)
        if not has_weights(module) and not _requires_grad(output):
            return  # It prepares data, one example after another: a window has no room for that many.
        watch.emit(
            Forward(
                step=watch.clock.steps,
                place=place,
                model=model.label,
                training=module.training,
                grad_enabled=torch.is_grad_enabled(),
                output_requires_grad=_requires_grad(output),
                layers_train=model.trains(),
            )
        )

    def _evaluated(self, module: nn.Module, place: Place | None, arguments: Any, output: Any) -> None:
        """What an evaluation shows is collected, whatever the window."""
        watch = self._watch
        if watch.evaluations is not None and type(module).__module__ != "torch.nn.modules.loss":
            watch.evaluations.forward(module, watch.model(module).label, place, arguments, output)


class Modes:
    """Follows `train()` and `eval()` on models, not on the modules inside them."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._inside = False

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModeChange | None:
        """`Module.train` is called; it calls itself for every child."""
        watch = self._watch
        module = args[0]
        training = bool(args[1] if len(args) > 1 else kwargs.get("mode", True))
        if not training and watch.evaluations is not None:
            watch.evaluations.switched(module)
        if self._inside or not watch.clock.sampled or not watch.is_listening():
            return None
        self._inside = True
        if watch.objects.is_part(module):
            return ModeChange(model="", training=training)
        label = watch.model(module).label
        return ModeChange(step=watch.clock.steps, place=watch.places.here(), model=label, training=training)

    def after(self, change: ModeChange, result: Any, error: BaseException | None) -> None:
        """It returned."""
        self._inside = False
        if change.model and error is None:
            self._watch.emit(change)


def _calling(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that calls a module, at or above this one."""
    while frame is not None and frame.f_code.co_name != _CALL:
        frame = frame.f_back
    return frame


def _requires_grad(output: Any) -> bool | None:
    if isinstance(output, Tensor):
        return output.requires_grad
    found = tensors_in(output)
    return any(tensor.requires_grad for tensor in found) if found else None
