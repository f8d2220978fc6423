"""Makes experiments on many short scripts quickly: one process imports torch, and every trial is a fork of it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unstuck.findings.results import Experiment
    from unstuck.trials.runner import Runner

SECONDS = 60.0
"""What an experiment on an example may take."""


def experiment_on(code: str, name: str, script: str = "train.py") -> Experiment:
    """Run the experiment of this name on a script, given as its text."""
    from unstuck.experiments import find_experiment
    from unstuck.trials.context import Context
    from unstuck.trials.runner import Program

    kind = find_experiment(name)
    assert kind is not None, f"there is no experiment {name}"
    runner, home = _runner()
    (home / script).write_text(code, encoding="utf-8")
    runner.program = Program(script)
    return kind(Context(runner, SECONDS))


@functools.cache
def _runner() -> tuple[Runner, Path]:
    """The one of this process, and the folder in which its scripts lie."""
    from unstuck.trials.runner import Program, Runner

    folder = Path(tempfile.mkdtemp())
    home = folder / "home"
    home.mkdir()
    with contextlib.chdir(home):
        runner = Runner(Program(""), folder / "trials").__enter__()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(runner.__exit__)
    return runner, home
