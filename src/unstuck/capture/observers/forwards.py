"""Observes modules being called and switched between training and evaluation."""

from __future__ import annotations

import sys
from time import perf_counter
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from unstuck.capture.detect.nonfinite import Inspector, Output
from unstuck.capture.measure.tensors import may_measure, reading, short, tensors_in
from unstuck.capture.objects import Model
from unstuck.capture.observers.copies import Copies
from unstuck.capture.observers.data import Batches, has_weights
from unstuck.capture.observers.episodes import Episodes
from unstuck.capture.observers.evaluations import Evaluations
from unstuck.capture.observers.pairs import Pairs
from unstuck.capture.observers.unused import UnusedLayers
from unstuck.capture.players.players import Players
from unstuck.capture.tasks.tasks import Tasks
from unstuck.capture.torch_hooks.patches import Patches, has_compiled
from unstuck.capture.window import Ended, Observer, Watch
from unstuck.events import Forward, LayersRan, ModeChange, Place

HOOK_SECONDS = 6e-6
"""What it takes to observe one call of a module."""
HOOK_BUDGET = 0.005
"""The share of a plain window that this may take."""
_MOST_OUTPUTS = 512
_MOST_MODELS = 32
_CALL = "_call_impl"
"""The function of torch that calls a module and its hooks."""
_Called = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class Forwards(Observer):
    """Follows calls of modules; a model is a module called while no other one runs."""

    def __init__(
        self,
        watch: Watch,
        inspector: Inspector,
        evaluations: Evaluations,
        batches: Batches,
        unused: UnusedLayers,
        pairs: Pairs,
        copies: Copies,
        episodes: Episodes,
        players: Players,
        tasks: Tasks,
    ) -> None:
        self._watch = watch
        self._inspector = inspector
        self._evaluations = evaluations
        self._batches = batches
        self._unused = unused
        self._pairs = pairs
        self._copies = copies
        self._episodes = episodes
        self._players = players
        self._tasks = tasks
        self._patches: Patches | None = None
        self._running: list[nn.Module] = []
        self._sizes = OutputSizes(watch)
        self.synced: bool | None = None
        """Under DistributedDataParallel: will the next backward reduce the gradients over the ranks?"""
        self._began = 0.0
        self._calls = 0
        self._calls_before = 0
        """How many modules ran in the last sampled window."""
        self._frame = 0
        """Identity of the frame in which the outermost of them runs."""

    def attach(self, patches: Patches) -> None:
        """Not by global hooks: with any of these, torch calls `forward` from other lines and in one frame more."""
        self._patches = patches
        patches.around(nn.Module, _CALL, self.begin, self.finish_call)

    def sampling_changed(self, sampled: bool) -> None:
        """Between sampled windows calls of modules are observed only if that is cheap, to find NaN faster."""
        if self._patches is None or has_compiled():
            return
        if sampled:
            self._patches.resume(f"Module.{_CALL}")
        elif self._calls_before * HOOK_SECONDS > HOOK_BUDGET * self._watch.window.typical_seconds:
            self._patches.suspend(f"Module.{_CALL}")

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Called | None:
        """A module is called; `args` begins with it."""
        watch = self._watch
        if not watch.is_listening():
            return None
        if watch.window.sampled or watch.window.attentive:
            self.before(args[0], args[1:])
        elif not torch.is_grad_enabled():
            return None
        return args[0], args[1:], kwargs

    def finish_call(self, call: _Called, output: Any, error: BaseException | None) -> None:
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
                self._episodes.look()
        self._running.append(module)
        self._calls += 1
        self._unused.called(module)
        if watch.window.sampled:
            (self._batches.begins if len(self._running) == 1 else self._batches.entered)(module, args)

    def window_ended(self, ended: Ended) -> None:
        """Start to count again."""
        if self._calls:
            self._calls_before, self._calls = self._calls, 0
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
        if not watch.window.sampled:
            if torch.is_grad_enabled():
                self._inspector.remember(module, args, output)
            if watch.window.attentive and self._leave(module) and not self._running:
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
        self._watch.objects.order.note(module, place)
        self._inspector.measure(module, place, arguments, output)
        if module._parameters:
            self._watch.objects.model(self._running[0]).note_inner(module, place)
        if self._tasks.is_looking:
            self._tasks.inner_ran(module, self._running[0], arguments, output, place)

    def _model_ran(self, module: nn.Module, arguments: Any, output: Any) -> None:
        watch = self._watch
        if type(module).__module__ == "torch.nn.modules.loss":
            return
        model = watch.objects.model(module)
        place = watch.places.here()
        model.place = model.place or place
        model.called = True
        if torch.is_grad_enabled():
            # The attribute of DistributedDataParallel that `no_sync()` sets; the forward pass decides.
            self.synced = getattr(module, "require_backward_grad_sync", None)
            self._inspector.took(module, place, arguments)
            self._inspector.measure(module, place, arguments, output)
            watch.objects.order.note(module, place)
            self._sizes.ran(model, self._inspector.outputs)
            watch.window.timings.forward += perf_counter() - self._began
        else:
            self._inspector.missed()
        self._batches.ended(module, arguments, output)
        self._pairs.model_ran(module, arguments)
        if has_weights(module):
            self._copies.model_ran(module, model, place, arguments)
            self._players.model_ran(model, arguments, output)
            self._tasks.model_ran(module, arguments, output, place)
        self._evaluated(module, place, arguments, output)
        if not has_weights(module) and not _requires_grad(output):
            return  # It prepares data, one example after another: a window has no room for that many.
        watch.emit(
            Forward(
                step=watch.window.steps,
                place=place,
                model=model.label,
                training=module.training,
                grad_enabled=torch.is_grad_enabled(),
                output_requires_grad=_requires_grad(output),
                layers_train=model.trains(),
            )
        )

    def _evaluated(self, module: nn.Module, place: Place | None, arguments: Any, output: Any) -> None:
        """What an evaluation shows is collected in every kind of window."""
        if type(module).__module__ != "torch.nn.modules.loss":
            label = self._watch.objects.model(module).label
            self._evaluations.forward(module, label, place, arguments, output)


