"""Forwards one run to one tracker: a process that follows the record, so that the run waits for no tracker.

`watch/forwarding.py` starts it. It is not a child of the run, ignores the signals that end a job, and outlives a run
that is killed by as long as it takes to hand over the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import msgspec

from unstuck.events import Activations, Event, Histograms, LossesBetween, TensorsNamed
from unstuck.findings import Diagnosis
from unstuck.findings.run_summary import steps_on_record
from unstuck.record import Record
from unstuck.record.in_use import is_locked
from unstuck.record.pace import Pace
from unstuck.record.tail import Tail
from unstuck.result import result_of
from unstuck.rule import load_witnesses
from unstuck.trackers import PREFIX, Found, Place, Run, Tracker, module_of
from unstuck.watch.series import OF_STEP, Row, Rows

LAYERS = ("grad_norm", "weight_norm", "update_ratio", "dead", "saturated")
"""What is forwarded of single tensors and activations."""
MOST_TENSORS = 200
"""Of one optimizer: a tracker draws a chart for each. Of more, the largest."""
DENSE = 2000
"""Steps of which every loss is forwarded. Trackers draw about a thousand points, and take a while for each."""
SHARE = 0.05
"""Of a core's time that handing over may take while the run goes on."""
OVERALL = (*OF_STEP, "lr", "loss_scale")
EVERY = 1.0
"""Seconds between two looks."""
LONGEST_END = 600.0
"""Seconds after the end of a run in which a tracker has to take the rest."""
NICE = 5
LONGEST_MESSAGE = 2**20

Numbers = dict[int, dict[str, float]]


class Named:
    """What the numbers and histograms of a record are called in a tracker."""

    def __init__(self) -> None:
        self._rows = Rows()
        self._first: str | None = None
        self._columns: dict[str, tuple[str, ...]] = {}
        self._shown: dict[str, frozenset[str]] = {}

    def numbers(self, events: Sequence[Event]) -> Numbers:
        """The numbers of these events, which follow the last ones, by step."""
        found: Numbers = {}
        for event in events:
            self._note(event)
            for row in self._rows.of(_thinned(event)):
                name = self._name(row)
                if name:
                    found.setdefault(row.step, {})[name] = row.value
        return dict(sorted(found.items()))

    def histograms(self, events: Sequence[Event]) -> Iterator[tuple[int, str, list[float], list[int]]]:
        """Step, name, edges and counts of every histogram in these events, once `numbers` has seen them."""
        for event in events:
            if isinstance(event, Activations):
                self._columns[""] = event.names
            if isinstance(event, Histograms):
                key = "" if event.of == "activations" else event.optimizer
                for name, counts in zip(self._columns.get(key, ()), event.counts, strict=False):
                    if (key == "" or name in self._shown.get(key, ())) and any(counts[1:]):
                        edges, inner = _inner(event.lowest, counts)
                        yield event.step, self._of(f"{PREFIX}_{event.of}/{name}", event.optimizer), edges, inner

    def _note(self, event: Event) -> None:
        if isinstance(event, TensorsNamed):
            ranked = sorted(
                zip(event.names, event.dimensions, event.sizes, strict=True),
                key=lambda one: (-min(one[1], 2), -one[2]),
            )
            self._columns[event.optimizer] = event.names
            self._shown[event.optimizer] = frozenset(name for name, _, _ in ranked[:MOST_TENSORS])

    def _name(self, row: Row) -> str:
        """Empty for what is not forwarded."""
        is_group = row.layer.startswith("group ")
        if not row.layer or (is_group and row.gauge == "lr"):
            name = f"{PREFIX}/{row.gauge}" + (f"/{row.layer}" if row.layer else "")
            return self._of(name, row.optimizer) if row.gauge in OVERALL else ""
        if row.gauge not in LAYERS or (row.optimizer and row.layer not in self._shown.get(row.optimizer, ())):
            return ""
        return self._of(f"{PREFIX}_{row.gauge}/{row.layer}", row.optimizer)

    def _of(self, name: str, optimizer: str) -> str:
        """The first optimizer needs no mention: most runs have one."""
        self._first = self._first or optimizer
        return name if optimizer in ("", self._first) else f"{name} ({optimizer})"


