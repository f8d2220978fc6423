"""`unstuck view [RUN]`: open the page of a run, while it is still going on or afterwards."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from unstuck.cli import common
from unstuck.cli.runs import refuse_all_runs, run_named, runs_by_age

HELP = "open the page of a run, live while it is still training"
GROUP = "more"

DESCRIPTION = """Open the page of the newest run, or of RUN: the answer, and charts of everything that was recorded.

While the run is going on the page follows it. It reads the record only, so it cannot slow the run
down. The page is served to this machine only, at an address with a secret in it."""
EPILOG = """exit codes:
  0   you ended it, or the run was shown
  2   wrong usage, or a run that cannot be read
"""
STAYS = 60.0
"""Seconds for which the page of `run --view` stays there when the run has ended and nobody looks at it."""


def main(arguments: Sequence[str]) -> int:
    """Serve the page until Ctrl-C, or show the run in the terminal."""
    parser = common.verb_parser("view", DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="a record, its folder, or the name of a run here (default: the newest)"
    )
    parser.add_argument("--terminal", action="store_true", help="show it here, in the terminal, as over SSH")
    parser.add_argument(
        "--port", type=_port, default=0, metavar="N", help="the port to listen on (default: a free one)"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the address to listen on (default: 127.0.0.1, which other machines cannot reach)",
    )
    parser.add_argument("--no-open", action="store_true", help="print the address and open no browser")
    parser.add_argument("--while-running", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    path = _chosen(options)
    if options.terminal:
        return _show(path)
    return _serve(options, path)


def _show(path: Path | None) -> int:
    from unstuck.record import RecordError
    from unstuck.view.terminal import show

    try:
        return show(path, sys.stdout)
    except RecordError as error:
        raise common.Stop(str(error)) from None


def _port(word: str) -> int:
    number = common.positive_integer(word)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{word} is not a port; they go up to 65535")
    return number


def _chosen(options: argparse.Namespace) -> Path | None:
    """The run that was named; None for whichever is the newest."""
    if options.run in (None, "latest"):
        folders = runs_by_age()
        if options.terminal and not folders:
            raise common.Stop("there is no run in .unstuck/runs; record one with: unstuck run train.py")
        return folders[0] if options.terminal else None
    if options.while_running:
        return Path(options.run)
    path = run_named(options.run)
    if path.suffix == ".jsonl":
        path = path.parent
    refuse_all_runs(path)
    if not _is_run(path):
        raise common.Stop(f"{options.run} is not a run; `unstuck view` without a name shows the newest one here.")
    return path


def _is_run(path: Path) -> bool:
    """Is there a record, in it or in the folders of its trials, or does a process begin to write one?"""
    from unstuck.record.in_use import is_in_use
    from unstuck.record.runs import is_run
    from unstuck.record.store import record_file
    from unstuck.view.live import watched_in

    return path.is_dir() and (record_file(watched_in(path)).exists() or (is_run(path.absolute()) and is_in_use(path)))


def _serve(options: argparse.Namespace, path: Path | None) -> int:
    from unstuck.view.live import Runs
    from unstuck.view.server import LOOPBACK, Server

    runs = Runs([path] if path is not None else [])
    try:
        server = Server(runs, options.host, options.port)
    except (OSError, OverflowError) as error:
        where = f"{options.host}:{options.port}" if options.port else options.host
        why = getattr(error, "strerror", None) or str(error)
        raise common.Stop(f"cannot listen on {where} ({why}).") from None
    if options.host not in (LOOPBACK, "localhost", "::1"):
        print(
            "unstuck: warning: other machines can reach this page. Whoever has its address can read your runs and the "
            "lines of your scripts in them, and it is sent unencrypted.",
            file=sys.stderr,
        )
    address = server.address + (f"#run={_escaped(path.name)}" if path is not None else "")
    stays = ", while the script runs and as long as it is open" if options.while_running else "; Ctrl-C ends it"
    print(f"unstuck: the page is at {address}{stays}", file=sys.stderr, flush=True)
    if options.while_running:
        _let_go()
    elif not options.no_open:
        _open(address)
    runs.look()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        server.work(_over(server, path) if options.while_running and path is not None else lambda: False)
    server.stop()
    server.shutdown()
    return common.CLEAN


def _over(server: object, path: Path) -> Callable[[], bool]:
    """Has the run ended, and does nobody look any more?"""
    from unstuck.record.in_use import is_in_use
    from unstuck.view.server import Server

    assert isinstance(server, Server)
    ended: list[float] = []

    def is_over() -> bool:
        if not ended and not is_in_use(path):
            ended.append(time.monotonic())
        quiet_since = max(server.last_left, ended[0]) if ended else time.monotonic()
        return server.streams == 0 and time.monotonic() - quiet_since > STAYS

    return is_over


def _escaped(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def _let_go() -> None:
    """Whoever reads the output of the program must not wait for this process."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


def _open(address: str) -> None:
    """In a browser with a window; one in the terminal would take it."""
    if sys.platform.startswith(("darwin", "win")) or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        import webbrowser

        with contextlib.suppress(webbrowser.Error, OSError):
            webbrowser.open(address)
