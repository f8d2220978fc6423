"""A watch from its first to its last event: waits for torch, attaches, and takes everything away again."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from unstuck.capture.guard import Guard
from unstuck.capture.importing import after_import
from unstuck.capture.named import NamedLoss, when_imported
from unstuck.capture.places import Places
from unstuck.events import Event, Note
from unstuck.record import Writer

if TYPE_CHECKING:
    from unstuck.capture.attach import Attachment


class TorchMissing(Exception):
    """torch is needed here and is not installed."""


class Session:
    """Watches this process. torch is never imported by us: observers attach when the program imports it."""

    def __init__(self, sink: Callable[[Event], None], losses: Sequence[NamedLoss] = ()) -> None:
        self._sink = sink
        self._attachment: Attachment | None = None
        self._cancel: Callable[[], None] | None = None
        self._losses = losses
        self._found: list[tuple[ModuleType, NamedLoss]] = []
        """Losses that were defined before torch was imported."""
        self._waiting: list[Callable[[], None]] = []
        self.places = Places()
        self.guard = Guard(lambda text: sink(Note(step=self.steps, text=text)))

    @property
    def steps(self) -> int:
        """How many optimizer steps were taken."""
        return self._attachment.watch.clock.steps if self._attachment else 0

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
        from unstuck.capture.attach import Attachment
        from unstuck.capture.watch import Watch

        self._attachment = Attachment(Watch(self._sink, self.guard, self.places))
        for module, loss in self._found:
            self._attachment.watch_loss(module, loss.name)


@contextlib.contextmanager
def watching(record_path: str | os.PathLike[str]) -> Iterator[Session]:
    """Record what the `with` block trains. A crash inside is recorded and passes on."""
    from unstuck.capture.story import Story

    writer = Writer(record_path)
    session = Session(writer)
    story = Story(writer, session)
    story.begin(script=sys.argv[0] if sys.argv else "", arguments=tuple(sys.argv[1:]), source=None)
    session.install()
    try:
        yield session
    except BaseException as error:
        session.remove()
        story.end(error)
        raise
    else:
        session.remove()
        story.end(None)
    finally:
        writer.close()
