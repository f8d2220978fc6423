"""A run under a launcher: which rank prints the full report, and when findings change the exit code.

Launchers such as torchrun kill all ranks as soon as one fails. A rank whose program succeeded must therefore exit with
0, whatever the findings, while another rank is running.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import sys
from pathlib import Path
from typing import Any, TextIO, cast

from unstuck.cli import common
from unstuck.cli.launchers import Rank
from unstuck.cli.peers import PATIENCE, Peers, can_be_seen


class Job:
    """The job that this process belongs to; for a plain run, without a launcher, nothing changes."""

    def __init__(self, rank: Rank | None, options: argparse.Namespace) -> None:
        self.rank = rank
        self._is_asked = options.fail_on is not None
        self._speaks = not options.quiet and (options.format == "text" or bool(options.output))
        self._must_wait = False
        options.fail_on = options.fail_on or "error"
        if rank is None:
            return
        if self._is_asked and rank.world > 1 and can_be_seen(rank):
            self._peers = Peers(rank)
            # Registered first, so called last: after the exit handlers of the program.
            atexit.register(self._wait)
        if rank.number:
            self._be_brief(rank, options)

    def _be_brief(self, rank: Rank, options: argparse.Namespace) -> None:
        """Rank 0 prints the full report; the others print one line per finding and write their own files."""
        if options.format == "text" and not options.output:
            options.format = "concise"
        for name in ("output", "html"):
            if getattr(options, name):
                file = Path(getattr(options, name))
                setattr(options, name, str(file.with_name(f"{file.stem}.rank{rank.number}{file.suffix}")))

    @property
    def is_first(self) -> bool:
        """Is this the only process of the job, or its first rank?"""
        return self.rank is None or self.rank.is_first

    def stream(self, stream: TextIO) -> TextIO:
        """The stream, which all ranks share, with the rank at the start of each line."""
        return (
            cast(TextIO, _Prefixed(stream, f"[rank {self.rank.number}] ")) if self.rank and self.rank.number else stream
        )

    def record_name(self, target: str) -> str:
        """The name for the record of this run."""
        return target if self.rank is None else f"{target.removesuffix('.py')}-rank{self.rank.number}"

    def exit_code(self, code: int, reported: int, folder: Path, stream: TextIO) -> int:
        """The exit code: `code` is the program's, `reported` that of a plain run."""
        rank = self.rank
        if rank is None:
            return reported
        if code or reported != common.FOUND:
            return code
        if self._is_asked and can_be_seen(rank):
            self._must_wait = rank.world > 1
            return reported
        if self._speaks and (self._is_asked or not rank.number):
            print(f"unstuck: {self._why_not(rank, folder)}", file=stream)
        return code

    def _why_not(self, rank: Rank, folder: Path) -> str:
        if can_be_seen(rank):
            return (
                f"findings do not change the exit code under {rank.launcher}. "
                "To make them count once all ranks have ended, use --fail-on."
            )
        import shlex

        return (
            "findings do not change the exit code, because ranks on other machines may still be running. "
            f"When the job has ended: unstuck report --fail-on error {shlex.quote(os.path.relpath(folder))}"
        )

    def _wait(self) -> None:
        try:
            if not self._must_wait or self._peers.wait():
                return
        except OSError:  # a rank that cannot be observed may still be running
            pass
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the program may have closed it
            waited = f"other ranks were still running after {PATIENCE / 60:.0f} minutes, so the exit code is 0"
            print(f"unstuck: {waited}.", file=sys.stderr, flush=True)
        _flush_everything()  # os._exit does not
        os._exit(common.CLEAN)


def _flush_everything() -> None:
    """Write what open files still hold, those of the program and of its libraries in C included."""
    import gc
    import io

    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).fflush(None)
    files = [held for held in gc.get_objects() if issubclass(type(held), io.IOBase)]
    text = [file for file in files if issubclass(type(file), io.TextIOBase)]
    for file in (sys.stdout, sys.stderr, *text, *files):  # text goes to a buffer first
        with contextlib.suppress(Exception):
            file.flush()


class _Prefixed:
    """A stream that starts every line with a prefix."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream = stream
        self._prefix = prefix
        self._is_at_start = True

    def write(self, text: str) -> int:
        lines = text.splitlines(keepends=True)
        for line in lines:
            self._stream.write((self._prefix if self._is_at_start else "") + line)
            self._is_at_start = line.endswith("\n")
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
