"""What all observers share: the window, the call sites, the known objects, and the way into the record."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from unstuck.capture.guard import Guard
from unstuck.capture.measure.scalars import Scalars, filled, slots_of
from unstuck.capture.objects import Model, Objects
from unstuck.capture.places import Places
from unstuck.capture.window import Window
from unstuck.events import Event, Note

if TYPE_CHECKING:
    from unstuck.capture.preview.first_batch_probe import FirstBatchProbe


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
        """Record an event whatever the window."""
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
