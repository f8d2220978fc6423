"""One watch inside a running program, from its first event to its report."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from unstuck.capture import Session
from unstuck.capture.launch.run_events import RunEvents
from unstuck.capture.places import Places
from unstuck.record import Record, RecordError, Writer, read
from unstuck.record.runs import new_run_folder_somewhere, remove_run
from unstuck.watch.display import Bundle, Display
from unstuck.watch.forwarding import Forwarding, Together
from unstuck.watch.monitor import Monitor, matter
from unstuck.watch.series import Row, optimizers_of, rows

if TYPE_CHECKING:
    from unstuck.findings import Diagnosis
    from unstuck.findings.result import Result

Callback = Callable[["Diagnosis"], object]


class Options:
    """What `unstuck.watch` was asked for."""

    def __init__(
        self,
        every: int | None,
        on_finding: Callback | None,
        stop_on: str | None,
        record: Any,
        name: str,
        show: bool,
        trackers: Sequence[str],
    ) -> None:
        self.every = every
        self.on_finding = on_finding
        self.stop_on = stop_on
        self.record = record
        self.name = name
        self.show = show
        self.trackers = trackers


class Engine:
    """Records and judges until `end`. Holds on to nothing of the program's but its callback."""

    def __init__(self, things: tuple[Any, ...], options: Options, caller: FrameType) -> None:
        self._options = options
        self._process = os.getpid()
        self._things = [weakref.ref(thing) for thing in things if thing is not None]
        self._parameters: frozenset[int] = frozenset()
        self._own_parameters()
        self._error_of_callback = False
        self._judged: tuple[int, Result] | None = None
        self.script, source = script_around(caller)
        """Empty in a notebook."""
        name = options.name or self.script or "notebook"
        self.path, moved = _place_for(options.record, name)
        self._writer = Writer(self.path)
        if options.record is not None and self._writer.warning:
            raise RecordError(f"{self._writer.warning.removesuffix('.')}; choose another place with record=.")
        self._monitor = Monitor(self._writer.path, self._report, options.stop_on)
        self._forwarding = Forwarding(options.trackers, self._writer.path, self._say) if options.trackers else None
        self.display = Display(self.bundle)
        others = [self.display] if self._forwarding is None else [self._forwarding, self.display]
        self._session = Session(self._writer, every=options.every, listener=Together(*others, self._monitor))
        self._run_events = RunEvents(self._writer, self._session)
        arguments = tuple(sys.argv[1:]) if self.script else ()
        self._run_events.begin(script=self.script or name, arguments=arguments, source=source, watched="watch")
        self._session.install()
        for thing in things:
            if hasattr(thing, "param_groups"):
                self._session.announce_optimizer(thing)
        self.ended = False
        self._say(moved)

    @property
    def steps(self) -> int:
        """How many optimizer steps were taken under this watch."""
        return self._session.steps

    def end(self, error: BaseException | None = None) -> None:
        """Stop watching, pass on what is new, and show the report. A second call does nothing."""
        if self.ended or os.getpid() != self._process:
            return
        self.ended = True
        self._session.remove()
        self._run_events.end(error or self._monitor.stopped)
        self._writer.close()
        self._say(self._writer.warning or "")
        self._session.guard.protect("the report", self._conclude)()
        self._session.guard.protect("the display", self.display.update)()
        if self._forwarding is not None:
            self._session.guard.protect("forwarding", self._forwarding.end)()

    def abandon(self) -> None:
        """Stop watching without a word: nothing refers to this watch any more, and another one has begun."""
        self._options.show, self._options.on_finding = False, None
        if self._forwarding is not None:
            self._forwarding.abandon()
        self.end()

    def forget(self) -> None:
        """Stop watching and leave nothing: the program is only read again by a process that it has started."""
        self.abandon()
        remove_run(self.path)

    def result(self) -> Result:
        """The run so far, judged, without what is known to concern other models and optimizers."""
        from unstuck.result import result_of

        record = self.record()
        if self._judged is None or self._judged[0] != len(record.events):
            result = result_of(record, self.path, "watch", so_far=None if self.ended else self.steps)
            self._judged = (len(record.events), self._without_others(result, record))
        return self._judged[1]

    def record(self) -> Record:
        """The record as it is now."""
        if not self.ended:
            self._session.flush()
        return read(self._writer.path)

    def bundle(self) -> Bundle:
        """What a notebook shows: the essence of the page, and one line where there is no HTML."""
        from unstuck.view.notebook import essence

        found = ", ".join(dict.fromkeys(one.lead.code for one in self.result().verdict.diagnoses)) or "nothing found"
        state = "ended" if self.ended else "watching"
        steps = f"{self.steps:,} step" + ("" if self.steps == 1 else "s")
        line = f"<unstuck.watch: {state}, {steps}, {found}>"
        return {"text/plain": line, "text/html": essence(self.result(), self.record(), self.path)}

    def rows(self) -> list[Row]:
        """The numbers on record: all, or those of the optimizers that hold what was given to `watch`."""
        record = self.record()
        own = optimizers_of(record, self._own_parameters()) if self._things else None
        return sorted(rows(record, own or None), key=lambda row: row.step)

    def _own_parameters(self) -> frozenset[int]:
        """Identities of the parameters of the given model and optimizer, now and at the beginning."""
        alive = (reference() for reference in self._things)
        self._parameters |= {
            id(parameter) for thing in alive if thing is not None for parameter in _parameters_of(thing)
        }
        return self._parameters

    def _without_others(self, result: Result, record: Record) -> Result:
        if not self._things:
            return result
        setup, own = record.setup(), self._own_parameters()
        facts = {seen.model: seen.parameters for seen in setup.models}
        facts |= {seen.optimizer: seen.parameters for seen in setup.optimizers}
        others = {
            ("module", label) for label, parameters in facts.items() if not any(fact.key in own for fact in parameters)
        }
        others |= {("optimizer", label) for _, label in others}
        found = result.verdict.diagnoses
        own_diagnoses = tuple(d for d in found if (d.lead.subject.kind, d.lead.subject.name) not in others)
        return msgspec.structs.replace(result, verdict=msgspec.structs.replace(result.verdict, diagnoses=own_diagnoses))

    def _conclude(self) -> None:
        for diagnosis in self.result().verdict.diagnoses:
            if not any(matter(finding) in self._monitor.reported for finding in diagnosis.findings):
                self._call(diagnosis)
        if self._options.show:
            from unstuck.report import terminal, text
            from unstuck.watch.announce import retractions

            stream = _stderr()
            if stream is not None:
                terminal.show(text.render(self.result(), terminal.columns_of(stream)), stream)
                stream.flush()
                for sentence in retractions(self._monitor.announced, self.result().verdict.diagnoses):
                    self._say(sentence)

    def _report(self, diagnosis: Diagnosis) -> None:
        """A finding was made while the run goes on."""
        stream = _stderr()
        if self._options.show and stream is not None:
            from unstuck.watch.announce import announce

            announce(diagnosis, stream)
        self._call(diagnosis)

    def _call(self, diagnosis: Diagnosis) -> None:
        """The callback is the user's: what it raises is printed, once, and the training goes on."""
        if self._options.on_finding is None:
            return
        try:
            with _as_the_program():
                self._options.on_finding(diagnosis)
        except Exception as error:
            if self._error_of_callback:
                return
            self._error_of_callback = True
            import traceback

            traceback.print_exception(error)
            self._say("the training goes on, though on_finding raised this error; the next ones are not printed.")

    def _say(self, sentence: str) -> None:
        stream = _stderr()
        if sentence and stream is not None:
            print(f"unstuck: {sentence}", file=stream)


