"""The `unstuck` command. A command is a file in `verbs/`, found by its name and loaded when it is called.

Each file states its line of help as `HELP = "..."` and where it is listed as `GROUP = "..."`, both plain one-line
strings: `unstuck --help` reads them from the text of the files, since importing all of them would take too long.
"""

from __future__ import annotations

import errno
import os
import sys

from unstuck._version import __version__
from unstuck.cli.common import BAD_INPUT, CLEAN, INTERNAL, INTERRUPTED, Stop, apology

TYPE_CHECKING = False  # the one of `typing` costs as much time as the rest of `unstuck --version`
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GROUPS = {"cause": "find the cause", "experiment": "run one experiment on a script", "more": "more"}
"""Where a command is listed, and the heading there."""
HELP = """usage: unstuck [-h] [--version] COMMAND ...

Finds why a PyTorch run does not learn, shows the evidence, and says what to change.

options:
  -h, --help  show this help and exit
  --version   show the version and exit
{commands}
Run `unstuck COMMAND --help` for details. Start with: unstuck diagnose train.py
"""
PIPE_CLOSED = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Every failure is one sentence, never a traceback of ours."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and words[:1] == ["lint"]:
        _start_quickly()
    try:
        code = _dispatch(words)
        if sys.stdout is not None and not sys.stdout.closed:  # `run` executes a script, which may close it
            sys.stdout.flush()
    except Stop as stop:
        # The sentence may quote what a script printed: drop the characters that control a terminal.
        sentence = "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in str(stop))
        print(f"unstuck: {sentence}", file=sys.stderr)
        return stop.code
    except BrokenPipeError:
        _discard_output()
        return PIPE_CLOSED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return _report_bug(error)
        _discard_output()
        print("unstuck: cannot write the output: no space left on the disk.", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("unstuck: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return _report_bug(error)
    if arguments is None and words[:1] == ["lint"]:
        _end_quickly(code)
    return code


def _start_quickly() -> None:
    """For `lint`, whose process runs nobody else's code and is mostly start-up."""
    import gc

    gc.disable()  # until the rules are loaded: collecting garbage would take a tenth of the time of a short lint
    if "typing_extensions" not in sys.modules:
        # msgspec then falls back to `typing`, which has all that it needs; a third of the time it takes to import.
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]
        try:
            import msgspec  # noqa: F401
        finally:
            del sys.modules["typing_extensions"]


def _end_quickly(code: int) -> None:
    """The other end of `_start_quickly`: to take every module apart again takes as long as a few imports."""
    if sys.gettrace() is None and sys.getprofile() is None:  # whoever watches us wants to go on
        import atexit

        atexit._run_exitfuncs()
        if sys.stderr is not None:
            sys.stderr.flush()
        os._exit(code)


def commands() -> dict[str, tuple[str, str]]:
    """Every command with its group and its line of help: in the order of the groups, then by name."""
    from unstuck.experiments import all_experiments
    from unstuck.importable import importable

    found = {}
    for verb, file in importable([os.path.join(os.path.dirname(__file__), "verbs")]):
        stated = {}
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                if line.startswith(("HELP = ", "GROUP = ")):
                    key, _, value = line.partition(" = ")
                    stated[key] = value.strip().strip('"')
        found[verb] = (stated["GROUP"], stated["HELP"])
    found |= {kind.name: ("experiment", kind.question) for kind in all_experiments()}
    return {verb: found[verb] for group in GROUPS for verb in found if found[verb][0] == group}


def _dispatch(words: list[str]) -> int:
    if not words:
        sys.stderr.write(_help())
        return BAD_INPUT
    verb = words[0]
    if verb in ("-h", "--help", "--version"):
        print(f"unstuck {__version__}" if verb == "--version" else _help(), end="\n" * (verb == "--version"))
        return CLEAN
    command = _command(verb)
    if command is None:
        raise Stop(_unknown(verb))
    if verb != "run":  # `run` leaves streams and directory to the script
        try:
            os.getcwd()
        except OSError:
            raise Stop("the current directory is gone; change to one that exists.") from None
        sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    return command(words[1:])


def _command(verb: str) -> Callable[[Sequence[str]], int] | None:
    """What a command does: the `main` of its file, or the experiment of this name."""
    if not verb.isalnum():
        return None
    if os.path.exists(os.path.join(os.path.dirname(__file__), "verbs", f"{verb}.py")):
        from importlib import import_module

        main: Callable[[Sequence[str]], int] = import_module(f"unstuck.cli.verbs.{verb}").main
        return main
    from unstuck.experiments import find_experiment

    kind = find_experiment(verb)
    if kind is None:
        return None
    from unstuck.cli import trying

    return lambda arguments: trying.experiment(kind, arguments)


def _help() -> str:
    found = commands()
    lines = []
    for group, heading in GROUPS.items():
        lines += ["", f"{heading}:"]
        lines += [f"  {verb:<12}  {text}" for verb, (of, text) in found.items() if of == group]
    return HELP.format(commands="\n".join(lines) + "\n")


def _unknown(word: str) -> str:
    from difflib import get_close_matches

    if word.startswith("-"):
        return f"there is no option {word!r}; `unstuck --help` lists the options and commands."
    close = get_close_matches(word, commands(), 1)
    if close:
        return f"there is no command {word!r}; did you mean {close[0]!r}?"
    hint = f"; to run a script under watch: unstuck run {word}" if word.endswith(".py") else ""
    return f"there is no command {word!r}; the commands are {', '.join(commands())}{hint}."


def _report_bug(error: Exception) -> int:
    if os.environ.get("UNSTUCK_RAISE"):
        raise error
    print(apology(error), file=sys.stderr)
    return INTERNAL


def _discard_output() -> None:
    """Without this, Python complains again when it flushes at exit."""
    from contextlib import suppress

    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
