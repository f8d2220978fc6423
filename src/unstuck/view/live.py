"""Runs followed while they are written: read, judged and drawn again as often as costs little."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from unstuck.findings.investigation import Investigation
from unstuck.findings.result import Result
from unstuck.findings.run_summary import steps_on_record
from unstuck.findings.verdict import Verdict
from unstuck.record import RECORD_NAME, Record, RecordError
from unstuck.record.in_use import is_in_use
from unstuck.record.pace import Pace
from unstuck.record.runs import run_folders
from unstuck.record.tail import Tail
from unstuck.result import result_of
from unstuck.rule import load_witnesses
from unstuck.view.answer import key_of
from unstuck.view.document import Document, document, encoded
from unstuck.view.moments import first_seen
from unstuck.view.store import NAME as NAME_OF_PAGE, kept
from unstuck.view.thin import Number

MOST_RUNS = 200
"""The newest, in the list."""
TOGETHER = 120.0
"""Seconds within which the ranks of one job begin."""
RANK = re.compile(r"(?P<time>\d{8}-\d{6})-(?P<job>.+)-rank(?P<rank>\d+)(?:-\d+)?")
NAME = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)\d\d-.+")


class Followed:
    """One run: its document is made again when its record has grown, and once more when it has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = 0
        """0: there is nothing to show yet."""
        self.document: Document | None = None
        self.body = b""
        """The same as JSON."""
        self.trouble = ""
        self._tail = Tail(watched_in(folder))
        self._result: Result | None = None
        self._steps: dict[str, int] | None = None
        self._judging, self._drawing = Pace(), Pace()
        self._state: tuple[bool, bool] | None = None
        self._lock = threading.Lock()

    def refresh(self) -> bool:
        """Look, and say whether there is something new to show."""
        with self._lock:
            return self._refresh()

    def _refresh(self) -> bool:
        if not self._drawing.is_due():
            return False
        load_witnesses()  # once, so that the first look is not taken for a slow one
        began = time.thread_time()
        try:
            grown = self._tail.look()
        except OSError as error:
            self.trouble = str(error.strerror or error)
            return False
        running = self._tail.is_running
        state = (running, (self.folder / NAME_OF_PAGE).exists())
        has_news = not self._tail.is_empty and (grown or state != self._state or not self.version)
        judged = 0.0
        if has_news:
            self._state = state
            judged = self._show(running)
        self._drawing.spent(time.thread_time() - began - judged)
        return has_news

    def _show(self, running: bool) -> float:
        """Judge it, if it is time to, and make its document. Returns how long it was judged."""
        record = self._tail.record()
        last = steps_on_record(record)
        judged = 0.0
        if self._result is None or not running or self._judging.is_due():
            began = time.thread_time()
            self._result = result_of(record, self.folder, "view", so_far=last if running else None)
            if running or self._steps is not None:
                self._note(self._result.verdict, record, last)
            judged = time.thread_time() - began
            self._judging.spent(judged)
        result = self._result
        if running and result.run is not None:
            result = msgspec.structs.replace(result, run=msgspec.structs.replace(result.run, steps=last))
        stored = None if running else kept(self.folder)
        done = Investigation(result=result, folder=self.folder)
        self.document = stored or document(done, record, self._steps)
        self.body = encoded(self.document)
        self.version += 1
        return judged

    def _note(self, verdict: Verdict, record: Record, last: int) -> None:
        """What is found for the first time was found by now, or earlier if this is the first look."""
        if self._steps is None:
            self._steps = first_seen(record, verdict)
        else:
            found = [key_of(diagnosis) for diagnosis in verdict.diagnoses]
            self._steps = {key: self._steps.get(key, max(1, last)) for key in found}


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run in the list of runs."""

    name: str
    script: str = ""
    when: str = ""
    tone: str = ""
    headline: str = ""
    trend: str = ""
    steps: int = 0
    spark: list[Number] = []
    running: bool = False
    job: str = ""
    rank: int | None = None


class Runs:
    """All runs of this directory by name, and what is known of each. Names are looked up here and nowhere else."""

    def __init__(self, more: Iterable[Path] = ()) -> None:
        self._more = list(more)
        self.folders: dict[str, Path] = {}
        self.followed: dict[str, Followed] = {}
        self._summaries: dict[str, tuple[object, Summary]] = {}
        self._paces: dict[str, Pace] = {}
        self.version = 0

    def look(self) -> bool:
        """Look which runs there are; did that change?"""
        found = {_named(folder): folder for folder in self._more if folder.exists()}
        folders = sorted(run_folders(strict=False), key=lambda folder: folder.name, reverse=True)
        found |= {_named(folder): folder for folder in folders[:MOST_RUNS] if _has_record(folder)}
        changed = found.keys() != self.folders.keys()
        self.folders = found
        self.version += changed
        return changed

    def follow(self, name: str) -> Followed | None:
        """The run of this name, if there is one."""
        folder = self.folders.get(name)
        if folder is None:
            return None
        return self.followed.setdefault(name, Followed(folder))

    def forget(self, names: set[str]) -> None:
        """Give back the memory of runs that nobody looks at any more."""
        for name in set(self.followed) - names:
            del self.followed[name]

    def summarise_one(self) -> bool:
        """Read one run of the list that is not known as it is now; was there any?"""
        for name, folder in list(self.folders.items()):
            state = _state(folder)
            known = self._summaries.get(name)
            if (known is not None and known[0] == state) or not self._paces.setdefault(name, Pace()).is_due():
                continue
            began = time.thread_time()
            followed = self.followed.get(name) or Followed(folder)
            followed.refresh()
            summary = _summary(name, followed)
            self._paces[name].spent(time.thread_time() - began)
            if known is None or known[1] != summary:
                self.version += 1
            self._summaries[name] = (state, summary)
            return True
        return False

    def summaries(self) -> list[Summary]:
        """All runs, newest first."""
        jobs = _jobs(self.folders)
        known = (self._summaries.get(name, (None, _unread(name)))[1] for name in self.folders)
        return [msgspec.structs.replace(summary, job=jobs.get(summary.name, "")) for summary in known]


def watched_in(folder: Path) -> Path:
    """Where the record is; of a diagnosis that of its first trial, the watched run."""
    if folder.is_dir() and not os.path.lexists(folder / RECORD_NAME):
        trials = sorted(folder.glob(f"*/{RECORD_NAME}"))
        if trials:
            return trials[0].parent
    return folder


def _named(folder: Path) -> str:
    return folder.name or str(folder)


def _has_record(folder: Path) -> bool:
    """A file of its own: a link may lead anywhere."""
    record = watched_in(folder) / RECORD_NAME
    return record.is_file() and not record.is_symlink() and not record.parent.is_symlink()


def _state(folder: Path) -> object:
    try:
        found = (watched_in(folder) / RECORD_NAME).stat()
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns, (folder / NAME_OF_PAGE).exists())


def _jobs(names: Iterable[str]) -> dict[str, str]:
    """For each rank the name of the first one of its job: ranks of one script that began together, each once."""
    ranks = sorted((match for name in names if (match := RANK.fullmatch(name))), key=lambda match: match["time"])
    found: dict[str, str] = {}
    open_jobs: dict[str, tuple[str, float, set[str]]] = {}
    for match in ranks:
        began = time.mktime(time.strptime(match["time"], "%Y%m%d-%H%M%S"))
        lead, since, members = open_jobs.get(match["job"], ("", 0.0, {match["rank"]}))
        if began - since > TOGETHER or match["rank"] in members:
            lead, since, members = match[0], began, set()
        members.add(match["rank"])
        open_jobs[match["job"]] = (lead, since, members)
        found[match[0]] = lead
    return found


def _unread(name: str) -> Summary:
    rank = RANK.fullmatch(name)
    when = NAME.fullmatch(name)
    return Summary(
        name=name,
        when=f"{when[1]}-{when[2]}-{when[3]} {when[4]}:{when[5]}" if when else "",
        rank=int(rank["rank"]) if rank else None,
    )


def _summary(name: str, followed: Followed) -> Summary:
    shown = followed.document
    if shown is None:
        trouble = f"cannot be read: {followed.trouble or 'it is empty'}"
        headline = "waiting for its record" if is_in_use(followed.folder) else trouble
        return msgspec.structs.replace(_unread(name), headline=headline)
    return msgspec.structs.replace(
        _unread(name),
        script=shown.run.script,
        tone=shown.answer.tone,
        headline=shown.answer.headline,
        trend=shown.run.outcome,
        steps=shown.run.steps,
        spark=shown.run.spark,
        running=shown.run.running,
    )


def read_once(path: Path) -> Followed:
    """A run as it is now. Raises RecordError where there is none."""
    followed = Followed(path)
    if not followed.refresh():
        what = f" ({followed.trouble})" if followed.trouble else ""
        raise RecordError(f"There is no record to show at {path}{what}; make one with `unstuck run`.")
    return followed
