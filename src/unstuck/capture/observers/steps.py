"""Observes what moves the weights: optimizers, their steps, and what moves although it is frozen."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.detect.nonfinite import Inspector
from unstuck.capture.measure.gauges import Started, TensorMeter, Used, used
from unstuck.capture.measure.tensors import first_elements, is_plain, may_measure, norm, norms, reading
from unstuck.capture.objects import Model, parameters_of
from unstuck.capture.observers.backwards import Backwards
from unstuck.capture.observers.episodes import Episodes
from unstuck.capture.observers.gradients import StaleGradients, Untrained, Zeroing
from unstuck.capture.torch_hooks.internals import NormBase
from unstuck.capture.torch_hooks.patches import BEFORE_STEPS, Patches, has_compiled
from unstuck.capture.window import Observer, Watch
from unstuck.capture.written_weights.between_steps import WrittenWeights
from unstuck.events import FrozenMoved, OptimizerStep, Place, StepSkipped

_SMALL = 4096
_LATELY = 200
_MOST_FROZEN = 64
_MOST_MOVED = 4
_MOST_NAMES = 20
GLANCE_SECONDS = 60e-6
"""What a look at one gradient takes, in the middle of a training that has filled the caches with other things and then
has to fill them again."""
GLANCE_BUDGET = 0.005
"""The share of a plain window that it may take; where it takes more, only some of them are looked at."""
_OPTIMIZER_FILE = sys.modules[Optimizer.__module__].__file__


class _Facts(NamedTuple):
    """The gradients an optimizer is about to use."""

    held: int
    with_grad: int
    norm: Any = None
    used: Used | None = None


_NOTHING = _Facts(0, 0)


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


class Steps(Observer):
    """Follows optimizers: their construction, their steps and the steps a scaler leaves out."""

    def __init__(
        self,
        watch: Watch,
        inspector: Inspector,
        backwards: Backwards,
        zeroing: Zeroing,
        stale: StaleGradients,
        episodes: Episodes,
        written: WrittenWeights,
    ) -> None:
        self._watch = watch
        self._written = written
        self._inspector = inspector
        self._backwards = backwards
        self._zeroing = zeroing
        self._stale = stale
        self._episodes = episodes
        self._patches: Patches | None = None
        self._building: set[int] = set()
        """Optimizers inside their `__init__`, which calls `add_param_group`."""
        self._untrained = Untrained(watch)
        self._statistics = FrozenStatistics(watch)
        self._meter = TensorMeter(watch)
        self._measure_before = watch.guard.protect("the gauges", self._meter.before)
        self._measure_after = watch.guard.protect("the gauges", self._meter.after)
        self._measure_next = watch.guard.protect("the gauges", self._meter.follow)
        frozen = FrozenParameters(watch)
        self._frozen_before = watch.guard.protect("frozen parameters", frozen.before)
        self._frozen_after = watch.guard.protect("frozen parameters", frozen.after)
        self._running: list[_Running] = []
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._last: dict[int, int] = {}
        """When each optimizer stepped last, counted in windows."""
        self._newest: weakref.ref[Optimizer] | None = None
        """The one that stepped last."""
        self._returning: set[int] = set()
        """Those that stepped again after others had."""
        self._turns: set[int] = set()
        """Those that take turns, or the one that steps alone."""
        self._glance = (0, 0, 0)
        """Identity of an optimizer, and where in it the parameter is that `_looks_broken` looks at."""
        self._pause = 1
        self._unseen = 0
        """Steps whose gradients are looked at are so many apart between sampled windows, and so many were not."""
        self._surprising = False
        """Has a step been more than a plain one: with a closure, through a scaler, around another step?"""
        self._resting = False
        """Is `before` not called for a while?"""
        self.in_scaler = False
        self.scaler_stepped = False
        self.skips = 0
        """Steps that a scaler has left out."""

    def attach(self, patches: Patches) -> None:
        """Observe steps, and how optimizers are built."""
        self._patches = patches
        patches.around_steps(self.before, self.after)
        patches.around(Optimizer, "__init__", self._init_begins, self._init_ends)
        patches.around(Optimizer, "add_param_group", self._group_begins, self.built)

    def flush(self) -> None:
        """Record what was measured and waits for more steps."""
        self._meter.flush()

    def finish(self) -> None:
        """Record what is left, and let go of the program's tensors."""
        self._watch.window.flush()
        self._written.finish()
        self._meter.forget()
        self._running.clear()

    def sampling_changed(self, sampled: bool) -> None:
        """Between sampled windows `after` alone follows the steps, where that is enough."""
        window = self._watch.window
        if not sampled:
            allowed = GLANCE_BUDGET * window.typical_seconds
            self._pause = max(1, round(GLANCE_SECONDS / allowed)) if allowed > 0 else 1
            self._meter.pace()
            if not window.measured:
                self._meter.forget()
        plain = not window.sampled and not self._surprising and len(self._turns) == 1
        if not plain or (window.measured and not self._meter.may_follow) or self._patches is None or has_compiled():
            self._wake()
        else:
            self._resting = True
            self._patches.suspend(BEFORE_STEPS)

    def _wake(self) -> None:
        """Have `before` called again."""
        self._resting = False
        if self._patches is not None:
            self._patches.resume(BEFORE_STEPS)

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Global step pre-hook."""
        watch = self._watch
        if not watch.is_training_thread():
            return
        own = _frame_of_step(sys._getframe())
        if self._running:
            # torch calls no post-hook for a step that raised: only those still on the stack are running.
            self._running = [running for running in self._running if running.is_outside(own)]
        place = watch.places.here() if watch.window.sampled else None
        running = _Running(optimizer, id(own), place, self._backwards.count)
        self._running.append(running)
        if len(self._running) > 1:
            self._surprising = True
            return
        self._meet(optimizer)
        if place is None and watch.window.sampled:  # from this step on
            running.place = place = watch.places.here()
        if watch.window.is_survey:
            for other, _ in watch.objects.optimizers():
                if watch.objects.has_news(other):
                    watch.announce_optimizer(other)
            self._statistics.check()
            self._untrained.check()
        if _closure(args, kwargs) is None:
            running.facts = self._read_gradients(optimizer, place)
        else:
            self._surprising = True
        if watch.window.sampled:
            self._frozen_before(optimizer)
        if watch.window.measured:
            running.started = self._measure_before(optimizer)
        running.began = perf_counter()

    def after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Global step post-hook."""
        watch = self._watch
        if self._resting and not self._running:
            self._rested(optimizer, args, kwargs)
            return
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
        watch.window.timings.step += perf_counter() - running.began
        facts = running.facts or self._read_gradients(optimizer, place)
        kept = running.started is not None and self._measure_after(optimizer, running.started, facts.used)
        in_closure = self._backwards.count > running.backwards
        if in_closure and watch.window.sampled:
            watch.objects.begins_to_train(optimizer)  # its models are first called inside of the step
        self._taken(optimizer, facts, kept, place, in_closure)

    def _taken(
        self,
        optimizer: Optimizer,
        facts: _Facts,
        kept: bool | None,
        place: Place | None = None,
        in_closure: bool = False,
    ) -> None:
        """A step is done, and with it its window. The meter has `kept` what it has measured, or not."""
        window = self._watch.window
        sampled = window.sampled
        self._written.stepped(optimizer)
        if (sampled or window.measured) and not kept:
            window.flush()  # so that steps are recorded in their order
            facts = self._measure_gradients(optimizer, place) if facts is _NOTHING else facts
        if sampled:
            self._tell(optimizer, facts, place, in_closure)
            self._stale.stepped(optimizer, facts.used)
            self._inspector.gradients_unseen = False
            self._inspector.stepped(list(parameters_of(optimizer)), place)
        defer = partial(self._meter.keep, now=sampled) if kept else None
        window.step_taken(optimizer, facts.norm, in_closure, defer)
        if sampled:
            self._frozen_after(optimizer)

    def _rested(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """A step was taken, and `before` had not been called."""
        watch = self._watch
        if not watch.is_training_thread():
            return
        if self._newest is None or self._newest() is not optimizer or len(args) > 1 or kwargs:
            self._surprising = True
            self._meet(optimizer)
            self._wake()
        self._glance_at_gradients(optimizer)
        measured = watch.window.measured
        if measured and not self._measure_next(optimizer):
            self._wake()
            self._taken(optimizer, _NOTHING, kept=False)
            return
        self._written.stepped(optimizer)
        watch.window.step_rested(optimizer, self._meter.keep if measured else None)

    def _meet(self, optimizer: Optimizer) -> None:
        """An optimizer steps, perhaps for the first time."""
        watch = self._watch
        if optimizer not in self._stepped:
            self._written.first_step(optimizer)
            watch.announce_models()
            watch.objects.begins_to_train(optimizer)
            watch.announce_optimizer(optimizer)
            self._stepped.add(optimizer)
            self._last.pop(id(optimizer), None)  # the address of one that is gone
            if not watch.window.sampled:
                watch.window.begin_training()
            self._inspector.first_step(list(parameters_of(optimizer)))
        self._count_turns(optimizer)

    def enter_scaler(self) -> None:
        """`scaler.step()` begins."""
        self.in_scaler, self.scaler_stepped = True, False
        self._surprising = True
        if self._resting:
            self._wake()

    def _count_turns(self, optimizer: Optimizer) -> None:
        """Optimizers take turns if one steps again after another has stepped; one that has not stepped lately, or only
        before all others, belongs to a training that is over."""
        window, key = self._watch.window, id(optimizer)
        if self._newest is None or self._newest() is not optimizer:
            self._newest = weakref.ref(optimizer)
            before = self._last.get(key)
            self._last = {other: last for other, last in self._last.items() if window.number - last <= _LATELY}
            if before is None:
                self._returning.clear()
            else:
                self._returning |= {other for other, last in self._last.items() if last >= before}
            self._turns = {key} | (self._returning & self._last.keys())
            window.take_turns(len(self._turns))
        self._last[key] = window.number
        window.stepped_lately = len(self._last)

    def _tell(self, optimizer: Optimizer, facts: _Facts, place: Place | None, in_closure: bool) -> None:
        watch = self._watch
        watch.emit(
            OptimizerStep(
                step=watch.window.steps,
                place=place,
                optimizer=watch.objects.optimizer(optimizer),
                parameters=facts.held,
                with_grad=facts.with_grad,
                grad_norm=facts.norm,
                inside_closure=in_closure,
                through_scaler=self.in_scaler,
            )
        )

    def _init_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Optimizer | None:
        self._building.add(id(args[0]))
        return args[0] if isinstance(args[0], Optimizer) else None

    def _init_ends(self, optimizer: Optimizer, result: Any, error: BaseException | None) -> None:
        self._building.discard(id(optimizer))
        self._zeroing.observe_class(type(optimizer))
        self.built(optimizer, result, error)

    def _group_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Optimizer | None:
        return None if id(args[0]) in self._building else args[0]

    def built(self, optimizer: Optimizer, result: Any, error: BaseException | None) -> None:
        """`Optimizer.__init__` or `add_param_group` returned."""
        if error is None:
            if optimizer not in self._stepped and self._watch.is_listening():
                self._watch.window.begin_training()
            self._watch.announce_optimizer(optimizer)
            self._episodes.look()

    def skipped(self, optimizer: Optimizer) -> None:
        """A scaler left this step out."""
        self.skips += 1
        watch = self._watch
        label = watch.objects.optimizer(optimizer)
        watch.emit(StepSkipped(step=watch.window.steps, place=watch.places.here(), optimizer=label))
        watch.window.step_skipped()

    def _read_gradients(self, optimizer: Optimizer, place: Place | None) -> _Facts:
        if self._watch.window.sampled or getattr(optimizer, "grad_scale", None) is not None:
            return self._measure_gradients(optimizer, place)
        self._glance_at_gradients(optimizer)
        return _NOTHING

    def _measure_gradients(self, optimizer: Optimizer, place: Place | None) -> _Facts:
        held = with_grad = 0
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

    def _glance_at_gradients(self, optimizer: Optimizer) -> None:
        self._unseen = (self._unseen + 1) % self._pause
        self._inspector.gradients_unseen = self._unseen != 0
        if self._unseen == 0 and self._looks_broken(optimizer):
            self._measure_gradients(optimizer, None)

    def _looks_broken(self, optimizer: Optimizer) -> bool:
        """A glance between sampled windows: NaN flows down to the first layer, so one gradient is enough."""
        gradient = self._gradient_to_glance_at(optimizer)
        if gradient is None or not self._watch.scalars.is_immediate(gradient) or not may_measure():
            return False  # on a device the loss of the next step shows it
        # A gradient has no history, so no graph is built; `reading()` would take as long as the norm itself.
        return not math.isfinite(torch.linalg.vector_norm(gradient).item())

    def _gradient_to_glance_at(self, optimizer: Optimizer) -> Tensor | None:
        """The first small one; always the same, once it is found."""
        key, group, place = self._glance
        if key == id(optimizer):
            try:
                gradient: Tensor | None = optimizer.param_groups[group]["params"][place].grad
            except IndexError:
                gradient = None
            if gradient is not None and is_plain(gradient):
                return gradient
        found: Tensor | None = None
        for group, held in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(held["params"]):
                gradient = parameter.grad
                if gradient is None or not is_plain(gradient) or (found is not None and gradient.numel() > _SMALL):
                    continue
                found, self._glance = gradient, (id(optimizer), group, place)
                if gradient.numel() <= _SMALL:
                    return gradient
        return found


class _Frozen(NamedTuple):
    optimizer: int
    parameters: list[weakref.ref[Tensor]]
    values: Tensor


class FrozenParameters:
    """Compares, across a sampled step, parameters that are frozen and still hold a gradient: only those can move."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._before: _Frozen | None = None
        self._events: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()

    def before(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step, in a sampled window."""
        self._before = None
        if not self._watch.is_listening() or self._events.get(optimizer, 0) >= _MOST_MOVED:
            return
        frozen = [p for p in parameters_of(optimizer) if not p.requires_grad and p.grad is not None]
        frozen = [parameter for parameter in frozen if is_plain(parameter)][:_MOST_FROZEN]
        if frozen and may_measure():
            self._before = _Frozen(id(optimizer), [weakref.ref(p) for p in frozen], first_elements(frozen))

    def after(self, optimizer: Optimizer) -> None:
        """It has stepped."""
        before, self._before = self._before, None
        if before is None or before.optimizer != id(optimizer):
            return
        watch = self._watch
        parameters = [
            parameter for parameter in (reference() for reference in before.parameters) if parameter is not None
        ]
        if len(parameters) < len(before.parameters):
            return
        with reading():
            change = norm(first_elements(parameters) - before.values) / norm(before.values).clamp_min(1e-30)
        number = watch.scalars.later(change)
        if number == 0.0:
            return
        self._events[optimizer] = self._events.get(optimizer, 0) + 1
        watch.tell(
            FrozenMoved(
                step=watch.window.steps,
                place=watch.places.here(),
                optimizer=watch.objects.optimizer(optimizer),
                names=tuple(watch.objects.name(parameter) for parameter in parameters[:_MOST_NAMES]),
                count=len(parameters),
                change=number,
            )
        )


class _Layers:
    """The frozen normalisation layers of one model, as they were when first looked at."""

    def __init__(self, layers: list[tuple[str, nn.Module]], step: int) -> None:
        self.names = [name for name, _ in layers]
        self.layers = [weakref.ref(layer) for _, layer in layers]
        self.since = step
        self.events = 0
        self.statistics = first_elements(_statistics(self.alive()))
        self.own = first_elements(_own(self.alive()))

    def alive(self) -> list[nn.Module]:
        return [layer for layer in (reference() for reference in self.layers) if layer is not None]


class FrozenStatistics:
    """Compares running statistics of normalisation layers whose own parameters are frozen and do not move."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._known: dict[int, _Layers | None] = {}
        """By the identity of the model; None where nothing is to be watched."""

    def check(self) -> None:
        """An optimizer is about to step, in a window in which models are looked through."""
        if not may_measure():
            return
        for model in self._watch.objects.models():
            if id(model) not in self._known:
                self._known[id(model)] = self._first_look(model)
            elif (known := self._known[id(model)]) is not None:
                self._look_again(model, known)

    def _first_look(self, model: Model) -> _Layers | None:
        if not any(parameter.requires_grad for _, parameter in model.parameters()):
            return None
        module = model.module
        inside = module.named_modules() if module is not None else ()
        layers = [(name, layer) for name, layer in inside if _is_frozen(layer)][:_MOST_FROZEN]
        return _Layers(layers, self._watch.window.steps) if layers else None

    def _look_again(self, model: Model, known: _Layers) -> None:
        layers = known.alive()
        # A discriminator is frozen for a step and trains in the next; a momentum encoder is moved by hand.
        toggled = len(layers) < len(known.names) or not all(_is_frozen(layer) for layer in layers)
        if toggled or not torch.equal(first_elements(_own(layers)), known.own):
            self._known[id(model)] = None
            return
        steps = self._watch.window.steps
        if steps < 4 or known.events >= _MOST_MOVED or not any(layer.training for layer in layers):
            return
        known.events += 1
        self._tell(model, known, layers)

    def _tell(self, model: Model, known: _Layers, layers: list[nn.Module]) -> None:
        watch = self._watch
        with reading():
            change = norm(first_elements(_statistics(layers)) - known.statistics) / norm(known.statistics).clamp_min(
                1e-30
            )
        number = watch.scalars.later(change)
        if number == 0.0:
            return
        training = [name for name, layer in zip(known.names, layers, strict=True) if layer.training]
        watch.tell(
            FrozenMoved(
                step=watch.window.steps,
                place=model.place,
                what="statistics",
                model=model.label,
                names=tuple(training[:_MOST_NAMES]),
                count=len(training),
                change=number,
                since=known.since,
            )
        )


def _is_frozen(layer: nn.Module) -> bool:
    """A BatchNorm that keeps statistics, and whose own parameters are not to be trained."""
    if not isinstance(layer, NormBase) or not layer.track_running_stats or layer.weight is None:
        return False
    plain = is_plain(layer.weight) and is_plain(layer.running_mean) and is_plain(layer.running_var)
    return plain and not any(parameter.requires_grad for parameter in layer.parameters(recurse=False))


def _statistics(layers: Sequence[nn.Module]) -> list[Tensor]:
    return [buffer for layer in layers for buffer in (layer.running_mean, layer.running_var)]  # type: ignore[misc]


def _own(layers: Sequence[nn.Module]) -> list[Tensor]:
    return [parameter for layer in layers for parameter in layer.parameters(recurse=False)]


def _closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a step was given to evaluate the loss again; `args` begins with the optimizer."""
    return args[1] if len(args) > 1 else kwargs.get("closure") if kwargs else None


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
