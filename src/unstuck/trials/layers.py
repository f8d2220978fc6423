"""What trials write lies in the folder of their run, and is gone with them: at their end, or at the next start if they
and we were killed together."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from unstuck.capture.trial.layout import LAYER, PROBE, TEMPORARY_LINK, TEMPORARY_PREFIX
from unstuck.record.in_use import is_locked
from unstuck.record.own_folder import NotOurs, remove_own_tree
from unstuck.record.runs import is_run, run_folders


def sweep() -> None:
    """Remove what trials of earlier runs left that were killed."""
    for run in run_folders(strict=False):
        if is_run(run) and os.path.lexists(run / LAYER) and not is_locked(run):
            remove_layer(run)


def remove_layer(run: Path) -> None:
    """Remove all that the trials of a run wrote. Links in it are removed, never what they lead to."""
    with contextlib.suppress(OSError):
        temporary = Path(os.readlink(run / LAYER / TEMPORARY_LINK))
        if temporary.name.startswith(TEMPORARY_PREFIX) and temporary.parent == Path(tempfile.gettempdir()):
            with contextlib.suppress(NotOurs):
                remove_own_tree(temporary, below=temporary.parent)
    for name in (PROBE, LAYER):  # what the next start looks for comes last
        with contextlib.suppress(OSError, NotOurs):
            remove_own_tree(run / name, below=run.parent)