def _parameters_of(thing: Any) -> Iterable[Any]:
    """The parameters of a model or an optimizer."""
    groups = getattr(thing, "param_groups", None)
    return thing.parameters() if groups is None else [parameter for group in groups for parameter in group["params"]]


def _stderr() -> TextIO | None:
    """Asked for each time: a notebook has another one in every cell."""
    return sys.stderr


def _place_for(record: Any, name: str) -> tuple[Path, str]:
    return new_run_folder_somewhere(name) if record is None else (Path(record).absolute(), "")


def script_around(caller: FrameType) -> tuple[str, bytes | None]:
    """The script that python was started with and its text, if it is the user's own; nothing in a notebook."""
    places = Places()
    frame: FrameType | None = caller
    while frame is not None:
        file = frame.f_code.co_filename
        if frame.f_globals.get("__name__") == "__main__" and places.is_users(frame.f_code) and os.path.isfile(file):
            return _as_typed(file), Path(file).read_bytes()
        frame = frame.f_back
    return "", None


def _as_typed(file: str) -> str:
    typed = sys.argv[0] if sys.argv else ""
    try:
        return typed if os.path.samefile(typed, file) else file
    except OSError:
        return file


def _as_the_program() -> contextlib.AbstractContextManager[object]:
    """Our observers are invisible to subclasses of tensors and to function modes; a function of the user's is not."""
    enabled = getattr(getattr(sys.modules.get("torch"), "_C", None), "_EnableTorchFunction", contextlib.nullcontext)
    context: contextlib.AbstractContextManager[object] = enabled()
    return context