class OutputSizes:
    """Records how large the outputs of modules are, in the order they ran: at the first steps, then ever more rarely.

    The search for NaN has measured them anyway.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._next: dict[str, int] = {}

    def ran(self, model: Model, outputs: list[Output]) -> None:
        """A model was called in training; `outputs` are those of the window so far."""
        windows, root = self._watch.window.number, model.module
        if root is None or windows < self._next.get(model.label, 0) or not may_measure():
            return
        if model.label not in self._next and len(self._next) >= _MOST_MODELS:
            return
        names = {id(module): (name, type(module).__name__) for name, module in root.named_modules() if name}
        found = [(names[key], each) for each in outputs if (key := id(each.module())) in names and each.size]
        measured = [(who, each.norm / each.size**0.5) for who, each in found[:_MOST_OUTPUTS] if each.norm is not None]
        if not measured:
            return
        self._next[model.label] = max(windows + 1, windows * 3 // 2)
        with reading():
            first = measured[0][1]
            sizes = torch.stack([size.to(first) for _, size in measured])
            self._watch.tell(
                LayersRan(
                    step=self._watch.window.steps,
                    model=model.label,
                    names=tuple(name for (name, _), _ in measured),
                    kinds=tuple(kind for (_, kind), _ in measured),
                    rms=self._watch.scalars.row_later(sizes, short),
                )
            )


class Modes(Observer):
    """Follows `train()` and `eval()` on models, not on the modules inside them."""

    def __init__(self, watch: Watch, evaluations: Evaluations) -> None:
        self._watch = watch
        self._evaluations = evaluations
        self._inside = False

    def attach(self, patches: Patches) -> None:
        """`eval()` calls `train(False)`. Some evaluate without it, and only ask for no gradients."""
        patches.around(nn.Module, "train", self.before, self.after)
        watched = self._watch.window
        for kind in (torch.no_grad, torch.inference_mode):
            patches.around(
                kind, "__enter__", self._without_gradients, self.after, skip=lambda: not watched.is_resting()
            )

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModeChange | None:
        """`Module.train` is called; it calls itself for every child."""
        watch = self._watch
        module = args[0]
        training = bool(args[1] if len(args) > 1 else kwargs.get("mode", True))
        if not training:
            self._evaluations.switched(module)
        if self._inside or not watch.window.sampled or not watch.is_listening():
            return None
        self._inside = True
        if watch.objects.is_part(module):
            return ModeChange(model="", training=training)
        label = watch.objects.model(module).label
        return ModeChange(step=watch.window.steps, place=watch.places.here(), model=label, training=training)

    def _without_gradients(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """`no_grad` begins in a window in which nobody looks at what modules do."""
        self._evaluations.gradients_off()

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
