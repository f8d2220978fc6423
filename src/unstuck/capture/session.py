"""A watch from its first to its last event: waits for torch, attaches, and takes everything away again."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from unstuck.capture.guard import Guard
from unstuck.capture.launch.importing import after_import
from unstuck.capture.observers.named import NamedLoss, when_imported
from unstuck.capture.places import Places
from unstuck.events import Event, Note
from unstuck.record import Writer

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from unstuck.capture.preview.first_batch_probe import FirstBatchProbe
    from unstuck.capture.torch_hooks.attach import Attachment
    from unstuck.capture.trial.comparisons import Comparisons
    from unstuck.capture.window import Window


class TorchMissing(Exception):
    """torch is needed here and is not installed."""


class RunStopped(SystemExit):
    """Raised in the training loop to end a hopeless run. Like any `SystemExit` it lets `finally` blocks run."""

    CODE = 4
    """What the process exits with."""

    def __init__(self, reason: str) -> None:
        super().__init__(self.CODE)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Listener(Protocol):
    """Follows a run while it goes on."""

    def heard(self, event: Event) -> None:
        """An event was recorded."""

    def window_ended(self) -> None:
        """In the training thread, between two steps. May raise `RunStopped`."""


class Session:
    """Watches this process. torch is never imported by us: observers attach when the program imports it.

    `every` asks for every Nth window to be recorded, `closely` for all those around one step; `stage` is where
    the program runs in a copy of the directory tree.
    """

    def __init__(
        self,
        sink: Callable[[Event], None],
        losses: Sequence[NamedLoss] = (),
        every: int | None = None,
        listener: Listener | None = None,
        closely: int | None = None,
        stage: str = "",
        probe: FirstBatchProbe | None = None,
        comparisons: Comparisons | None = None,
    ) -> None:
        self._sink = sink if listener is None else _both(sink, listener.heard)
        self._every, self._closely = every, closely
        self._listener = listener
        self._probe, self._comparisons = probe, comparisons
        self._attachment: Attachment | None = None
        self._cancel: Callable[[], None] | None = None
        self._losses = losses
        self._found: list[tuple[ModuleType, NamedLoss]] = []
        """Losses that were defined before torch was imported."""
        self._waiting: list[Callable[[], None]] = []
        self.places = Places(stage)
        self.guard = Guard(self.note)

    @property
    def steps(self) -> int:
        """How many optimizer steps were taken."""
        return self._attachment.watch.window.steps if self._attachment else 0

    def note(self, text: str) -> None:
        """Record what could not be watched."""
        self._sink(Note(step=self.steps, text=text))

    @property
    def window(self) -> Window:
        """The current one, once torch has been imported."""
        assert self._attachment is not None
        return self._attachment.watch.window

    def flush(self) -> None:
        """Record what has been measured so far."""
        if self._attachment is not None:
            self._attachment.watch.window.flush()

    def install(self) -> None:
        """Begin, now or as soon as torch is imported."""
        attach = self.guard.protect("the import of torch", self._attach)
        if "torch" in sys.modules:
            attach()
        else:
            self._cancel = after_import("torch", attach)
        for loss in self._losses:
            defined = self.guard.protect("a loss", partial(self.loss_defined, loss))
            self._waiting += when_imported(loss, defined)

    def loss_defined(self, loss: NamedLoss, module: ModuleType) -> None:
        """A loss that is to be recorded has been defined in this module."""
        loss.seen = True
        if self._attachment is None:
            self._found.append((module, loss))
        else:
            self._attachment.watch_loss(module, loss.name)

    def announce_optimizer(self, optimizer: Optimizer) -> None:
        """Record an optimizer that was built before the watch began, in case it never steps."""
        if self._attachment is not None:
            self.guard.protect("an optimizer", self._attachment.watch.announce_optimizer)(optimizer)

    def remove(self) -> None:
        """End, and leave torch as it was."""
        for call_off in (self._cancel, *self._waiting):
            if call_off is not None:
                call_off()
        for loss in self._losses:
            if not loss.seen:
                self._sink(Note(step=self.steps, text=f"{loss.target} was never imported, so it was not recorded."))
        if self._attachment is not None:
            self._attachment.remove()

    def _attach(self) -> None:
        from unstuck.capture.torch_hooks.attach import Attachment
        from unstuck.capture.torch_hooks.internals import left_out
        from unstuck.capture.window import Watch, Window

        for sentence in left_out():
            self.note(sentence)
        window = Window(self._every, self._closely, self.guard)
        if self._listener is not None:
            window.between = self.guard.protect("the run so far", self._listener.window_ended)
        watch = Watch(self._sink, self.guard, self.places, window)
        watch.probe, watch.comparisons = self._probe, self._comparisons
        self._attachment = Attachment(watch)
        for module, loss in self._found:
            self._attachment.watch_loss(module, loss.name)


def _both(sink: Callable[[Event], None], heard: Callable[[Event], None]) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        sink(event)
        heard(event)

    return tell


@contextlib.contextmanager
def watching(record_path: str | os.PathLike[str], every: int | None = None) -> Iterator[Session]:
    """Record what the `with` block trains. A crash inside is recorded and passes on."""
    writer = Writer(record_path)
    try:
        with recording_to(
            writer, every, script=sys.argv[0] if sys.argv else "", arguments=tuple(sys.argv[1:])
        ) as session:
            yield session
    finally:
        writer.close()


@contextlib.contextmanager
def recording_to(
    sink: Callable[[Event], None],
    every: int | None = None,
    *,
    script: str = "",
    arguments: tuple[str, ...] = (),
    watched: str = "run",
) -> Iterator[Session]:
    """Give `sink` the events of what the `with` block trains, from the beginning of the run to its end."""
    from unstuck.capture.launch.run_events import RunEvents

    session = Session(sink, every=every)
    run = RunEvents(sink, session)
    run.begin(script=script, arguments=arguments, source=None, watched=watched)
    session.install()
    try:
        yield session
    except BaseException as error:
        session.remove()
        run.end(error)
        raise
    else:
        session.remove()
        run.end(None)
