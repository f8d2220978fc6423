"""Runs many short scripts under watch quickly: one process imports torch, and each script runs in a fork of it."""

from __future__ import annotations

import atexit
import functools
import os
import signal
import subprocess
import sys
import traceback
from typing import IO

OUTPUT = "output.txt"
LONGEST_RUN = 120
"""Seconds after which a script is taken to hang."""
TOOK_TOO_LONG = -signal.SIGALRM


class RunServer:
    """A process that has torch ready. `run` gives one script in one folder to a fork of it."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
        # Two threads on small tensors only wait for each other on a busy machine.
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "UNSTUCK_RAISE": "1"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        atexit.register(self.close)

    def run(self, folder: str, arguments: list[str]) -> int:
        """Exit code of `unstuck ARGUMENTS` in the folder; what it prints goes into `output.txt` there."""
        _pipe(self._process.stdin).write("\t".join([folder, *arguments]) + "\n")
        _pipe(self._process.stdin).flush()
        return int(_pipe(self._process.stdout).readline())

    def close(self) -> None:
        """Let the process end."""
        _pipe(self._process.stdin).close()
        _pipe(self._process.stdout).close()
        self._process.wait()


@functools.cache
def run_server() -> RunServer:
    """The one of this process."""
    return RunServer()


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def serve() -> None:
    """What the process does: run the script of each line that it is sent."""
    _import_what_runs_need()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(*line.rstrip("\n").split("\t"))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _import_what_runs_need() -> None:
    """Building an optimizer imports torch._dynamo, and a report imports every rule: most of the time of a short run."""
    import importlib

    from unstuck.rule import load_witnesses

    load_witnesses()
    ours = ("capture.torch_hooks.attach", "cli.verbs.run", "watch.monitor", "result", "report.text", "source")
    for name in ("torch._dynamo", *(f"unstuck.{name}" for name in ours)):
        importlib.import_module(name)


def _become(folder: str, *arguments: str) -> None:
    """Be `unstuck ARGUMENTS` in the folder, then end."""
    code = 70
    try:
        signal.alarm(LONGEST_RUN)
        os.chdir(folder)
        output = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        empty = os.open(os.devnull, os.O_RDONLY)
        for wanted, stream in ((empty, 0), (output, 1), (output, 2)):
            os.dup2(wanted, stream)
        from unstuck.cli import main

        code = main(list(arguments))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
