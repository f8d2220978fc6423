"""Performs a trial in this process: the program runs under interventions, watched, until it has shown enough."""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from unstuck.capture.detect.divergence import Divergence
from unstuck.capture.launch.launcher import WatchedRun, find_program
from unstuck.capture.launch.program import LaunchError
from unstuck.capture.session import Session
from unstuck.capture.trial.isolation import filters, kernel, landlock
from unstuck.capture.trial.isolation.outputs import Outputs
from unstuck.capture.trial.isolation.overlay import let_folders_be_renamed
from unstuck.capture.trial.isolation.stage import Stage
from unstuck.capture.trial.layout import NOTES, TOKEN, stage_of
from unstuck.events import Event, Gauges, NonFinite
from unstuck.findings import Edit
from unstuck.findings.results import Isolation
from unstuck.interventions import intervene
from unstuck.interventions.edit_source import EditSource
from unstuck.interventions.learning_rate import SweepRate
from unstuck.interventions.stop_after import StopAfter
from unstuck.record import Writer
from unstuck.trials.trial import StopReason, Trial

if TYPE_CHECKING:
    from unstuck.capture.trial.lab import Lab

MOST_LOSSES = 20_000
REFUSALS = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EOVERFLOW)
LONGEST_REFUSAL = 300


def perform(trial: Trial, folder: str, isolation: Isolation) -> int:
    """Run the program of a trial in this process, which is of no other use afterwards; the exit code of the program.

    `folder` is the path of the trial's folder under which this process can write it.
    """
    edits = [edit for change in trial.changes if isinstance(change, EditSource) for edit in change.edits]
    if isolation is Isolation.OVERLAY:
        _edit(edits, lambda path: os.path.join(trial.home, path))
        let_folders_be_renamed()
        return _run(trial, trial.target, folder, None)
    stage = Stage(stage_of(trial.folder), trial.home, copy_all=isolation is Isolation.COPIES)
    target = trial.target
    if not trial.as_module:
        stage.build(os.path.dirname(os.path.abspath(os.path.join(trial.home, target))))
        target = stage.copy_of(target) if os.path.isabs(target) else target
    else:
        stage.build()
    _edit(edits, lambda path: stage.make_writable(stage.copy_of(os.path.join(stage.home, path)), keep=True))
    os.chdir(stage.here)
    sys.path[:] = [_on_stage(stage, entry) for entry in sys.path]
    if isolation is Isolation.LANDLOCK:
        landlock.forbid_writes([stage.room, folder, tempfile.gettempdir()])
        kernel.keep_capabilities(landlock.CAPABILITIES if os.geteuid() == 0 else ())
        filters.forbid_what_landlock_allows()
    return _run(trial, target, folder, stage)


def _run(trial: Trial, target: str, folder: str, stage: Stage | None) -> int:
    try:
        program = find_program(target, trial.as_module)
    except LaunchError as error:
        print(f"unstuck: {error}", file=sys.stderr)
        return 2
    writer = Writer(folder)
    outputs = Outputs(stage, folder) if stage else None
    lab = intervene(trial.changes)
    lab.stage = stage.root if stage else ""
    losses = _Losses(lab)
    ending = _Ending(trial)
    probe = comparisons = None
    if trial.show_data:
        from unstuck.capture.preview.first_batch_probe import FirstBatchProbe
        from unstuck.capture.trial.comparisons import Comparisons

        probe, comparisons = FirstBatchProbe(lab, writer), Comparisons(lab)
    session = Session(writer, (), trial.every, ending, stage=lab.stage, probe=probe, comparisons=comparisons)
    run = WatchedRun(program, trial.target, trial.arguments, writer, session)

    before = set(sys.modules)

    def note() -> None:
        found = {"modules": _libraries(before), "losses": losses.values(), "refused": _refused(run.error)}
        own = {**lab.notes, **found, TOKEN: trial.token}
        (Path(folder) / NOTES).write_bytes(msgspec.json.encode(own))

    def stop(reason: str) -> None:
        # Nothing of the program is of use any more, neither its `finally` blocks nor the threads it left.
        try:
            run.stop(reason)
            if reason != StopReason.TIME_OVER:
                lab.trial_ended()
            note()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(0)

    ending.stop, ending.step_ended, ending.has_enough = stop, lab.step_ended, lambda: lab.has_enough
    signal.signal(signal.SIGTERM, lambda *_: stop(StopReason.TIME_OVER))
    if outputs is not None:
        outputs.redirect()
    code = run.start()
    lab.trial_ended()
    note()
    return code


def _edit(edits: Iterable[Edit], place: Callable[[str], str]) -> None:
    """Apply edits to files of the trial's own; `place` says where the one of a path is."""
    from unstuck.source.documents.document import open_document

    by_file: dict[str, list[Edit]] = {}
    for edit in edits:
        by_file.setdefault(edit.path, []).append(edit)
    for path, changes in by_file.items():
        own = Path(place(path))
        own.write_bytes(open_document(own).edited(changes).raw)


def _refused(error: BaseException | None) -> str:
    """What the program could have written by itself, and could not in a trial, if that has ended it: a path, or what a
    library said of it."""
    path = (error.filename2 or error.filename) if isinstance(error, OSError) else None
    if isinstance(error, OSError) and isinstance(path, str | bytes):
        named = os.fsdecode(path)
        is_ours = error.errno in REFUSALS and (error.errno not in (errno.EACCES, errno.EPERM) or _may_write(named))
        return os.fsencode(named).decode(errors="replace") if is_ours else ""
    if error is not None and any(os.strerror(number) in str(error) for number in REFUSALS):
        return str(error).splitlines()[0][:LONGEST_REFUSAL]
    return ""


def _may_write(path: str) -> bool:
    """Is it the user's to write, by its permissions?"""
    return os.access(path if os.path.lexists(path) else os.path.dirname(os.path.abspath(path)), os.W_OK)


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
        self.has_enough: Callable[[], bool] = lambda: False
        self._limits = [change for change in trial.changes if isinstance(change, StopAfter)]
        self._began = time.monotonic()
        self._sweeps = any(isinstance(change, SweepRate) for change in trial.changes)
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
            self.stop(StopReason.DIVERGED)
        steps, seconds = self._windows // max(1, len(self._optimizers)), time.monotonic() - self._began
        if self.has_enough() or any(limit.is_reached(steps, seconds) for limit in self._limits):
            self.stop(StopReason.STEPS_TAKEN)
