"""`unstuck surface losses.py:my_loss`: plot a loss function and report what is wrong with its shape."""

from __future__ import annotations

import argparse
import ast
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstuck.cli import common

if TYPE_CHECKING:
    from unstuck.findings.surface import Surface
    from unstuck.findings.verdict import Verdict

HELP = "plot a loss function and report what is wrong with its shape"
GROUP = "cause"

DESCRIPTION = """Evaluate a loss on synthetic values, and show its surface, its gradients, and what is wrong with its
shape.

LOSS is FILE.py:NAME or MODULE:NAME: a function, a class or a torch module. The file is imported, so
its top-level code runs. Two losses are compared on the same axes."""
EPILOG = (
    common.EXIT_CODES
    + """
examples:
  unstuck surface losses.py:pair --x pos=-1:1 --y neg=-1:1 --at 0,0 --out surface.html
  unstuck surface torch.nn.functional:huber_loss --x input=-3:3 --fix target=0.0
  unstuck surface losses.py:old losses.py:new --desired pos=0.5:1
"""
)
MOST_LOSSES = 2
WITH_NUMBERS = ("--x", "--y", "--at", "--desired", "--fix")


def main(arguments: Sequence[str]) -> int:
    """Draw the losses and print the findings."""
    options = _parser().parse_args(_joined(arguments))
    _check(options)
    from unstuck.surface.loss import SurfaceError

    try:
        # What the user's file prints must not end up inside our report.
        with contextlib.redirect_stdout(sys.stderr):
            surfaces = _surfaces(options)
        _draw(surfaces, options.out)
    except SurfaceError as error:
        raise common.Stop(str(error)) from None
    from unstuck.judge import judge_surface, unite

    verdict = unite(judge_surface(surface) for surface in surfaces)
    _publish(surfaces, verdict, options)
    return common.exit_code(verdict, options.fail_on)


def _parser() -> argparse.ArgumentParser:
    parser = common.verb_parser("surface", DESCRIPTION, epilog=EPILOG)
    parser.add_argument("losses", nargs="+", metavar="LOSS", help="FILE.py:NAME or MODULE:NAME; one, or two to compare")
    parser.add_argument("--x", metavar="AXIS", help="first axis, NAME=LOW:HIGH[:POINTS] (default: from the signature)")
    parser.add_argument("--y", metavar="AXIS", help="second axis; a loss of one input is drawn as a curve")
    parser.add_argument("--at", metavar="X,Y", action="append", default=[], help="an operating point; may be repeated")
    parser.add_argument(
        "--fix", metavar="NAME=VALUE", action="append", default=[], help="set another input to a fixed value"
    )
    parser.add_argument(
        "--desired", metavar="NAME=LOW:HIGH", action="append", default=[], help="where descent should end"
    )
    parser.add_argument(
        "--component", metavar="NAME=LOSS", action="append", default=[], help="a part of the loss, for the table"
    )
    parser.add_argument(
        "--around", metavar="RUN", help="axes over the inputs that the loss received in a run: a record, or `latest`"
    )
    parser.add_argument(
        "--points", type=int, metavar="N", help="points along each axis (default: 80, or 400 for a curve)"
    )
    parser.add_argument("--dtype", choices=("float32", "float64", "float16", "bfloat16"), default="float32")
    parser.add_argument("--out", metavar="FILE", help="write a picture: .html (interactive), .png or .svg")
    common.add_report_options(parser)
    return parser


def _joined(arguments: Sequence[str]) -> list[str]:
    """Join `--at -1,0` into one word, since argparse reads a word that begins with a dash as an option."""
    words: list[str] = []
    for word in arguments:
        joins = words and words[-1] in WITH_NUMBERS and word[:1] == "-" and word[1:2] in "0123456789."
        if joins:
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def _check(options: argparse.Namespace) -> None:
    """Refuse what cannot work, before importing the user's file."""
    common.check_output(options.output)
    common.check_output(options.out)
    if len(options.losses) > MOST_LOSSES:
        raise common.Stop(f"{len(options.losses)} losses are too many; name one, or two to compare.")
    common.require_torch("surface")
    if options.out and Path(options.out).suffix not in (".html", ".png", ".svg"):
        raise common.Stop(f"--out {options.out} must end in .html, .png or .svg.")


