"""When a window begins and ends. A window lasts from the end of one optimizer step to the end of the next.

`Window` alone decides that: it counts steps, chooses which windows are recorded, and calls its observers in the order
of their list. In `sampled` windows everything is recorded, in `measured` ones the gauges are read, and in all others
the watch rests. `Watch` is what the observers share: the window, the call sites, the known objects, and the way into
the record.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from unstuck.capture.guard import Guard
from unstuck.capture.measure.tensors import Scalars, Slot, filled, slots_of
from unstuck.capture.objects import Model, Objects, rates
from unstuck.capture.places import Places
from unstuck.capture.torch_hooks.internals import has_cuda
from unstuck.events import Event, Gauges, LossesBetween, Note

if TYPE_CHECKING:
    from unstuck.capture.preview.first_batch_probe import FirstBatchProbe
    from unstuck.capture.torch_hooks.patches import Patches
    from unstuck.capture.trial.comparisons import Comparisons

DENSE = 50
"""Windows at the start of a run, all of which are recorded."""
LATER_DENSE = 30
FEWEST_DENSE = 6
MOST_STARTS = 20
"""Trainings of one program whose start is recorded window by window: of the second half of `LATER_DENSE`, of the third
a third, and so on. Nine trainings must not cost much more than one, and a program may build an optimizer per task."""
MIDDLE = 1000
BUDGET = 0.0075
"""The share of a run's time that recorded windows may cost on top of plain ones, once the dense start is over."""
LONGEST_ACCUMULATION = 64
"""Backwards without a step, after which each further one is a window of its own: `step()` may be missing."""
EVENTS_PER_WINDOW = 64
"""Of each kind: an evaluation over a whole data set happens inside one window."""
_REMEMBERED = 15
_CLOSE = 3
_MEMORY_EVERY = 9
"""Steps: recorded windows are ten apart after the start."""
_MOST_BETWEEN = 100
_MOST_WAITING = 32
"""Optimizers with losses to be recorded: a program may build one for every step."""
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


class Ended(NamedTuple):
    """A window that has ended."""

    step: int
    """The number of its optimizer step."""
    recorded: bool
    """Was it sampled or measured?"""
    optimizer: Optimizer | None = None
    """Whose step ended it; None if a step was skipped or is missing."""
    grad_norm: Any = None
    in_closure: bool = False
    """Did the step compute the loss itself, by calling a closure?"""
    defer: Callable[[Gauges], None] | None = None
    """Takes the gauges, to record them together with what was measured in this step."""
    by_hand: str = ""
    """What the program's own updates are called, where one of them ended it."""


class Observer:
    """Follows a run from window to window. What a subclass does not need it leaves as it is here, which costs nothing:
    only methods that are overridden are called."""

    def attach(self, patches: Patches) -> None:
        """Observe what there is to observe of torch."""

    def window_ended(self, ended: Ended) -> None:
        """A window has ended. Numbers that are on their way have not arrived yet."""

    def sampling_changed(self, sampled: bool) -> None:
        """From now on everything is recorded, or no longer."""

    def window_began(self, ended: Ended) -> None:
        """The next window begins, and numbers of the one before the last have arrived."""

    def window_rested(self, step: int, optimizer: Optimizer, defer: Callable[[Gauges], None] | None) -> None:
        """A window has ended in which the watch rested; called instead of `window_ended` and `window_began`."""

    def flush(self) -> None:
        """Record what was measured and waits for more."""

    def finish(self) -> None:
        """The run has ended."""

    def all_arrived(self) -> None:
        """The run has ended, and the last numbers have arrived."""


class Timings:
    """Seconds of one window, by part. What our own reading takes is part of them."""

    def __init__(self) -> None:
        self.data = self.forward = self.backward = self.step = 0.0
        self._began = perf_counter()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return perf_counter() - self._began


