"""What trials write lies in the folder of their run, and is gone with them: at their end, or at the next start if they
and we were killed together."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from unstuck.interventions import LAYER, TEMPORARY_LINK, TEMPORARY_PREFIX
from unstuck.record.own_folder import NotOurs, remove_own_tree
from unstuck.record.runs import run_folders


def hold(run: Path) -> int:
    """Mark the folder of a run as in use, until all processes that have the descriptor are gone."""
    import fcntl

    opened = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(opened, fcntl.LOCK_SH)
    return opened


def is_held(run: Path) -> bool:
    """Does a living process use it?"""
    import fcntl

    try:
        opened = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(opened)
    return False


def sweep() -> None:
    """Remove what trials of earlier runs left that were killed."""
    for run in run_folders():
        if os.path.lexists(run / LAYER) and not is_held(run):
            remove_layer(run)


def remove_layer(run: Path) -> None:
    """Remove all that the trials of a run wrote. Links in it are removed, never what they lead to."""
    with contextlib.suppress(OSError):
        temporary = Path(os.readlink(run / LAYER / TEMPORARY_LINK))
        if temporary.name.startswith(TEMPORARY_PREFIX) and temporary.parent == Path(tempfile.gettempdir()):
            with contextlib.suppress(NotOurs):
                remove_own_tree(temporary, below=temporary.parent)
    with contextlib.suppress(OSError, NotOurs):
        remove_own_tree(run / LAYER, below=run.parent)
