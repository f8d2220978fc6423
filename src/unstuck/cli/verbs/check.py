"""`unstuck check train.py:objects`: check a model, its loss, optimizer and one batch before training."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstuck.cli import common

if TYPE_CHECKING:
    from unstuck.findings.verdict import Verdict

HELP = "check a model, its loss, optimizer and one batch before training"
GROUP = "cause"

ARGUMENTS = ("model", "loss_fn", "optimizer", "batch")
DESCRIPTION = """Check live objects before training, and report what would keep them from learning.

OBJECTS is FILE.py:FUNCTION or MODULE:FUNCTION. The function takes no arguments and returns the
model, the loss function, the optimizer and one batch: as a dict with the keys model, loss_fn,
optimizer and batch, as a tuple in this order, or as an object with these attributes. Only the model
is required. The file is imported, so its top-level code runs. With a loss and a batch, one step and
a few forward passes are tried, and everything is restored."""
EPILOG = (
    common.EXIT_CODES
    + """
examples:
  unstuck check train.py:objects
  unstuck check mypackage.training:build --fail-on warning
  unstuck check train.py:objects --format json --output check.json
"""
)


def main(arguments: Sequence[str]) -> int:
    """Call the function, check what it returns, and print the findings."""
    options = _parser().parse_args(list(arguments))
    common.check_output(options.output)
    common.require_torch("check")
    # What the user's file prints must not end up inside our report.
    with contextlib.redirect_stdout(sys.stderr):
        verdict = _checked(options.objects, _objects(options.objects))
    from unstuck.findings.result import Result

    common.publish(Result(command="check", verdict=verdict), options, sys.stdout)
    return common.exit_code(verdict, options.fail_on)


def _parser() -> argparse.ArgumentParser:
    parser = common.verb_parser("check", DESCRIPTION, epilog=EPILOG)
    parser.add_argument("objects", metavar="OBJECTS", help="FILE.py:FUNCTION or MODULE:FUNCTION")
    common.add_report_options(parser)
    return parser


def _objects(target: str) -> dict[str, Any]:
    from unstuck.surface.load import load
    from unstuck.surface.loss import SurfaceError

    where, colon, name = target.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise common.Stop(f"{target!r} does not name a function; write FILE.py:FUNCTION, such as train.py:objects.")
    with _importable_from_here():
        try:
            function = load(target)
        except SurfaceError as error:
            raise common.Stop(str(error)) from None
        if not callable(function):
            raise common.Stop(f"{target} is not a function; name one that returns the objects.")
        try:
            return _arguments(function(), target)
        except (Exception, SystemExit) as error:
            _reraise_ours(error)
            raise common.Stop(f"{target} raises when it is called{_line(error)}: {_first_line(error)}") from None


@contextlib.contextmanager
def _importable_from_here() -> Iterator[None]:
    """Make modules in the current directory importable, as `python -m` does, also for imports inside the function."""
    added = os.getcwd()
    sys.path.insert(0, added)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(added)


def _arguments(returned: Any, target: str) -> dict[str, Any]:
    """The arguments of `unstuck.check`, from what the function returned."""
    if isinstance(returned, Mapping):
        unknown = [str(key) for key in returned if key not in ARGUMENTS]
        if unknown:
            raise common.Stop(f"{target} returns an unknown key {unknown[0]!r}; the keys are {', '.join(ARGUMENTS)}.")
        found = dict(returned)
    elif isinstance(returned, tuple | list) and not hasattr(returned, "_fields"):
        if len(returned) > len(ARGUMENTS):
            raise common.Stop(
                f"{target} returns {len(returned)} values; return at most {len(ARGUMENTS)}: {', '.join(ARGUMENTS)}."
            )
        found = dict(zip(ARGUMENTS, returned, strict=False))
    else:
        found = {name: getattr(returned, name) for name in ARGUMENTS if hasattr(returned, name)}
    if found.get("model") is None:
        raise common.Stop(
            f"{target} returns no model; return a dict with the keys {', '.join(ARGUMENTS)} (only model is required)."
        )
    return found


def _checked(target: str, objects: dict[str, Any]) -> Verdict:
    from unstuck.check.objects import check
    from unstuck.check.probe import WHO_CALLED

    try:
        return check(**objects).verdict
    except (Exception, SystemExit) as error:
        _reraise_ours(error)
        if WHO_CALLED in getattr(error, "__notes__", ()):
            raise common.Stop(f"the objects of {target} do not run{_line(error)}: {_first_line(error)}") from None
        if isinstance(error, TypeError | ValueError):
            raise common.Stop(f"{target} cannot be checked: {error}") from None
        raise


def _reraise_ours(error: BaseException) -> None:
    if isinstance(error, common.Stop) or os.environ.get("UNSTUCK_RAISE"):
        raise error


def _line(error: BaseException) -> str:
    """The innermost line of the user's own code."""
    from unstuck.capture.places import Places

    places = Places().of_traceback(error.__traceback__)
    return f" at {Path(places[-1].path)}:{places[-1].line}" if places else ""


def _first_line(error: BaseException) -> str:
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__
