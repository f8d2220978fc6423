"""Finds the program to run and builds the `__main__` that python would have built for it."""

from __future__ import annotations
import __future__

import ast
import builtins
import importlib.machinery
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Collection, Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any


class LaunchError(Exception):
    """The program cannot be started; its text is one sentence for the user."""


class Program:
    """Something that can run as `__main__`. Its code is compiled only when it starts, as python does."""

    def __init__(self, path: str, argument: str, directory: str, spec: ModuleSpec | None) -> None:
        self.path = path
        self.argument = argument
        """What the program sees as `sys.argv[0]`."""
        self.directory = directory
        """What python would put in front of `sys.path`."""
        self.spec = spec

    def source(self) -> bytes | None:
        """The text of the program, where it is a file."""
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except OSError:
            return None

    def main_module(self) -> ModuleType:
        """A fresh `__main__` with the attributes python gives it, in python's order."""
        spec = self.spec
        module = ModuleType("__main__")
        names = module.__dict__
        names["__package__"] = None if spec is None else spec.parent
        names["__loader__"] = SourceFileLoader("__main__", self.path) if spec is None else spec.loader
        names["__spec__"] = spec
        names["__annotations__"] = {}
        names["__builtins__"] = builtins
        names["__file__"] = self.path
        names["__cached__"] = None if spec is None else spec.cached
        return module

    def code(self) -> CodeType:
        """Compile it; a syntax error is the program's."""
        if self.spec is None:
            source = self.source()
            if source is None:
                raise LaunchError(f"{self.path} cannot be read; check the path and its permissions.")
            compiled: CodeType = compile(source, self.path, "exec", dont_inherit=True)
            return compiled
        loader: Any = self.spec.loader
        found = loader.get_code(self.spec.name)
        if found is None:
            raise LaunchError(f"{self.spec.name} has no Python code that could be run.")
        assert isinstance(found, CodeType)
        return found

    def parts(self, names: Collection[str]) -> Iterator[tuple[CodeType, str]]:
        """Its code in pieces, each ending with the definition of one of these names; the last with none.

        Run one after the other in the same namespace they do what the whole does.
        """
        whole = self.code()
        if not names:
            yield whole, ""
            return
        flags = whole.co_flags & sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
        for body, name in _pieces(self.statements(), names):
            module = ast.Module(body, type_ignores=[])
            piece: CodeType = compile(module, whole.co_filename, "exec", flags=flags, dont_inherit=True)
            yield piece, name

    def statements(self) -> list[ast.stmt]:
        """What is at its top level; a syntax error is the program's."""
        return ast.parse(self.source() or b"", self.path).body

    def defines(self, name: str) -> bool:
        """Is there a function or class of this name at its top level?"""
        try:
            return any(_name_of(statement) == name for statement in self.statements())
        except SyntaxError:
            return True  # which the program will tell itself


def _pieces(statements: list[ast.stmt], names: Collection[str]) -> Iterator[tuple[list[ast.stmt], str]]:
    piece: list[ast.stmt] = []
    defined = ""
    for statement in statements:
        # A text at the beginning of a piece would be taken for the docstring of the program.
        if defined and not _is_text(statement):
            yield piece, defined
            piece, defined = [], ""
        piece.append(statement)
        defined = _name_of(statement) if _name_of(statement) in names else defined
    yield piece, defined


def _name_of(statement: ast.stmt) -> str:
    return statement.name if isinstance(statement, ast.FunctionDef | ast.ClassDef) else ""


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def find_script(target: str) -> Program:
    """What `python target` runs: a file, or a directory or zip file with a `__main__.py`."""
    if not os.path.exists(target):
        raise LaunchError(f"There is no file {target}; check the path, or use -m to run a module.")
    if target.endswith(".ipynb"):
        raise LaunchError(
            f"{target} is a notebook: lint it with `unstuck lint {target}`, or call unstuck.watch() in it."
        )
    path = os.path.abspath(target)
    importer = pkgutil.get_importer(path)
    spec = importer.find_spec("__main__") if importer is not None else None
    if spec is not None and spec.origin:
        return Program(spec.origin, target, path, spec)
    if os.path.isdir(target):
        raise LaunchError(f"{target} is a directory without a __main__.py; name the script inside it.")
    return Program(path, target, os.path.dirname(os.path.realpath(target)), None)


def find_module(target: str) -> Program:
    """What `python -m target` runs: a module, or the `__main__` of a package."""
    spec = _module_spec(target)
    if spec.submodule_search_locations is not None:
        try:
            spec = _module_spec(f"{target}.__main__")
        except LaunchError:
            raise LaunchError(f"{target} is a package without a __main__ module; name the module inside it.") from None
    if not spec.origin or spec.loader is None:
        raise LaunchError(f"{target} has no Python code that could be run.")
    return Program(spec.origin, spec.origin, os.getcwd(), spec)


def _module_spec(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        raise LaunchError(f"There is no module named {error.name}; check the name and the current directory.") from None
    except (ImportError, ValueError) as error:
        raise LaunchError(f"The module {name} cannot be found ({error}).") from None
    if spec is None:
        raise LaunchError(f"There is no module named {name}; check the name and the current directory.")
    return spec


CONSOLE_SCRIPTS = ("unstuck", "unstuck.exe", "unstuck-script.py", "unstuck-script.pyw")


def set_stage(program: Program, arguments: list[str]) -> ModuleType:
    """Make `sys` and `__main__` look as they do when python starts the program."""
    sys.orig_argv = _words_of_python(arguments)
    sys.argv = [program.argument, *arguments]
    main = program.main_module()
    sys.modules["__main__"] = main
    return main


def _words_of_python(arguments: list[str]) -> list[str]:
    """`python -X dev -m unstuck run --quiet train.py 3` as `python -X dev train.py 3`."""
    words, own = sys.orig_argv, sys.argv
    start = words[: len(words) - len(own) + 1]  # the interpreter, its options, and how it was told to run us
    is_module = start[-2:] == ["-m", "unstuck"]
    is_ours = is_module or os.path.basename(start[-1]) in CONSOLE_SCRIPTS if start else False
    if not is_ours or len(own) < len(arguments) + 2 or words[len(start) :] != own[1:]:
        return words
    target = len(own) - len(arguments) - 1
    flag = ["-m"] if own[target - 1] == "-m" else []
    return [*start[: -2 if is_module else -1], *flag, *own[target:]]
