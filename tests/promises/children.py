"""What is done in a fork of this process, which has torch ready, and seen from outside."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def in_a_child(folder: Path, action: Callable[[], object]) -> tuple[int, str, str]:
    """Exit code, output and errors of what is done in a fork of this process, which has torch ready."""
    pipes = [os.pipe(), os.pipe()]  # a file would be as limited as the record
    process = os.fork()
    if process == 0:
        with contextlib.suppress(BaseException):
            _do(folder, action, [writing for _, writing in pipes])
        os._exit(99)
    texts = []
    for reading, writing in pipes:
        os.close(writing)
        with open(reading) as stream:
            texts.append(stream.read())
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), texts[0], texts[1]


def _do(folder: Path, action: Callable[[], object], streams: list[int]) -> None:
    os.environ.pop("UNSTUCK_RAISE", None)
    os.chdir(folder)
    with open(streams[0], "w") as sys.stdout, open(streams[1], "w") as sys.stderr:
        try:
            code = action()
        except BaseException:
            traceback.print_exc()
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0)
