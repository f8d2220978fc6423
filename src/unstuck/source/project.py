"""Modules of the user's own project, found beside the script and read for their definitions."""

from __future__ import annotations

import ast
import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unstuck.source.files import SourceError, read_text
from unstuck.source.scope import Scope, SourceFile, bind_import
from unstuck.source.values import UNKNOWN, Const, Symbol, UserClass, UserFunction, Value

LIBRARIES = frozenset(
    "torch torchvision torchaudio numpy np math os sys random time typing collections functools itertools json re "
    "argparse logging pathlib dataclasses copy tqdm matplotlib sklearn scipy pandas transformers datasets "
    "accelerate lightning pytorch_lightning wandb tensorboard tensorboardX builtins PIL cv2 gym gymnasium".split()
)
SEARCHED_PARENTS = 3


@contextmanager
def rare_collection() -> Iterator[None]:
    """Syntax trees are many small objects that stay: looking for garbage among them took half the time of a lint."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def parse(text: str, path: str) -> ast.Module:
    """The syntax tree of a file, or a SourceError that says where the syntax breaks."""
    from unstuck.events import Place

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, filename=path)
    except SyntaxError as problem:
        line, column = problem.lineno or 1, problem.offset or 1
        raise SourceError(
            f"{path}:{line}:{column} is not valid Python ({problem.msg}); fix the syntax and lint again.",
            Place(path, line, column),
        ) from None
    except (RecursionError, MemoryError, ValueError) as problem:
        raise SourceError(
            f"{path} cannot be parsed ({type(problem).__name__}: too deeply nested); it was skipped."
        ) from None


class Project:
    """Resolves `from model import Net` to the class in `model.py`."""

    def __init__(self) -> None:
        self._modules: dict[Path, Scope | None] = {}
        self._files: dict[tuple[str, str], Path | None] = {}

    def resolve(self, symbol: Symbol, importer: str) -> Value:
        """What a dotted name of the user's project stands for; the symbol itself if it is not theirs."""
        seen: set[str] = set()
        value: Value = symbol
        while isinstance(value, Symbol) and value.name not in seen:
            seen.add(value.name)
            found = self._find(value.name, importer)
            if found is None:
                return value
            value, importer = found
        return value

    def _find(self, name: str, importer: str) -> tuple[Value, str] | None:
        if name.split(".")[0] in LIBRARIES:
            return None
        module, _, attribute = name.rpartition(".")
        if not attribute or not module.strip("."):
            return None
        path = self._file(module, os.path.dirname(importer))
        scope = self.load(path) if path else None
        if path is None or scope is None:
            return None
        return scope.names.get(attribute, UNKNOWN), str(path)

    def _file(self, module: str, folder: str) -> Path | None:
        key = (module, folder)
        if key not in self._files:
            self._files[key] = self._search(module, Path(folder).resolve())
        return self._files[key]

    def _search(self, module: str, folder: Path) -> Path | None:
        stripped = module.lstrip(".")
        level = len(module) - len(stripped)
        parts = stripped.split(".")
        if level:
            above = [folder, *folder.parents]
            roots = above[level - 1 : level]
        else:
            roots = [folder, *list(folder.parents)[:SEARCHED_PARENTS]]
        for root in roots:
            base = root.joinpath(*parts)
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                if path.is_file():
                    return path
        return None

    def load(self, path: Path) -> Scope | None:
        """The definitions of a module of the user's; its statements are not followed."""
        if path not in self._modules:
            self._modules[path] = None
            self._modules[path] = self._read(path)
        return self._modules[path]

    def _read(self, path: Path) -> Scope | None:
        try:
            text = read_text(path)
            tree = parse(text, _shown(path))
        except SourceError:
            return None
        scope = Scope(file=SourceFile(_shown(path), text.split("\n")))
        define(tree.body, scope, self)
        return scope


def _shown(path: Path) -> str:
    """The path as the user would write it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def define(body: list[ast.stmt], scope: Scope, project: Project) -> None:
    """Bind the functions, classes, imports and constants of a module body."""
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            bind_import(statement, scope)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            scope.names[statement.name] = UserFunction(statement, scope)
        elif isinstance(statement, ast.ClassDef):
            scope.names[statement.name] = user_class(statement, scope, project)
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    scope.names[target.id] = Const(statement.value.value)
        elif isinstance(statement, ast.If | ast.Try):
            define(statement.body, scope, project)


def user_class(node: ast.ClassDef, scope: Scope, project: Project) -> UserClass:
    """A class with its bases as far as their names are known."""
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
    bases = [_named(base, scope) for base in node.bases]
    importer = scope.source.path
    resolved = [project.resolve(base, importer) if isinstance(base, Symbol) else base for base in bases]
    return UserClass(node, scope, tuple(resolved), methods)


def _named(node: ast.expr, scope: Scope) -> Value:
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _named(node.value, scope)
        return Symbol(f"{base.name}.{node.attr}") if isinstance(base, Symbol) else UNKNOWN
    return UNKNOWN