def _surfaces(options: argparse.Namespace) -> list[Surface]:
    from unstuck.surface.load import load
    from unstuck.surface.scan import surface

    chosen: dict[str, Any] = {
        "fixed": dict(_pair(word, "--fix") for word in options.fix),
        "components": {name: load(where) for name, where in map(_component, options.component)},
        "desired": dict(_range(word) for word in options.desired) or None,
        "at": [_numbers(word, "--at", ",") for word in options.at],
        "points": options.points,
        "dtype": options.dtype,
    }
    first, *others = [load(target) for target in options.losses]
    if options.around:
        seen = _around(options, first, chosen)
    else:
        seen = surface(first, options.x, options.y, **chosen)
    return [seen, *(surface(other, *seen.axes, **chosen) for other in others)]


def _around(options: argparse.Namespace, loss: Any, chosen: dict[str, Any]) -> Surface:
    """The loss around the inputs of a run; a second loss gets the same fixed values and marks."""
    from unstuck.cli.runs import latest_record, record_at, run_named
    from unstuck.surface.scan import surface
    from unstuck.surface.shape.standing import with_standings
    from unstuck.surface.weights.around import around

    record = latest_record()[1] if options.around == "latest" else record_at(run_named(options.around))
    asked = [spec for spec in (options.x, options.y) if spec]
    name = options.losses[0].rpartition(":")[2]
    found = around(record, name, loss, wanted=[spec.partition("=")[0] for spec in asked], fixed=chosen["fixed"])
    axes = [spec if "=" in spec else axis for spec, axis in zip(asked, found.axes, strict=False)] or found.axes
    own = {f"your point {index}": at for index, at in enumerate(chosen["at"], 1)}
    chosen |= {"fixed": found.fixed, "at": {**found.at, **own}, "name": name}
    return with_standings(surface(found.loss, *axes, **chosen), found.notes)


def _component(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise common.Stop(f"--component {word} has no name; write --component NAME=FILE.py:FUNCTION.")
    return name, value


def _pair(word: str, option: str) -> tuple[str, Any]:
    """`target=1.0`, `target=[0, 1]`, `reduction=sum`: a Python literal, otherwise the text itself."""
    name, equals, value = word.partition("=")
    if not equals:
        raise common.Stop(f"{option} {word} has no value; write {option} NAME=VALUE.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _range(word: str) -> tuple[str, tuple[float, float]]:
    name, equals, value = word.partition("=")
    numbers = _numbers(value, "--desired", ":") if equals else ()
    if len(numbers) != 2 or numbers[0] > numbers[1]:
        raise common.Stop(f"--desired {word} is not a range; write --desired NAME=LOW:HIGH.")
    return name, (numbers[0], numbers[1])


def _numbers(word: str, option: str, between: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in word.split(between))
    except ValueError:
        raise common.Stop(f"{option} {word} contains something that is not a number.") from None


def _draw(surfaces: Sequence[Surface], out: str | None) -> None:
    if out is None:
        return
    from unstuck.surface import pictures

    try:
        pictures.write(surfaces, Path(out))
    except pictures.PlotsMissing as missing:
        raise common.Stop(str(missing), common.MISSING_DEPENDENCY) from None
    except OSError as error:
        raise common.Stop(f"cannot write {out}: {error.strerror or error}.") from None


def _publish(surfaces: Sequence[Surface], verdict: Verdict, options: argparse.Namespace) -> None:
    from unstuck.findings.result import Result

    result = Result(command="surface", verdict=verdict)
    if options.format == "json":
        from unstuck.report import json
        from unstuck.surface.document import document

        encoded = json.encode({**json.document(result), "surfaces": [document(surface) for surface in surfaces]})
        common.write_whole(options.output, encoded) if options.output else common.send(encoded, sys.stdout)
        return
    if options.format != "text":
        common.publish(result, options, sys.stdout)
        return
    from unstuck.report import terminal, text
    from unstuck.surface.text import render

    lines = [line for surface in surfaces for line in render(surface)]
    if len(surfaces) == MOST_LOSSES:
        from unstuck.surface.compare import sentences

        lines += [[(sentence, "")] for sentence in sentences(*surfaces)] + [[]]
    width = text.PROSE if options.output else terminal.columns_of(sys.stdout)
    lines += text.render(result, width)
    if options.out:
        lines += [[("Picture      ", "quiet"), (options.out, "command")]]
    if options.output:
        common.write_whole(options.output, terminal.plain(lines))
    else:
        terminal.show(lines, sys.stdout)
