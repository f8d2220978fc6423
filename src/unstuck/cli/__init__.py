"""The `unstuck` command: one file per verb, loaded when it is asked for."""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from unstuck._version import __version__
from unstuck.cli.common import BAD_INPUT, INTERNAL, INTERRUPTED, HelpFormatter, Stop, apology

VERBS = {
    "diagnose": "find out why a script does not learn: watch it, try remedies, experiment",
    "lint": "find mistakes in scripts without running them",
    "run": "run a training script and say why it does not learn",
    "prove": "try the remedy of everything that is found in a script",
    "check": "look at a model, its loss, optimizer and one batch before training",
    "surface": "show a loss on its own and say what is wrong with its shape",
    "report": "judge the record of an earlier run again",
    "clean": "remove old records and the answers that lint keeps",
    "lsp": "serve an editor: findings while you type, pages, quick fixes",
    "explain": "read about one pitfall",
    "rules": "list every pitfall that is recognised",
    "doctor": "try on this machine what is promised",
}
"""Those with a file of their own under `verbs/`."""
PIPE_CLOSED = 141


def all_verbs() -> dict[str, str]:
    """Every command and what it does: those above, and before `prove` the experiments."""
    from unstuck.experiments import all_experiments

    listed: dict[str, str] = {}
    for verb, what in VERBS.items():
        if verb == "prove":
            listed |= {kind.name: kind.question for kind in all_experiments()}
        listed[verb] = what
    return listed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Whatever goes wrong is one sentence, never our traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _dispatch(words)
        if sys.stdout is not None and not sys.stdout.closed:  # a script that was run may have closed it
            sys.stdout.flush()
    except Stop as stop:
        print(f"unstuck: {_harmless(str(stop))}", file=sys.stderr)
        return stop.code
    except BrokenPipeError:
        _flush_nowhere()  # the reader has seen enough
        return PIPE_CLOSED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return _failed(error)
        _flush_nowhere()
        print("unstuck: the output cannot be written: no space is left on the disk.", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("unstuck: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return _failed(error)
    return code


def _failed(error: Exception) -> int:
    """The fault is ours."""
    if os.environ.get("UNSTUCK_RAISE"):
        raise error
    print(apology(error), file=sys.stderr)
    return INTERNAL


def _check_directory() -> None:
    try:
        os.getcwd()
    except OSError:
        raise Stop("the current directory is gone; change to one that exists.") from None


def _harmless(text: str) -> str:
    """Without characters that a terminal would obey: it may quote what a script printed."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def _flush_nowhere() -> None:
    """Without this, Python complains again when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(words: list[str]) -> int:
    verb = _find_verb(words[0]) if words else None
    if verb is not None:
        if words[0] != "run":  # whose streams and directory are the script's
            _check_directory()
            sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
        return verb(words[1:])
    parser = _parser(VERBS if words == ["--version"] else all_verbs())  # which takes longer than a version
    if not words:
        parser.print_help(sys.stderr)
        return BAD_INPUT
    parser.parse_args(words[:1])
    raise Stop(_unknown_verb(words[0]))


def _find_verb(word: str) -> Callable[[Sequence[str]], int] | None:
    if word in VERBS:
        main: Callable[[Sequence[str]], int] = importlib.import_module(f"unstuck.cli.verbs.{word}").main
        return main
    if word.startswith("-"):
        return None
    from unstuck.experiments import find_experiment

    kind = find_experiment(word)
    if kind is None:
        return None
    from unstuck.cli import trying

    return functools.partial(trying.experiment, kind)


def _parser(verbs: dict[str, str]) -> argparse.ArgumentParser:
    listed = "\n".join(f"  {verb:<12}  {what}" for verb, what in verbs.items())
    parser = argparse.ArgumentParser(
        prog="unstuck",
        usage="unstuck [-h] [--version] COMMAND ...",
        description="Finds why a PyTorch run does not learn, shows the evidence, and says what to change.",
        epilog=f"commands:\n{listed}\n\n`unstuck COMMAND --help` tells more. Start with: unstuck diagnose train.py",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"unstuck {__version__}")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    return parser


def _unknown_verb(word: str) -> str:
    import difflib

    verbs = all_verbs()
    close = difflib.get_close_matches(word, verbs, 1)
    if close:
        return f"there is no command {word!r}; did you mean {close[0]!r}?"
    hint = f"; to watch a script: unstuck run {word}" if word.endswith(".py") else ""
    return f"there is no command {word!r} among {', '.join(verbs)}{hint}."


__all__ = ["VERBS", "all_verbs", "main"]
