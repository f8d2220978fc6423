"""Modules of the user's own project, found next to the script and read for their definitions."""

from __future__ import annotations

import ast
import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from unstuck.lazy import pattern
from unstuck.source.documents.files import ABSENT, UNREADABLE, SourceError, decode, digest_of, read_raw
from unstuck.source.reader.scope import Scope, SourceFile, bind_import
from unstuck.source.values import UNKNOWN, Const, Group, Instance, Symbol, UserClass, UserFunction, Value

LIBRARIES = frozenset(
    "torch torchvision torchaudio numpy np math os sys random time typing collections functools itertools json re "
    "argparse logging pathlib dataclasses copy tqdm matplotlib sklearn scipy pandas transformers datasets "
    "accelerate lightning pytorch_lightning wandb tensorboard tensorboardX builtins PIL cv2 gym gymnasium".split()
)
NAMEDTUPLE = "collections.namedtuple"
SEARCHED_PARENTS = 3
MOST_CHARACTERS = 20_000_000
"""Of parsed text in memory; its syntax trees take about fifty times as much."""


@contextmanager
def rare_collection() -> Iterator[None]:
    """Collect garbage rarely: among the many objects of syntax trees it took half of lint's time and found nothing."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


ODD_ESCAPE = pattern(r"""\\[^\\'"abfnrtvxNuU0-7\r\n]|\d(?:and|else|for|if|in|is|not|or)\b""")
"""What Python warns about when it parses: an invalid escape, a number with a word attached to it."""


def parse(text: str, path: str) -> ast.Module:
    """The syntax tree of a file, or a SourceError that says where the syntax breaks."""
    from unstuck.events import Place

    try:
        if not ODD_ESCAPE.search(text):
            return ast.parse(text, filename=path)
        # catch_warnings makes every warning of the process show once more, so it is used only where there is one.
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


class Module(msgspec.Struct, frozen=True):
    """The parsed text of one file; every script that imports it makes its own scope from it."""

    lines: list[str]
    tree: ast.Module | None
    """None if the file is not valid Python."""
    digest: bytes
    """Of the content of the file."""
    attributes_set: list[frozenset[str]] = msgspec.field(default_factory=list)
    """The attributes that it sets, once somebody has asked (`branches.py`)."""


class Modules:
    """Files parsed once for all scripts that import them. Nothing a script does changes them."""

    def __init__(self, most_characters: int = MOST_CHARACTERS) -> None:
        self._modules: dict[Path, Module] = {}
        self._room = most_characters

    def read(self, path: Path) -> Module:
        """The content of this file when it was first read."""
        if path not in self._modules:
            module = _parsed(path)
            self._room -= _size(module)
            while self._room < 0 and self._modules:
                self._room += _size(self._modules.pop(next(iter(self._modules))))
            self._modules[path] = module
        return self._modules[path]


def _parsed(path: Path) -> Module:
    digest = UNREADABLE
    try:
        raw = read_raw(path)
        digest = digest_of(raw)
        text = decode(raw, str(path))
        return Module(text.split("\n"), parse(text, _shown(path)), digest)
    except SourceError:
        return Module([], None, digest)


def _size(module: Module) -> int:
    return sum(map(len, module.lines)) + len(module.lines)


class Project:
    """Resolves `from model import Net` to the class in `model.py`, for one script.

    Scripts may share parsed modules, but never what those define: no script affects another.
    """

    def __init__(self, modules: Modules | None = None, script: Path | None = None) -> None:
        self.seen: dict[str, bytes] = {}
        """Every file that was looked for, with the digest of its content."""
        self.read: list[Module] = []
        """Every file that was read."""
        self.searched = 0
        self.attributes_set: set[str] = set()
        """Attributes that the files searched so far set (`branches.py`)."""
        self._modules = modules or Modules()
        self._script = script
        self._scopes: dict[Path, Scope | None] = {}
        self._files: dict[tuple[str, str], Path | None] = {}

    def resolve(self, symbol: Symbol, importer: str) -> Value:
        """The value of a dotted name of the user's project; the symbol itself for another library's."""
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

    def bind_star(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        """`from model import *`: bind every public name of the user's module."""
        if isinstance(node, ast.Import) or all(alias.name != "*" for alias in node.names):
            return
        module = "." * node.level + (node.module or "")
        if module.split(".")[0] in LIBRARIES or not module.strip("."):
            return
        path = self._file(module, os.path.dirname(scope.source.path))
        found = self.load(path) if path else None
        for name, value in found.names.items() if found is not None else ():
            if not name.startswith("_"):
                scope.names[name] = value

    def _file(self, module: str, folder: str) -> Path | None:
        key = (module, folder)
        if key not in self._files:
            self._files[key] = self._search(module, Path(os.path.realpath(folder)))
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
            base = os.path.join(root, *parts)
            for path in (os.path.join(base, "__init__.py"), f"{base}.py"):
                if os.path.isfile(path):
                    return Path(path)
                self.seen[path] = ABSENT
        return None

    def load(self, path: Path) -> Scope | None:
        """The definitions of a module of the user's; its statements are not followed."""
        if path not in self._scopes:
            self._scopes[path] = None
            self._scopes[path] = self._read(path)
        return self._scopes[path]

    def _read(self, path: Path) -> Scope | None:
        # A script that imports itself is two modules with one text: the reader distinguishes them by their trees.
        module = _parsed(path) if path == self._script else self._modules.read(path)
        self.seen[str(path)] = module.digest
        if module.tree is None:
            return None
        self.read.append(module)
        scope = Scope(file=SourceFile(_shown(path), module.lines))
        define(module.tree.body, scope, self)
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
            project.bind_star(statement, scope)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            scope.names[statement.name] = UserFunction(statement, scope)
        elif isinstance(statement, ast.ClassDef):
            scope.names[statement.name] = user_class(statement, scope, project)
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    scope.names[target.id] = Const(statement.value.value)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            made = _namedtuple(statement.value, scope)
            if made is not None:
                scope.names[statement.targets[0].id] = made
        elif isinstance(statement, ast.If | ast.Try):
            define(statement.body, scope, project)


def _namedtuple(node: ast.expr, scope: Scope) -> Value | None:
    """The class that `namedtuple("Losses", ["first", "second"])` makes."""
    if not isinstance(node, ast.Call) or len(node.args) < 2 or _named(node.func, scope) != Symbol(NAMEDTUPLE):
        return None
    fields = node.args[1]
    if isinstance(fields, ast.List | ast.Tuple):
        names: Value = Group([Const(item.value) for item in fields.elts if isinstance(item, ast.Constant)])
    else:
        names = Const(fields.value if isinstance(fields, ast.Constant) else "")
    return Instance(NAMEDTUPLE, args=(UNKNOWN, names))


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
