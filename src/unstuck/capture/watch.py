"""What all observers share: the clock, the call sites, the known objects, and the way into the record."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from unstuck.capture.clock import Clock
from unstuck.capture.detect.carried import Carried
from unstuck.capture.guard import Guard
from unstuck.capture.measure.order import Order
from unstuck.capture.measure.scalars import Scalars, Slot, filled, slots_of
from unstuck.capture.measure.timings import Timings
from unstuck.capture.objects import Model, Objects
from unstuck.capture.places import Places
from unstuck.events import Event, Note

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from unstuck.capture.observers.batches import Batches
    from unstuck.capture.observers.evaluations import Evaluations
    from unstuck.capture.preview.first_batch_probe import FirstBatchProbe


class Watch:
    """The state of one watched process. Events go to `sink` in the order they happened."""

    def __init__(self, sink: Callable[[Event], None], guard: Guard, places: Places, clock: Clock | None = None) -> None:
        self.guard = guard
        self.places = places
        self.clock = clock or Clock()
        self.when_sampling_changes: Callable[[bool], None] = lambda sampled: None
        self.flush: Callable[[], None] = lambda: None
        """Tell what has been measured and kept so far."""
        self.after_window: Callable[[], None] = lambda: None
        """Called between two steps, when everything about the window has been told."""
        self._was = (True, True)
        """Was the last window sampled, and was it measured?"""
        self.objects = Objects()
        self.scalars = Scalars()
        self.timings = Timings()
        self.order = Order()
        self.in_backward = False
        self.attentive = False
        """Is an evaluation being looked at, in a window that need not be sampled?"""
        self.batches: Batches | None = None
        self.evaluations: Evaluations | None = None
        self.probe: FirstBatchProbe | None = None
        """In a trial: asks the model what it predicts for its first batch."""
        self.synced: bool | None = None
        """Under DistributedDataParallel: will the next backward reduce the gradients over the ranks?"""
        self.carried = Carried()
        self.losses: list[float | Slot] = []
        """Of the backwards of this window since gradients were last cleared."""
        self._sink = sink
        self._thread = threading.get_ident()
        self.thread_settled = False
        self._waiting: list[Event] = []
        self.held: list[Event] | None = None
        """What happened inside the backward under way: it is told after it."""

    def is_listening(self) -> bool:
        """Only the training thread is watched, and not what a backward recomputes."""
        return not self.in_backward and threading.get_ident() == self._thread

    def is_training_thread(self) -> bool:
        """An optimizer may also step inside a backward, from a hook on the gradient."""
        return threading.get_ident() == self._thread

    def is_resting(self) -> bool:
        """Between sampled windows only the loss, the gradients and the steps matter."""
        return not self.clock.sampled and not self.attentive

    def is_inside_backward(self) -> bool:
        """Is a backward running? What it calls is no backward of the user's."""
        return self.in_backward

    def settle_thread(self) -> None:
        """The thread of the first backward is the one that trains."""
        if not self.thread_settled:
            self._thread, self.thread_settled = threading.get_ident(), True

    def emit(self, event: Event) -> None:
        """Record an event of a sampled window, unless the window has had its share of them."""
        if self.clock.sampled and self.clock.has_room(type(event)):
            self.tell(event)

    def tell(self, event: Event) -> None:
        """Record an event whatever the window."""
        if self.in_backward:
            self.held = self.held or []
            self.held.append(event)
        elif self._waiting or (self.scalars.expecting and slots_of(event)):
            self._waiting.append(event)
        else:
            self._sink(event)

    def note(self, text: str) -> None:
        """Tell what could not be watched."""
        self.tell(Note(step=self.clock.steps, text=text))

    def release(self, first: Event | None) -> None:
        """The backward ended."""
        held, self.held = self.held, None
        if first is not None:
            self.tell(first)
        for event in held or ():
            self.tell(event)

    def turn(self) -> None:
        """A window ended."""
        sampled = self.clock.sampled
        now = (sampled, self.clock.measured)
        if now != self._was:
            self._was = now
            self.when_sampling_changes(sampled)
        if self.scalars.expecting or self._waiting:
            self.scalars.turn(sampled)
            self._write_arrived()

    def finish(self) -> None:
        """The run ended: write what still waits for its numbers."""
        self.scalars.finish()
        self._write_arrived()

    def _write_arrived(self) -> None:
        while self._waiting and all(slot.arrived for slot in slots_of(self._waiting[0]).values()):
            self._sink(filled(self._waiting.pop(0)))

    def announce_models(self) -> None:
        """Tell of models not told yet, and of those whose parameters were replaced."""
        for model in self.objects.models():
            keys = frozenset(id(parameter) for _, parameter in model.parameters())
            if keys != model.announced and (keys or model.strays()):
                model.announced = keys
                self.objects.learn_names(model)
                self.tell(model.seen(self.clock.steps))

    def announce_optimizer(self, optimizer: Optimizer) -> None:
        """Tell of an optimizer as it is now."""
        if self.objects.may_tell(optimizer):
            self.tell(self.objects.optimizer_seen(optimizer, self.clock.steps, self.places.here()))

    def model_around(self, part: nn.Module) -> Model:
        """The known model that a module is a part of; else the module itself."""
        for model in self.objects.models():
            root = model.module
            if root is not None and any(module is part for module in root.modules()):
                return model
        return self.model(part)

    def model(self, module: nn.Module) -> Model:
        """The model a module is."""
        return self.objects.model(module)
