"""The live page of a run, served by a process of its own: the run has no child of ours, and no thread."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def serve_aside(folder: Path) -> None:
    """Start `unstuck view` for this run. It prints its address and ends when the run has and nobody looks any more."""
    command = [sys.executable, "-m", "unstuck", "view", "--while-running", str(folder.absolute())]
    if not hasattr(os, "fork"):
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        return
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    try:
        # Of a session of its own, so that a Ctrl-C for the run is not one for the page; and not our child, so that a
        # program that waits for its children does not meet one that it did not start.
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    finally:
        os._exit(0)
