"""Keeps trials away from what is the user's: by the kernel where it can, by copies where it cannot.

`isolate` is called once, early in the process that forks trials, and finds the strongest way that works here, by
trying it; each trial then runs in a `Ground` of that kind. A trial whose isolation fails is not run.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Protocol

from unstuck.capture.trial.isolation import landlock, overlay, processes
from unstuck.capture.trial.isolation.errors import NotPossible
from unstuck.capture.trial.layout import LAYER, PROBE, TEMPORARY_LINK, TEMPORARY_PREFIX
from unstuck.findings.results import Isolation
from unstuck.record.own_folder import remove_own_tree

_LITERAL = re.compile(rb"""["'](/[^"'\s{}%*?]+)["']""")
_MOST_LITERALS = 50


class Ground(Protocol):
    """Where trials run."""

    kind: Isolation
    reason: str
    """Why not in a stronger way; empty if there is none."""

    def run(self, folder: str, body: Callable[[str], int]) -> int:
        """Call `body` in a process of its own with another path of `folder`; its exit code, once nothing that it
        started is left."""
        ...

    def real(self, folder: str) -> str:
        """The folder of a trial, as a path by which the process that forks can write it."""
        ...

    def clear(self, folder: str) -> None:
        """Remove what the trial of this folder wrote."""
        ...

    def end(self) -> None:
        """Remove what all of them wrote, as far as this process can."""
        ...


def isolate(home: str, run_folder: str, script: str, arguments: Sequence[str]) -> Ground:
    """Move this process to where it cannot write to the user's files. Only a process without threads can."""
    needed = [path for path in (*_paths_in(script), *arguments) if os.path.isabs(path)]
    reasons = []
    for in_memory in (False, True):
        reason = _trouble(home, run_folder, needed, in_memory)
        if not reason:
            return _Overlay(overlay.enter(home, run_folder, needed, in_memory=in_memory))
        reasons.append(reason)
    temporary = _own_temporary_folder(run_folder)
    try:
        if sys.platform != "linux":
            raise NotPossible(f"{sys.platform} has nothing like it")
        landlock.check(home)
        landlock.forbid_writes([run_folder, temporary])
        return _Stage(Isolation.LANDLOCK, run_folder, temporary, reasons[0])
    except (NotPossible, OSError) as error:
        return _Stage(Isolation.COPIES, run_folder, temporary, f"{reasons[0]}; {error}")


class _Overlay:
    kind = Isolation.OVERLAY
    reason = ""

    def __init__(self, view: overlay.View) -> None:
        self._view = view

    def run(self, folder: str, body: Callable[[str], int]) -> int:
        return overlay.run(self._view, folder, body)

    def real(self, folder: str) -> str:
        return f"{overlay.RUN}/{os.path.basename(folder)}"

    def clear(self, folder: str) -> None:
        remove_own_tree(f"{overlay.RUN}/{LAYER}/{os.path.basename(folder)}", below=overlay.RUN)

    def end(self) -> None:
        remove_own_tree(f"{overlay.RUN}/{LAYER}", below=overlay.RUN)


class _Stage:
    """Trials run on copies of the working directory; with Landlock they cannot write anywhere else."""

    def __init__(self, kind: Isolation, run_folder: str, temporary: str, reason: str) -> None:
        self.kind = kind
        self.reason = reason
        self._run_folder = run_folder
        self._temporary = temporary
        os.environ["TMPDIR"], tempfile.tempdir = temporary, None

    def run(self, folder: str, body: Callable[[str], int]) -> int:
        return processes.run(lambda: body(folder))

    def real(self, folder: str) -> str:
        return folder

    def clear(self, folder: str) -> None:
        remove_own_tree(os.path.join(self._run_folder, LAYER, os.path.basename(folder)), below=self._run_folder)

    def end(self) -> None:
        for name in os.listdir(self._temporary):  # the folder itself is for somebody who may write around it
            with contextlib.suppress(OSError):
                remove_own_tree(os.path.join(self._temporary, name), below=self._temporary)


def _trouble(home: str, run_folder: str, needed: Sequence[str], in_memory: bool) -> str:
    """Try the whole way in another process: what is in the way of it, or nothing."""
    if sys.platform != "linux":
        return f"{sys.platform} has no overlays"
    probe, mark = os.path.join(run_folder, PROBE), os.path.join(home, f".unstuck-probe-{os.getpid()}")
    os.mkdir(probe)
    heard, say = os.pipe()
    process = os.fork()
    if process == 0:
        _probe(home, run_folder, needed, in_memory, probe, mark, say)
    os.close(say)
    with os.fdopen(heard, "rb") as answer:
        words = answer.read().decode(errors="replace")
    _, status = os.waitpid(process, 0)
    os.rmdir(probe)
    remove_own_tree(os.path.join(run_folder, LAYER), below=run_folder)
    os.mkdir(os.path.join(run_folder, LAYER))
    if os.path.lexists(mark):  # which no kernel should let happen
        os.unlink(mark)
        return "what was written in an overlay was written for real"
    return words or (f"the attempt ended with code {os.waitstatus_to_exitcode(status)}" if status else "")


def _probe(home: str, run_folder: str, needed: Sequence[str], in_memory: bool, probe: str, mark: str, say: int) -> None:
    code = 1
    try:
        view = overlay.enter(home, run_folder, needed, in_memory=in_memory)
        code = overlay.run(view, probe, lambda record: _write_everything(mark, record))
    except (NotPossible, OSError) as error:
        os.write(say, (str(error) or type(error).__name__).encode(errors="replace")[:1000])
    finally:
        os._exit(code)


def _write_everything(mark: str, record: str) -> int:
    """A file, a folder in the place of a removed one, a link, and something in the real folder of a trial."""
    with open(mark, "w") as file:
        file.write("written")
    os.unlink(mark)
    os.mkdir(mark)
    os.rmdir(mark)
    os.symlink("/", mark)
    with open(os.path.join(record, "x"), "w") as file:
        file.write("written")
    os.unlink(os.path.join(record, "x"))
    return 0


def _paths_in(script: str) -> list[str]:
    """Absolute paths in the text of a script: it may want to write there."""
    try:
        with open(script, "rb") as file:
            text = file.read(2**20)
    except OSError:
        return []
    found = dict.fromkeys(os.fsdecode(match) for match in _LITERAL.findall(text)[:_MOST_LITERALS])
    return [os.path.dirname(os.path.abspath(script)), *found]


def _own_temporary_folder(run_folder: str) -> str:
    """A place for temporary files. Not in the folder of the run, whose name is too long for sockets; a link in there
    leads to it, for whoever cleans up."""
    folder = tempfile.mkdtemp(prefix=TEMPORARY_PREFIX)
    os.symlink(folder, os.path.join(run_folder, LAYER, TEMPORARY_LINK))
    return folder