def _thinned(event: Event) -> Event:
    """Late in a run only the lowest and the highest of the losses between two measured steps."""
    if not isinstance(event, LossesBetween) or not event.steps or event.steps[0] < DENSE:
        return event
    known = [(value, step) for step, value in zip(event.steps, event.values, strict=True) if value is not None]
    chosen = sorted({min(known), max(known)}, key=lambda pair: pair[1]) if known else []
    return msgspec.structs.replace(
        event, steps=tuple(step for _, step in chosen), values=tuple(value for value, _ in chosen)
    )


def _inner(lowest: int, counts: Sequence[int]) -> tuple[list[float], list[int]]:
    """The bins that hold something, without that of zeros, and their edges."""
    used = [index for index, count in enumerate(counts) if index and count]
    inner = range(used[0], used[-1] + 1)
    return [2.0 ** (lowest + index - 1) for index in (*inner, inner[-1] + 1)], [counts[index] for index in inner]


class Findings:
    """What is found while the run goes on: a finding counts when two judgements in a row have made it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pace = Pace()
        self._suspected: set[Any] = set()
        self._steps: dict[Any, int] = {}
        self._judged = 0

    def fresh(self, record: Record) -> list[Found]:
        """Of a run that goes on: what has not been returned before."""
        if len(record.events) == self._judged or not self._pace.is_due():
            return []
        load_witnesses()  # once, so that the first look is not taken for a slow one
        began = time.process_time()
        last = steps_on_record(record)
        found = {_matter(one): one for one in result_of(record, self._folder, "run", so_far=last).verdict.diagnoses}
        confirmed = [key for key in found if key in self._suspected and key not in self._steps]
        self._suspected = set(found)
        self._judged = len(record.events)
        self._steps |= dict.fromkeys(confirmed, last)
        self._pace.spent(time.process_time() - began)
        return [_found(found[key], last) for key in confirmed]

    def final(self, record: Record) -> tuple[list[Found], list[Found]]:
        """Of one that has ended: all findings, and those that have not been returned before."""
        last = steps_on_record(record)
        diagnoses = result_of(record, self._folder, "run").verdict.diagnoses
        everything = [_found(one, self._steps.get(_matter(one), last)) for one in diagnoses]
        return everything, [
            found for one, found in zip(diagnoses, everything, strict=True) if _matter(one) not in self._steps
        ]


def _matter(diagnosis: Diagnosis) -> tuple[str, str, str]:
    lead = diagnosis.lead
    return (lead.code, lead.subject.kind, lead.subject.name)


def _found(diagnosis: Diagnosis, step: int) -> Found:
    lead = diagnosis.lead
    return Found(
        code=lead.code,
        name=lead.name,
        severity=diagnosis.severity.value,
        message=lead.message,
        step=step,
        place=str(lead.place) if lead.place else "",
        change=lead.fix.text,
    )


def hand_over(record: Record, tracker: Tracker, folder: Path) -> None:
    """A whole record of a run that has ended."""
    named = Named()
    _give(named, record.events, tracker)
    findings, _ = Findings(folder).final(record)
    for found in findings:
        tracker.finding(found)
    tracker.end(findings)


def _give(named: Named, events: Sequence[Event], tracker: Tracker) -> None:
    for step, numbers in named.numbers(events).items():
        tracker.numbers(step, numbers)
    for step, name, edges, counts in named.histograms(events):
        tracker.histogram(step, name, edges, counts)


def run_of(record: Record, folder: Path) -> Run:
    """What a tracker is given to know of the run."""
    started = record.started
    name = folder.parent.name if folder.suffix == ".jsonl" else folder.name
    return Run(name=name or "run", script=started.script, arguments=started.arguments, folder=str(folder))


class Channel:
    """To the process that is watched: what the program logs to comes from there, sentences for its stderr go there."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""
        self.place: Place | None = None
        self.environment: dict[str, str] = {}
        self.is_known = False
        """Has it said which run the program logs to, or will never say so?"""
        self.has_spoken = False
        """Has the user been shown where to look?"""

    def wait(self, seconds: float) -> None:
        """For a message, or so long."""
        if self.is_known:
            time.sleep(seconds)
            return
        self._connection.settimeout(seconds)
        try:
            part = self._connection.recv(2**16)
        except TimeoutError:
            return
        except OSError:
            part = b""
        self._received += part
        if part and not self._received.endswith(b"\n") and len(self._received) < LONGEST_MESSAGE:
            return
        self.is_known = True
        with contextlib.suppress(ValueError):
            message = json.loads(self._received or b"{}")
            self.place, self.environment = message.get("place"), message.get("environment", {})

    def say(self, sentence: str) -> None:
        """One line, for the user."""
        self.has_spoken = True
        line = " ".join(sentence.split()) + "\n"
        self._connection.settimeout(1.0)
        with contextlib.suppress(OSError):
            self._connection.sendall(line.encode(errors="replace"))


