"""One trial: the program runs on a stage of its own, under interventions, watched, until it has shown enough."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from unstuck.capture.divergence import Divergence
from unstuck.capture.launcher import WatchedRun, find_program
from unstuck.capture.outputs import Outputs
from unstuck.capture.program import LaunchError
from unstuck.capture.session import Session
from unstuck.capture.stage import Stage
from unstuck.events import Event, Gauges, NonFinite
from unstuck.findings import Edit
from unstuck.interventions import STAGE, TIME_OVER, EditSource, StopAfter, SweepRate, Trial
from unstuck.record import Writer

if TYPE_CHECKING:
    from unstuck.capture.interventions import Lab

NOTES = "notes.json"
MOST_LOSSES = 20_000
ENOUGH = "it had taken the steps that were asked for"
TOO_HIGH = "the loss diverged"


def perform(trial: Trial) -> int:
    """Run the program of a trial in this process, which is of no other use afterwards; the exit code of the program."""
    stage = Stage(os.path.join(trial.folder, STAGE), trial.home)
    target = trial.target
    if not trial.as_module:
        stage.build(os.path.dirname(os.path.abspath(os.path.join(trial.home, target))))
        target = stage.copy_of(target) if os.path.isabs(target) else target
    else:
        stage.build()
    _edit(stage, [edit for wish in trial.changes if isinstance(wish, EditSource) for edit in wish.edits])
    os.chdir(stage.here)
    sys.path[:] = [_on_stage(stage, entry) for entry in sys.path]
    return _run(trial, target, stage)


def _run(trial: Trial, target: str, stage: Stage) -> int:
    from unstuck.capture.interventions import intervene

    try:
        program = find_program(target, trial.as_module)
    except LaunchError as error:
        print(f"unstuck: {error}", file=sys.stderr)
        return 2
    writer = Writer(trial.folder)
    outputs = Outputs(stage, trial.folder)
    lab = intervene(trial.changes)
    lab.stage = stage.root
    losses = _Losses(lab)
    ending = _Ending(trial)
    session = Session(writer, (), trial.every, ending, stage=stage.root)
    run = WatchedRun(program, trial.target, trial.arguments, writer, session)

    before = set(sys.modules)

    def note() -> None:
        found = {"elsewhere": outputs.elsewhere[:20], "modules": _libraries(before), "losses": losses.values()}
        _write_notes(Path(trial.folder), {**lab.notes, **found})

    def stop(reason: str) -> None:
        # Nothing of the program is of use any more, neither its `finally` blocks nor the threads it left.
        run.stop(reason)
        note()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    ending.stop, ending.step_ended = stop, lab.step_ended
    signal.signal(signal.SIGTERM, lambda *_: stop(TIME_OVER))
    if trial.show_data:
        from unstuck.capture.exhibit import Exhibit

        Exhibit(lab, Path(trial.folder))
    outputs.redirect()
    code = run.start()
    note()
    return code


def _edit(stage: Stage, edits: Iterable[Edit]) -> None:
    """Apply edits to the copies of their files."""
    from unstuck.source.document import open_document

    by_file: dict[str, list[Edit]] = {}
    for edit in edits:
        by_file.setdefault(stage.copy_of(os.path.join(stage.home, edit.path)), []).append(edit)
    for path, changes in by_file.items():
        path = stage.make_writable(path, keep=True)
        Path(path).write_bytes(open_document(Path(path)).edited(changes).raw)


def _on_stage(stage: Stage, entry: str) -> str:
    """Where a directory of `sys.path` lies on the stage, if it is part of the working directory."""
    whole = os.path.realpath(entry or stage.home)
    inside = whole == stage.home or whole.startswith(stage.home.rstrip(os.sep) + os.sep)
    copy = stage.copy_of(whole)
    return copy if inside and os.path.isdir(copy) and not os.path.islink(copy) else entry


def _libraries(before: set[str]) -> list[str]:
    """The installed modules that the program has imported."""
    return [
        name
        for name, module in list(sys.modules.items())
        if name not in before and "site-packages" in str(getattr(module, "__file__", None) or "")
    ]


def _write_notes(folder: Path, notes: dict[str, object]) -> None:
    (folder / NOTES).write_bytes(msgspec.json.encode(notes))


class _Losses:
    """What each backward was called on. A record tells the losses that steps have used, and some loops use none."""

    def __init__(self, lab: Lab) -> None:
        self._seen: list[Any] = []
        lab.wrap(sys.modules["torch"].Tensor, "backward", self._backward)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            if loss.numel() == 1 and len(self._seen) < MOST_LOSSES:
                self._seen.append(loss.detach().clone())
            return original(loss, *args, **kwargs)

        return backward

    def values(self) -> list[float | None]:
        """As numbers; None where one was not finite."""
        numbers = [float(loss) for loss in self._seen]
        return [number if math.isfinite(number) else None for number in numbers]


class _Ending:
    """Listens to the run, and ends it as soon as it has shown what it should."""

    def __init__(self, trial: Trial) -> None:
        self.stop: Callable[[str], None] = lambda reason: None
        self.step_ended: Callable[[], None] = lambda: None
        self._limits = [wish for wish in trial.changes if isinstance(wish, StopAfter)]
        self._began = time.monotonic()
        self._sweeps = any(isinstance(wish, SweepRate) for wish in trial.changes)
        self._windows = 0
        self._optimizers: dict[str, int] = {}
        self._divergence = Divergence()

    def heard(self, event: Event) -> None:
        if isinstance(event, Gauges):
            self._optimizers[event.optimizer] = event.step
            if self._sweeps and event.loss is not None:
                self._divergence.follow(event.loss)
        elif isinstance(event, NonFinite):
            self._divergence.seen = True

    def window_ended(self) -> None:
        self._windows += 1
        self.step_ended()
        if self._sweeps and self._divergence.seen:
            self.stop(TOO_HIGH)
        steps, seconds = self._windows // max(1, len(self._optimizers)), time.monotonic() - self._began
        if any(limit.reached(steps, seconds) for limit in self._limits):
            self.stop(ENOUGH)