class Window:
    """The current window, and the schedule of those to come.

    `every` asks for gauges in every Nth window, from the first on; `closely` for everything in the windows around one
    step.
    """

    def __init__(self, every: int | None = None, closely: int | None = None, guard: Guard | None = None) -> None:
        self.steps = 0
        """Optimizer steps taken so far."""
        self.number = 0
        """Of this window: those that a skipped or missing step ended count, too."""
        self.sampled = self.measured = True
        self.attentive = False
        """Is an evaluation being recorded, in a window that need not be sampled?"""
        self.losses: list[float | Slot] = []
        """Of the backwards of this window since gradients were last cleared."""
        self.timings = Timings()
        self.optimizers = 1
        """How many optimizers take turns; see `take_turns`."""
        self.stepped_lately = 1
        """The same, with those that have stepped for the first time and may yet come back."""
        self.every = every
        self.closely = closely
        self.record: Watch | None = None
        """Takes the numbers that arrive between two windows."""
        self.between: Callable[[], None] | None = None
        """Called between two windows, when everything about the last one is recorded. May end the run."""
        self.flush = guard.protect("what was measured", self._flush) if guard is not None else self._flush
        self._observers: list[Observer] = []
        self._when_ended: list[Callable[[Ended], None]] = []
        self._when_changed: list[Callable[[bool], None]] = []
        self._when_began: list[Callable[[Ended], None]] = []
        self._when_rested: list[Callable[[int, Optimizer, Callable[[Gauges], None] | None], None]] = []
        self._when_flushed: list[Callable[[], None]] = []
        self._was = (True, True)
        """Was the last window sampled, and was it measured?"""
        self._wake = 0
        """Until this window nothing changes."""
        self._backwards = 0
        self._longest = LONGEST_ACCUMULATION
        self._counts: dict[type, int] = {}
        self._began = perf_counter()
        self._plain: deque[float] = deque(maxlen=_REMEMBERED)
        self._recorded: deque[float] = deque(maxlen=_REMEMBERED)
        self._origin = self._first_step = 0
        """The window and the step at which the newest training began."""
        self._starts = 1
        self._stretch = 1
        """How many times longer than planned the pauses are, to stay within the budget."""

    def follow(self, observers: list[Observer]) -> None:
        """Call these, in this order, from now on."""

        def overridden(name: str) -> list[Any]:
            kinds = (each for each in observers if getattr(type(each), name) is not getattr(Observer, name))
            return [getattr(each, name) for each in kinds]

        self._observers = observers
        self._when_ended, self._when_began = overridden("window_ended"), overridden("window_began")
        self._when_changed, self._when_rested = overridden("sampling_changed"), overridden("window_rested")
        self._when_flushed = overridden("flush")

    # How windows end.

    def step_taken(
        self,
        optimizer: Optimizer | None = None,
        grad_norm: Any = None,
        in_closure: bool = False,
        defer: Callable[[Gauges], None] | None = None,
        by_hand: str = "",
    ) -> None:
        """An optimizer stepped, or the program made a step by itself: the window ends."""
        ended = Ended(self.steps, self.sampled or self.measured, optimizer, grad_norm, in_closure, defer, by_hand)
        self._next_window(stepped=True)
        self._end(ended)

    def step_rested(self, optimizer: Optimizer, defer: Callable[[Gauges], None] | None) -> None:
        """An optimizer stepped while the watch rests: as little as possible happens."""
        step = self.steps
        self._next_window(stepped=True)
        for rested in self._when_rested:
            rested(step, optimizer, defer)
        if self.sampled or self.measured or (self.record is not None and self.record.scalars.expecting):
            self.timings = Timings()
            self._begin()
        if self.between is not None:
            self.between()

    def step_skipped(self) -> None:
        """A scaler left a step out: its window ends all the same."""
        ended = Ended(self.steps, self.sampled)
        self._backwards = 0
        self._next_window(stepped=False)
        self._end(ended)

    def backward_done(self) -> None:
        """A backward ended. It ends a window if there have been so many that no step seems to follow."""
        self._backwards += 1
        if self._backwards > self._longest:
            ended = Ended(self.steps, self.sampled)
            self._next_window(stepped=False)
            self._end(ended)

    def _end(self, ended: Ended) -> None:
        for window_ended in self._when_ended:
            window_ended(ended)
        self.losses.clear()
        self._begin()
        for window_began in self._when_began:
            window_began(ended)
        if self.between is not None:
            self.between()

    def _begin(self) -> None:
        """What was planned for this window holds from now on."""
        now = (self.sampled, self.measured)
        if now != self._was:
            self._was = now
            self._change_sampling(self.sampled)
        if self.record is not None:
            self.record.receive(self.sampled)

    def attend(self, on: bool) -> None:
        """Look at what modules do in a window that is not sampled, because of an evaluation; or no longer."""
        if self.attentive is not on:
            self.attentive = on
            if not self.sampled:
                self._change_sampling(on)

    def is_resting(self) -> bool:
        """Between sampled windows only the loss, the gradients and the steps matter."""
        return not self.sampled and not self.attentive

    def _change_sampling(self, sampled: bool) -> None:
        if sampled:
            self.flush()
        for changed in self._when_changed:
            changed(sampled)

    def _flush(self) -> None:
        for flush in self._when_flushed:
            flush()

    def finish(self) -> None:
        """The run has ended."""
        for observer in self._observers:
            observer.finish()
        if self.record is not None:
            self.record.receive_all()
        for observer in self._observers:
            observer.all_arrived()
        if self.record is not None:
            self.record.receive_all()

    # Which windows are recorded.

    def take_turns(self, optimizers: int) -> None:
        """So many optimizers step one after the other."""
        if optimizers != self.optimizers:
            self.optimizers, self._wake = optimizers, 0

    def begin_training(self) -> None:
        """Another optimizer begins: record what happens from now on as closely as the start of the run."""
        if self.number == self._origin or self._starts >= MOST_STARTS:
            return
        self._starts += 1
        self._origin, self._first_step, self._wake = self.number, self.steps, 0
        if self.sampled and self.measured:
            return
        self.sampled = self.measured = True
        self._counts.clear()
        self._was = (True, True)
        self._change_sampling(True)

    @property
    def is_survey(self) -> bool:
        """Is this window one in which models are looked through parameter by parameter?"""
        steps = self.steps - self._first_step
        return self.sampled and (steps < 5 or steps % 10 == 0)

    @property
    def typical_seconds(self) -> float:
        """How long a window usually takes; before there are plain ones, half of what recorded ones take."""
        if self._plain:
            return _median(self._plain)
        return _median(self._recorded) / 2 if self._recorded else 0.0

    def has_room(self, kind: type) -> bool:
        """May another event of this kind be written in this window?"""
        count = self._counts.get(kind, 0)
        self._counts[kind] = count + 1
        return count < EVENTS_PER_WINDOW

    def _next_window(self, stepped: bool) -> None:
        if stepped:
            self.steps += 1
            if self._backwards > 1:
                self._longest = max(LONGEST_ACCUMULATION, 2 * self._backwards)
            self._backwards = 0
        now = perf_counter()
        (self._recorded if self.sampled else self._plain).append(now - self._began)
        self._began = now
        self.number += 1
        if self.number >= self._wake:
            self._plan()

    def _plan(self) -> None:
        """Decide what this window is, and until when nothing changes."""
        was_sampled = self.sampled
        stretch, within = divmod(self._age, self._span)
        chosen = within < self._turns
        close = self.closely is not None and abs(self.steps - self.closely) <= _CLOSE
        self.sampled = close or (chosen and stretch % self._period == 0)
        self.measured = self.sampled and not self._is_sparing if self.every is None else chosen or self.sampled
        self._counts.clear()
        if was_sampled and not self.sampled:
            self._adapt()
        in_turn = self.every is not None and self.every > 1  # measured windows and others
        resting = not self.sampled and not (in_turn and self.measured) and self.closely is None
        ahead = self._span * (1 if in_turn else self._period)
        self._wake = self._origin + (self._age // ahead + 1) * ahead if resting else 0

    @property
    def _age(self) -> int:
        """How many windows ago the newest training began."""
        return self.number - self._origin

    @property
    def _turns(self) -> int:
        """Optimizers that take turns are recorded for a few turns in a row, or a period that divides evenly would
        always show the same one."""
        return 1 if self.optimizers <= 1 else 3 * self.optimizers

    @property
    def _planned(self) -> int:
        """The windows from one recorded stretch to the next, before the budget is asked."""
        return 10 if self._age < MIDDLE * self._turns else 100

    @property
    def _span(self) -> int:
        """Windows from one that may be chosen to the next."""
        return (self.every or 1) * self._turns

    @property
    def _period(self) -> int:
        """How many spans lie between two that are recorded."""
        return 1 if self._is_dense else max(1, self._planned * self._stretch // (self.every or 1))

    @property
    def _is_dense(self) -> bool:
        windows = DENSE if self._starts == 1 else max(FEWEST_DENSE, LATER_DENSE // self._starts)
        return self._age < windows * self._turns

    @property
    def _is_sparing(self) -> bool:
        """In the dense start only some of the recorded windows are measured too."""
        turns = self._turns
        measured = 5 if self._starts == 1 else 2
        return self._is_dense and self._age >= measured * turns and self._age % (5 * turns) >= turns

    def _adapt(self) -> None:
        """Lengthen the pauses if recorded windows take so much longer than plain ones that the budget is broken."""
        if len(self._plain) < _REMEMBERED or self._is_dense:
            return
        plain, recorded = _median(self._plain), _median(self._recorded)
        needed = (recorded - plain) / (BUDGET * plain * self._planned) if plain > 0 else 1.0
        self._stretch = max(1, min(100, round(needed)))


class Watch:
    """The state of one watched process. Events go to `sink` in the order they happened."""

    def __init__(
        self, sink: Callable[[Event], None], guard: Guard, places: Places, window: Window | None = None
    ) -> None:
        self.guard = guard
        self.places = places
        self.window = window or Window(guard=guard)
        self.window.record = self
        self.objects = Objects()
        self.scalars = Scalars()
        self.in_backward = False
        self.probe: FirstBatchProbe | None = None
        """In a trial: asks the model what it predicts for its first batch."""
        self.comparisons: Comparisons | None = None
        """In a trial: what the script compares by operators."""
        self._sink = sink
        self._thread = threading.get_ident()
        self._is_thread_known = False
        self._waiting: list[Event] = []
        """Events whose numbers have not arrived, and all later ones."""
        self._in_backward: list[Event] = []
        """What happened inside the backward that is running: it is recorded after it."""

    def is_listening(self) -> bool:
        """Only the training thread is watched, and not what a backward recomputes."""
        return not self.in_backward and threading.get_ident() == self._thread

    def is_training_thread(self) -> bool:
        """An optimizer may also step inside a backward, from a hook on the gradient."""
        return threading.get_ident() == self._thread

    def is_inside_backward(self) -> bool:
        """Is a backward running? What it calls is not a backward of the user's."""
        return self.in_backward

    def may_begin_backward(self) -> bool:
        """The thread of the first backward is the one that trains; is this that thread, and no backward running?"""
        if not self._is_thread_known:
            self._thread, self._is_thread_known = threading.get_ident(), True
        return not self.in_backward and threading.get_ident() == self._thread

    def begin_backward(self) -> None:
        """From now on events wait for its end."""
        self.in_backward = True
        self._in_backward.clear()

    def end_backward(self) -> list[Event]:
        """It ended. Returns what happened inside, to be recorded after it."""
        self.in_backward = False
        inside = self._in_backward
        if inside:
            self._in_backward = []
        return inside

    def emit(self, event: Event) -> None:
        """Record an event of a sampled window, unless the window has had its share of them."""
        if self.window.sampled and self.window.has_room(type(event)):
            self.tell(event)

    def tell(self, event: Event) -> None:
        """Record an event in every kind of window."""
        if self.in_backward:
            self._in_backward.append(event)
        elif self._waiting or (self.scalars.expecting and slots_of(event)):
            self._waiting.append(event)
        else:
            self._sink(event)

    def note(self, text: str) -> None:
        """Record what could not be watched."""
        self.tell(Note(step=self.window.steps, text=text))

    def receive(self, sampled: bool) -> None:
        """A window began: record what has waited for numbers that arrived."""
        if self.scalars.expecting or self._waiting:
            self.scalars.turn(sampled)
            self._write_arrived()

    def receive_all(self) -> None:
        """The run ended: record what still waits for its numbers."""
        self.scalars.finish()
        self._write_arrived()

    def _write_arrived(self) -> None:
        while self._waiting and all(slot.arrived for slot in slots_of(self._waiting[0]).values()):
            self._sink(filled(self._waiting.pop(0)))

    def announce_models(self) -> None:
        """Record models that are new, and those whose parameters were replaced."""
        for model in self.objects.models():
            keys = frozenset(id(parameter) for _, parameter in model.parameters())
            if keys != model.announced and (keys or model.strays()):
                model.announced = keys
                self.objects.learn_names(model)
                self.tell(model.seen(self.window.steps))

    def announce_optimizer(self, optimizer: Optimizer) -> None:
        """Record an optimizer as it is now."""
        if self.objects.may_tell(optimizer):
            self.tell(self.objects.optimizer_seen(optimizer, self.window.steps, self.places.here()))

    def model_around(self, part: nn.Module) -> Model:
        """The known model that a module is a part of; else the module itself."""
        for model in self.objects.models():
            root = model.module
            if root is not None and any(module is part for module in root.modules()):
                return model
        return self.objects.model(part)


class Summary(Observer):
    """Records of every window its loss, and of recorded ones also rates, memory and seconds."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._between: dict[str, list[tuple[int, float]]] = {}
        self._memory_read = -_MEMORY_EVERY
        """By optimizer: steps and losses of windows that were not recorded."""

    def window_ended(self, ended: Ended) -> None:
        """Record its gauges, or its loss together with others."""
        watch, window = self._watch, self._watch.window
        loss = _loss_of(window.losses, ended.in_closure)
        if ended.recorded and (loss is not None or ended.grad_norm is not None or ended.defer is not None):
            (ended.defer or watch.tell)(self._gauges(ended.step, ended.optimizer, loss, ended.grad_norm, ended.by_hand))
        window.timings = Timings()
        if ended.recorded:
            self.finish()
        elif label := ended.by_hand or (ended.optimizer is not None and watch.objects.optimizer(ended.optimizer)):
            self._collect(ended.step, label, loss)

    def window_rested(self, step: int, optimizer: Optimizer, defer: Callable[[Gauges], None] | None) -> None:
        """The same in less time."""
        losses = self._watch.window.losses
        loss = losses[0] if len(losses) == 1 else _loss_of(losses, False)
        if defer is not None:
            defer(self._gauges(step, optimizer, loss, None))
        elif losses:
            self._collect(step, self._watch.objects.optimizer(optimizer), loss)
        losses.clear()

    def finish(self) -> None:
        """Record the losses collected so far."""
        collected, self._between = self._between, {}
        for label, pairs in collected.items():
            steps, values = zip(*((step, float(f"{loss:.6g}")) for step, loss in pairs), strict=True)
            self._watch.tell(LossesBetween(step=steps[-1], optimizer=label, steps=steps, values=values))

    def _collect(self, step: int, label: str, loss: float | Slot | None) -> None:
        """Losses of windows that are not recorded become one event for each optimizer."""
        if type(loss) is float:
            collected = self._between.setdefault(label, [])
            collected.append((step, loss))
            if len(collected) >= _MOST_BETWEEN or len(self._between) >= _MOST_WAITING:
                self.finish()

    def _gauges(
        self, step: int, optimizer: Optimizer | None, loss: float | Slot | None, grad_norm: Any, by_hand: str = ""
    ) -> Gauges:
        watch, timings = self._watch, self._watch.window.timings
        wants_memory = watch.window.is_survey or step - self._memory_read >= _MEMORY_EVERY
        if wants_memory:
            self._memory_read = step
        return Gauges(
            step=step,
            optimizer=watch.objects.optimizer(optimizer) if optimizer is not None else by_hand,
            loss=loss,  # type: ignore[arg-type]
            grad_norm=grad_norm,
            rates=rates(optimizer) if optimizer is not None else (),
            memory=_memory_used() if wants_memory else None,
            seconds=timings.seconds,
            data_seconds=timings.data or None,
            forward_seconds=timings.forward or None,  # known in windows in which modules are looked at
            backward_seconds=timings.backward,
            step_seconds=timings.step or None,  # and where the beginning of a step is
        )


def _loss_of(losses: list[float | Slot], in_closure: bool) -> float | Slot | None:
    """What the step minimises: the sum of its backwards, as micro-batches hold shares of it.

    A closure is evaluated again and again for one step, and a slot cannot be added before it has arrived: there
    the last value counts.
    """
    numbers = [loss for loss in losses if isinstance(loss, float)]
    if numbers and not in_closure:
        return sum(numbers)
    return losses[-1] if losses else None


def _memory_used() -> int | None:
    """Bytes allocated on the device if there is one in use, else the resident memory of the process."""
    if has_cuda():
        return torch.cuda.memory_allocated()
    if sys.platform != "linux":
        return None
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return None


def _median(values: deque[float]) -> float:
    return sorted(values)[len(values) // 2]
