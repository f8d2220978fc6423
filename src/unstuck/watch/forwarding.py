"""The watched program's side of forwarding: starts a process for each tracker, and says which run the program logs to.

What is recorded goes from the record to the tracker, in that process; the program only pays for starting it, a message
after its first step, and a look at what it has to say twice a second.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path

from unstuck.capture.session import Listener
from unstuck.capture.trial.layout import TRIAL
from unstuck.events import Event
from unstuck.record.writer import out_of_the_way
from unstuck.trackers import Place, missing, module_of, names

PATIENCE = 20.0
"""Seconds to wait, after the report, until trackers have taken the end of the run."""
EVERY = 0.5
LONGEST = 2**16
START = "import sys; sys.path.append({0!r}); from unstuck.watch.forward import main; main()"


def checked(wanted: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names of trackers, each once. Raises ValueError with a sentence for one that does not exist."""
    given = [wanted] if isinstance(wanted, str) else list(wanted or ())
    for name in given:
        if not isinstance(name, str) or name not in names():
            close = get_close_matches(str(name).lower(), names(), 1)
            hint = f"did you mean {close[0]!r}?" if close else f"the trackers are {', '.join(names())}."
            raise ValueError(f"there is no tracker {name!r}; {hint}")
    return tuple(dict.fromkeys(given))


class Forwarding:
    """A listener of a run that is forwarded to trackers."""

    def __init__(self, trackers: Sequence[str], record: Path, say: Callable[[str], object]) -> None:
        self._say = say
        self._process = os.getpid()
        self._environment = dict(os.environ)
        self._links: list[_Link] = []
        self._is_described = False
        self._next = 0.0
        for name in trackers if _is_wanted() else ():
            why = missing(name) if hasattr(os, "fork") else f"nothing is forwarded to {name} on this system"
            if why:
                say(why)
                continue
            try:
                self._links.append(_Link(name, record.absolute()))
            except Exception as error:  # no reason to keep a program from training
                say(f"nothing is forwarded to {name}: {error}")

    def heard(self, event: Event) -> None:
        """It is read from the record."""

    def window_ended(self) -> None:
        """A step is over. After the first one the program has chosen where it logs to."""
        if not self._links or os.getpid() != self._process:
            return
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + EVERY
        if not self._is_described:
            self._is_described = True
            changed = {name: value for name, value in os.environ.items() if self._environment.get(name) != value}
            for link in self._links:
                link.describe(changed)
        for link in self._links:
            for sentence in link.sentences():
                self._say(sentence)

    def end(self, patience: float = PATIENCE) -> None:
        """The run has ended and its record is closed: wait a little until the trackers have taken the rest."""
        if os.getpid() != self._process:
            return
        deadline = time.monotonic() + patience
        links, self._links = self._links, []
        try:
            for link in links:
                for sentence in link.last_sentences(deadline):
                    self._say(sentence)
                if not link.is_over and link.has_spoken:
                    self._say(f"the end of the run goes to {link.name} in the background.")
                elif not link.is_over:
                    self._say(f"{link.name} has not answered so far; it is tried again in the background.")
        except KeyboardInterrupt:
            self._say("the end of the run is forwarded in the background.")
        finally:
            for link in links:
                link.close()

    def abandon(self) -> None:
        """Do not wait."""
        for link in self._links:
            link.close()
        self._links = []


def _is_wanted() -> bool:
    """Not of trials, and only of the first of several ranks."""
    is_rank = os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"
    return not os.environ.get(TRIAL) and not is_rank


class Together:
    """Several listeners as one."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def heard(self, event: Event) -> None:
        """An event was recorded."""
        for listener in self._listeners:
            listener.heard(event)

    def window_ended(self) -> None:
        """A step is over. The last listener may end the run."""
        for listener in self._listeners:
            listener.window_ended()


class _Link:
    """The process of one tracker, and a socket to it: a pipe could end the program by SIGPIPE."""

    def __init__(self, name: str, record: Path) -> None:
        self.name = name
        self.is_over = self.has_spoken = False
        self._received = b""
        ours, theirs = socket.socketpair()
        with theirs:
            home = str(Path(__file__).parents[2])
            command = [sys.executable, "-P", "-c", START.format(home), json.dumps([name, str(record)])]
            # The process that stays is not our child; this one has started it, and ends at once.
            subprocess.run(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                check=False,
            )
        self._socket = socket.socket(fileno=out_of_the_way(ours.detach()))

    def describe(self, environment: dict[str, str]) -> None:
        """Say which run the program logs to, and which variables it has set for that."""
        place: Place | None = None
        try:
            place = module_of(self.name).current()
        except Exception:
            if os.environ.get("UNSTUCK_RAISE"):
                raise
        message = json.dumps({"place": place, "environment": environment}).encode() + b"\n"
        if len(message) > LONGEST:
            message = json.dumps({"place": place}).encode() + b"\n"
        self._send(message)

    def _send(self, message: bytes) -> None:
        try:
            self._socket.send(message, socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0))
        except OSError:
            self.is_over = True

    def sentences(self) -> list[str]:
        """What it has said since the last look."""
        self._socket.setblocking(False)
        return self._read()

    def last_sentences(self, deadline: float) -> list[str]:
        """What it says until it ends, or until then."""
        found: list[str] = []
        while not self.is_over and (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            found += self._read()
        return found

    def _read(self) -> list[str]:
        try:
            part = self._socket.recv(LONGEST)
        except (BlockingIOError, TimeoutError):
            return []
        except OSError:
            part = b""
        self.is_over = self.is_over or not part
        *whole, self._received = (self._received + part).split(b"\n")
        self.has_spoken = self.has_spoken or bool(whole)
        return [line.decode(errors="replace") for line in whole if line]

    def close(self) -> None:
        """It goes on without us."""
        self._socket.close()
