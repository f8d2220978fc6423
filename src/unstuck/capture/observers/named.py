"""Losses of the user's own that a run is asked to record: where they will appear, and when."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType

from unstuck.capture.launch.importing import after_import
from unstuck.capture.launch.program import LaunchError, Program

MAIN = "__main__"


class NamedLoss:
    """A function or class, by its name and by the module or file that defines it."""

    def __init__(self, target: str, name: str, modules: tuple[str, ...], file: str = "") -> None:
        self.target = target
        self.name = name
        self.modules = modules
        """Under which names that module can be imported."""
        self.file = file
        """Where the module must lie, if a file was named."""
        self.seen = False

    def is_in(self, module: ModuleType) -> bool:
        """Is this the module that was meant?"""
        path = getattr(module, "__file__", None)
        return not self.file or (path is not None and os.path.realpath(path) == os.path.realpath(self.file))


def named_losses(targets: Iterable[str], program: Program, script: str) -> tuple[NamedLoss, ...]:
    """What the words after `--loss` mean: `losses:my_loss`, `losses.py:my_loss`, or `my_loss` for the script's own."""
    return tuple(_parsed(target, program, script) for target in targets)


def _parsed(target: str, program: Program, script: str) -> NamedLoss:
    where, _, name = target.rpartition(":")
    if not name.isidentifier():
        raise LaunchError(f"--loss {target} names no loss; write --loss losses:my_loss, or my_loss if {script} has it.")
    if _is_main(where, program, script):
        if not program.defines(name):
            raise LaunchError(
                f"{script} defines no function or class {name!r} at its top level; if it imports it, name the module "
                f"that defines it, such as --loss losses:{name}."
            )
        return NamedLoss(target, name, (MAIN,))
    if where.split(".")[0] == "torch":
        raise LaunchError(f"--loss {target} is a loss of torch; those are recorded without being named.")
    if not where.endswith(".py"):
        return NamedLoss(target, name, (where,))
    if not os.path.isfile(where):
        raise LaunchError(f"--loss {target}: there is no file {where}.")
    return NamedLoss(target, name, _importable(where), os.path.abspath(where))


def _is_main(where: str, program: Program, script: str) -> bool:
    if where.endswith(".py"):
        return os.path.realpath(where) == os.path.realpath(program.path)
    return where in ("", MAIN, script, os.path.basename(script).removesuffix(".py"))


def _importable(path: str) -> tuple[str, ...]:
    """`a/b/losses.py` may be imported as losses, b.losses or a.b.losses."""
    words = os.path.abspath(path).removesuffix(".py").split(os.sep)
    words = words[:-1] if words[-1] == "__init__" else words
    return tuple(
        ".".join(words[start:]) for start in range(1, len(words)) if all(w.isidentifier() for w in words[start:])
    )


def when_imported(loss: NamedLoss, found: Callable[[ModuleType], object]) -> list[Callable[[], None]]:
    """Call `found` with the loss's module as soon as it has been imported. Returns what calls this off."""

    def look(name: str) -> None:
        module = sys.modules.get(name)
        if module is not None and not loss.seen and loss.is_in(module):
            found(module)

    waiting = [name for name in loss.modules if name != MAIN]
    for name in waiting:
        look(name)
    return [] if loss.seen else [after_import(name, partial(look, name)) for name in waiting]
