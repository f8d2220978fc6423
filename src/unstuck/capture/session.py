"""A watch from its first to its last event: waits for torch, attaches, and takes everything away again."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from unstuck.capture.guard import Guard
from unstuck.capture.importing import after_import
from unstuck.capture.places import Places
from unstuck.events import Event, Note
from unstuck.record import Writer

if TYPE_CHECKING:
    from unstuck.capture.attach import Attachment


class TorchMissing(Exception):
    """torch is needed here and is not installed."""


class Session:
    """Watches this process. torch is never imported by us: observers attach when the program imports it."""

    def __init__(self, sink: Callable[[Event], None]) -> None:
        self._sink = sink
        self._attachment: Attachment | None = None
        self._cancel: Callable[[], None] | None = None
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

    def remove(self) -> None:
        """End, and leave torch as it was."""
        if self._cancel is not None:
            self._cancel()
        if self._attachment is not None:
            self._attachment.remove()

    def _attach(self) -> None:
        from unstuck.capture.attach import Attachment
        from unstuck.capture.watch import Watch

        self._attachment = Attachment(Watch(self._sink, self.guard, self.places))


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