def follow(name: str, folder: Path, channel: Channel) -> None:
    """Hand over what is recorded, until the run has ended. Whatever the tracker raises ends this and is said."""
    try:
        _follow(name, folder, channel)
    except (Exception, SystemExit) as error:
        said = shorten(f"{type(error).__name__}: {error}".strip().splitlines()[0], 200, placeholder=" ...")
        channel.say(f"nothing {'more ' if channel.has_spoken else ''}is forwarded to {name}: {said}")


def _follow(name: str, folder: Path, channel: Channel) -> None:
    tail, named, findings, pace = Tail(folder), Named(), Findings(folder), Pace(SHARE)
    tracker: Tracker | None = None
    given = 0
    while not tail.path.exists():
        if channel.is_known:
            return  # the run has ended without a record
        channel.wait(EVERY)
    while True:
        running = tail.is_running
        tail.look()
        record = tail.record()
        is_due = not running or (channel.is_known and pace.is_due())
        if is_due and tracker is None and any(record.of(TensorsNamed)) | bool(record.losses):
            if not channel.is_known:  # the run was over before we came to listen
                channel.wait(EVERY)
            os.environ.update(channel.environment)
            tracker = module_of(name).begin(run_of(record, folder), channel.place)
            channel.say(f"forwarding to {name}: {tracker.where}")
        if is_due and tracker is not None:
            began = time.process_time()
            _give(named, record.events[given:], tracker)
            given = len(record.events)
            tracker.flush()
            pace.spent(time.process_time() - began)
        if not running:
            break
        if tracker is not None:
            for found in findings.fresh(record):
                tracker.finding(found)
        channel.wait(EVERY)
    if tracker is None:
        return
    everything, fresh = findings.final(record)
    for found in fresh:
        tracker.finding(found)
    tracker.end(everything)


def main() -> None:
    """With the socket of the channel as stdin, and the assignment as the only argument."""
    name, folder = json.loads(sys.argv[1])
    if hasattr(os, "fork") and os.fork():
        os._exit(0)  # so that a program which waits for its children does not meet one that it did not start
    connection = socket.socket(fileno=os.dup(0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    for ends in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"):
        signal.signal(getattr(signal, ends), lambda *_: None)  # unlike SIG_IGN, not inherited by what a tracker starts
    with contextlib.suppress(OSError):
        os.nice(NICE)
    threading.Thread(target=_give_up, args=(Tail(folder).path,), daemon=True).start()
    follow(name, Path(folder), Channel(connection))
    sys.stdout.flush()


def _give_up(path: Path) -> None:
    """A tracker that hangs is not waited for without end."""
    ended = 0.0
    while ended < LONGEST_END:
        time.sleep(EVERY * 5)
        ended = 0.0 if is_locked(path) or not path.exists() else ended + EVERY * 5
    os._exit(1)


if __name__ == "__main__":
    main()
