"""Judges a run while it goes on, in the training thread between two steps, and never for long."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, thread_time
from typing import TYPE_CHECKING

from unstuck.capture import RunStopped
from unstuck.events import Event, Gauges, NonFinite

if TYPE_CHECKING:
    from unstuck.findings import Diagnosis, Finding, Severity

SHARE = 0.01
"""Of the run's time, what all judgements together may take."""
SHARE_TO_STOP = 0.05
"""The same for a run that is to be stopped as soon as something is found."""
MILESTONES = (10, 30, 100, 300)
"""Windows after which a run is judged, if there is time; later, whenever it has become a tenth longer."""
CONFIRM_AFTER = 5
"""Windows, at least, until a first suspicion is looked at again: rules may have seen only a part."""
FIRST_GUESS = 0.03
"""Seconds that the first judgement is taken to need."""
LARGEST_RECORD = 16 * 2**20
"""Bytes of a record beyond which a run is judged at its end only: to read one takes memory."""
MOST_ALARMS = 3

Matter = tuple[str, str, str]


class Monitor:
    """Listens to a run and reports each finding once, when two judgements in a row have made it, equally loud.

    `report` is called with every finding, in the training thread. With `stop_on` the first finding of this severity,
    or of a louder one, ends the run.
    """

    def __init__(self, path: Path, report: Callable[[Diagnosis], None], stop_on: str | None = None) -> None:
        self._path = path
        self._report = report
        self._stop_on = stop_on
        self._share = SHARE_TO_STOP if stop_on else SHARE
        self._home = os.getcwd()
        self._began = perf_counter()
        self._spent = 0.0
        self._expected = FIRST_GUESS
        self._windows = 0
        self._next = MILESTONES[0]
        self._recorded = self._judged = 0
        self._alarm = False
        self._alarms = 0
        self._suspected: dict[Matter, Severity] = {}
        self.reported: set[Matter] = set()
        """What has been passed on."""
        self.announced: list[tuple[Diagnosis, int]] = []
        """The same, as it was reported, and after how many steps."""
        self.stopped: RunStopped | None = None
        """What the run was ended with, unless the program caught it and went on."""

    def heard(self, event: Event) -> None:
        """An event was recorded."""
        if isinstance(event, Gauges):
            self._recorded += 1
        elif isinstance(event, NonFinite) and self._alarms < MOST_ALARMS:
            self._alarm = True
            self._alarms += 1

    def window_ended(self) -> None:
        """A step is over: judge the run so far, if it is time to."""
        self._windows += 1
        self.stopped = None
        if self._alarm or (self._windows >= self._next and self._recorded > self._judged and self._has_time()):
            self._look()

    def _has_time(self) -> bool:
        elapsed = perf_counter() - self._began
        return self._spent + self._expected <= self._share * elapsed

    def _look(self) -> None:
        if not self._is_possible():
            self._next = self._windows + 1000
            return
        from unstuck.rule import load_witnesses

        load_witnesses()  # here at the latest; the report at the end needs them too, so that they cost nothing
        began = thread_time()  # on a busy machine a judgement takes long, but costs no more
        try:
            news = self._news()
        finally:
            self._plan(thread_time() - began)
        for diagnosis in news:
            self.announced.append((diagnosis, self._windows))
            self._report(diagnosis)
        self._stop_for(news)

    def _is_possible(self) -> bool:
        """Can the record be read, and do its relative paths still mean the same?"""
        self._alarm = False
        try:
            return os.getcwd() == self._home and self._path.stat().st_size <= LARGEST_RECORD
        except OSError:
            return False

    def _plan(self, took: float) -> None:
        self._spent += took
        self._expected = took
        self._judged = self._recorded
        longer = self._windows + max(1, self._windows // 10)
        later = next((milestone for milestone in MILESTONES if milestone > self._windows), longer)
        if self._suspected.keys() - self.reported:
            later = self._windows + max(CONFIRM_AFTER, self._windows // 10)
        self._next = later

    def _news(self) -> list[Diagnosis]:
        """What has not been reported, and is certain enough to be."""
        from unstuck.findings import Witness
        from unstuck.judge import judge
        from unstuck.record import read
        from unstuck.rule import all_rules
        from unstuck.source.what_ran import script_of

        record = read(self._path)
        found = {matter(d.lead): d.severity for d in judge(record=record).diagnoses}
        final = {rule.code for rule in all_rules() if rule.is_final}
        settled = {
            item for item, severity in found.items() if self._suspected.get(item) is severity or item[0] in final
        }
        self._suspected = found
        fresh = settled - self.reported
        if not fresh:
            return []
        self.reported |= fresh
        # The text knows the exact place, and which lines carry an ignore comment.
        script = script_of(record)
        diagnoses = judge(scripts=(script,) if script else (), record=record).diagnoses
        return [d for d in diagnoses if any(f.witness is Witness.RUN and matter(f) in fresh for f in d.findings)]

    def _stop_for(self, news: list[Diagnosis]) -> None:
        from unstuck.findings import Severity

        severity = Severity(self._stop_on) if self._stop_on else None
        for diagnosis in news:
            if severity and diagnosis.severity.at_least(severity):
                self._stop_on = None  # a program that catches it goes on
                self.stopped = RunStopped(f"{title(diagnosis)} (stop on {severity.value})")
                raise self.stopped


def matter(finding: Finding) -> Matter:
    """What makes two findings of two judgements the same."""
    return (finding.code, finding.subject.kind, finding.subject.name)


def title(diagnosis: Diagnosis) -> str:
    """`O12 double-softmax at train.py:11`."""
    lead = diagnosis.lead
    return f"{lead.code} {lead.name}" + (f" at {lead.place}" if lead.place else "")
