"""Shows calls of a Python function to observers without standing between the function and its caller.

A wrapper is one more frame in every stack and traceback, another object to `is` and to pickle, and other lines to
`warnings`. So the function's own text is compiled again with calls of the observers in it, and the function gets the
result as its `__code__`: it stays the same object, and runs in a frame of the same name, file, lines and variables.
"""

from __future__ import annotations
import __future__

import ast
import os
import re
import sys
import tokenize
from collections.abc import Iterator
from types import CodeType, FunctionType, TracebackType
from typing import Any, NamedTuple, Protocol

_WEAVE = "<the weave of unstuck>"
"""A constant in the compiled text; the object it stands for takes its place afterwards."""
_NO_LINE = -1
_TORCH = "_torch_"
"""A name for torch where the function has none."""
_FUTURES = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
_IMPORT = re.compile(r"^ {0,4}(?:from|import) (?:[^(\n]*\([^)]*\)|[^\n]*)", re.MULTILINE)
_WORD = re.compile(r"\w+")
_LONGEST_END = 8
_SUSPENDABLE = 0x20 | 0x80 | 0x200
"""The flags of generators, coroutines and asynchronous generators, without an import of `inspect`."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Observer(Protocol):
    """Is shown the calls of one function."""

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Arguments | None] | None:
        """It is called. None: no interest this time; else a token, and equivalent arguments to go on with."""

    def finish(self, token: Any, result: Any, error: BaseException | None) -> None:
        """It returned or raised."""


_weaves: dict[int, Weave] = {}
"""By the identity of the function: watches may be nested, and end in any order."""
_texts: dict[str, _Text] = {}
_templates: dict[tuple[CodeType, str, str, bool], CodeType | None] = {}


class _Text(NamedTuple):
    """A file of Python, and the words in its imports."""

    lines: list[str]
    imported: frozenset[str]


class Weave:
    """One function and those who observe it. Its code is the original one while there are none."""

    def __init__(self, function: FunctionType, template: CodeType) -> None:
        self._function = function
        self._original = function.__code__
        constants = tuple(self if value == _WEAVE else value for value in template.co_consts)
        self._woven = template.replace(co_consts=constants)
        self._observers: tuple[Observer, ...] = ()
        self._calls: dict[int, tuple[list[tuple[Observer, Any]], Arguments]] = {}
        """By the identity of the frame that runs one."""

    def add(self, observer: Observer) -> None:
        """Show it all further calls."""
        if observer not in self._observers:
            self._observers = (*self._observers, observer)
            _weaves[id(self._function)] = self
            if self._function.__code__ is self._original:
                self._function.__code__ = self._woven

    def remove(self, observer: Observer) -> None:
        """Show it no more. A call under way is still shown when it ends."""
        self._observers = tuple(other for other in self._observers if other is not observer)
        # What somebody else has put there since stays.
        if not self._observers and self._function.__code__ is self._woven:
            self._function.__code__ = self._original

    def release(self) -> None:
        """Keep the function alive no longer, if nobody observes it. Not while it is only suspended: another watch that
        begins meanwhile is to find this weave."""
        if not self._observers:
            _weaves.pop(id(self._function), None)

    def fits(self, function: FunctionType) -> bool:
        """Is this still the function that it was made of, and its code nobody else's?"""
        return function is self._function and function.__code__ in (self._original, self._woven)

    # What follows is called by the woven code.

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """The function is called. Does anybody want to know how it ends?"""
        tokens = []
        for observer in self._observers:
            begun = observer.begin(args, kwargs)
            if begun is not None:
                tokens.append((observer, begun[0]))
                args, kwargs = begun[1] or (args, kwargs)
        if not tokens:
            return False
        self._calls[id(sys._getframe(1))] = tokens, (args, kwargs)
        return True

    def arguments(self) -> Arguments:
        """What the call goes on with."""
        return self._calls[id(sys._getframe(1))][1]

    def returned(self, result: Any) -> Any:
        """The function returns this."""
        call = self._calls.pop(id(sys._getframe(1)), None)
        if call is not None:
            for observer, token in reversed(call[0]):
                observer.finish(token, result, None)
        return result

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        call = self._calls.pop(id(sys._getframe(1)), None) if error is not None else None
        if call is not None:
            for observer, token in reversed(call[0]):
                observer.finish(token, None, error)


RUN_BY_WOVEN_CODE = (Weave.begin, Weave.arguments, Weave.returned, Weave.__enter__, Weave.__exit__)


def weave(function: object, observer: Observer, *, replacing: bool = False, path: str = "") -> Weave | None:
    """Show the calls of `function` to `observer`. None if it cannot be: it is not of Python, or its text is not there.

    `replacing`: the observer may ask for equivalent arguments. `path`: where the text is, if the code does not say so.
    """
    if type(function) is not FunctionType:
        return None
    known = _weaves.get(id(function))
    if known is None or not known.fits(function):
        template = _template(function, replacing, path)
        if template is None:
            return None
        known = Weave(function, template)
    known.add(observer)
    return known


def _template(function: FunctionType, replacing: bool, path: str) -> CodeType | None:
    code = function.__code__
    key = (code, code.co_filename, _name_of_torch(function), replacing)
    if key not in _templates:
        try:
            _templates[key] = _rewritten(code, key[2], replacing, path or code.co_filename)
        except (OSError, SyntaxError, ValueError, RecursionError):
            _templates[key] = None
    return _templates[key]


def _name_of_torch(function: FunctionType) -> str:
    """By which name the function can ask torch whether it is being compiled; empty if torch is not even imported."""
    torch, code = sys.modules.get("torch"), function.__code__
    if torch is None:
        return ""
    own = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    return "torch" if function.__globals__.get("torch") is torch and "torch" not in own else _TORCH


def _rewritten(code: CodeType, torch: str, replacing: bool, path: str) -> CodeType | None:
    """The same code with calls of the weave in it, if its text is what it was compiled from."""
    if code.co_flags & _SUSPENDABLE or not os.path.isfile(path):
        return None
    node, again = _parsed(path, code), _parsed(path, code)
    if node is None or again is None or not _are_equal(_compiled(node, code, path), code):
        return None
    arguments = node.args
    is_open = not (arguments.posonlyargs or arguments.args or arguments.kwonlyargs)
    if replacing and not (is_open and arguments.vararg and arguments.kwarg):
        return None
    again.body = list(_woven_body(node, again.body, torch, replacing))
    return _compiled(again, code, path)


def _parsed(path: str, code: CodeType) -> ast.FunctionDef | None:
    """The function in its file, at the lines and columns it has there."""
    if path not in _texts:
        with tokenize.open(path) as file:
            lines = file.readlines()
        imports = _IMPORT.findall("".join(lines))
        _texts[path] = _Text(lines, frozenset(_WORD.findall(" ".join(imports))))
    lines, first, last = _texts[path].lines, code.co_firstlineno, _last_line(code)
    indented = lines[first - 1][:1].isspace()
    for end in range(last, min(last + _LONGEST_END, len(lines)) + 1):  # brackets may close behind the last expression
        # Empty lines put it where it is in the file; to move the nodes afterwards takes ten times as long.
        above = "\n" * (first - 2) + "if 1:\n" if indented else "\n" * (first - 1)
        try:
            body: list[ast.stmt] = ast.parse(above + "".join(lines[first - 1 : end])).body
        except SyntaxError:
            continue
        statement = body[0].body[0] if isinstance(body[0], ast.If) else body[0]
        return statement if isinstance(statement, ast.FunctionDef) else None
    return None


def _last_line(code: CodeType) -> int:
    own = max((end for _, end, _, _ in code.co_positions() if end is not None), default=code.co_firstlineno)
    return max(own, *(_last_line(value) for value in code.co_consts if isinstance(value, CodeType)), 0)


def forget_texts() -> None:
    """The files that were read are not needed any more."""
    _texts.clear()


def _compiled(node: ast.FunctionDef, code: CodeType, path: str) -> CodeType | None:
    """The code of this function, compiled inside of the classes and functions that it was written in."""
    scope: ast.stmt = node
    for name, is_function in _scopes(code.co_qualname):
        free = ", ".join(free for free in code.co_freevars if free != "__class__")
        around: Any = ast.parse(f"def {name}({free}): pass" if is_function else f"class {name}: pass").body[0]
        around.body = [scope]
        scope = around
    # What is called on an imported name compiles to other instructions than what is called on an object.
    used = {name for one in (code, *_codes_in(code)) for name in one.co_names}
    imported = [ast.Import([ast.alias(name)]) for name in sorted(used & _texts[path].imported)]
    module = ast.Module([_put_at(statement, 1) for statement in (*imported, scope)], type_ignores=[])
    flags = code.co_flags & _FUTURES
    whole: CodeType = compile(module, code.co_filename, "exec", flags=flags, dont_inherit=True)
    return next((found for found in _codes_in(whole) if _is_same_function(found, code)), None)


def _scopes(qualified: str) -> Iterator[tuple[str, bool]]:
    """What is around a function, the innermost first: a name, and whether it is a function's."""
    words = qualified.split(".")[:-1]
    while words:
        is_function = words[-1] == "<locals>"
        if is_function:
            words.pop()
        yield words.pop(), is_function


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield value
            yield from _codes_in(value)


def _is_same_function(found: CodeType, code: CodeType) -> bool:
    same = found.co_name == code.co_name and found.co_firstlineno == code.co_firstlineno
    return same and found.co_qualname == code.co_qualname and found.co_freevars == code.co_freevars


def _are_equal(one: object, other: object) -> bool:
    """Is this the same code? `==` compares also what the interpreter has noted in it while it ran."""
    if not isinstance(one, CodeType) or not isinstance(other, CodeType):
        return type(one) is type(other) and repr(one) == repr(other)
    parts = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_linetable", "co_exceptiontable")
    same = all(getattr(one, part) == getattr(other, part) for part in parts)
    return same and len(one.co_consts) == len(other.co_consts) and all(map(_are_equal, one.co_consts, other.co_consts))


def _woven_body(node: ast.FunctionDef, watched: list[ast.stmt], torch: str, replacing: bool) -> Iterator[ast.stmt]:
    """As it was where nobody wants to know, or a compiler reads it; else with its ends shown to the weave.

    A `with` block keeps what it needs on the stack, adds no name and leaves no line in a traceback. torch's compiler
    refuses a constant like the weave, so the question whether it is at work comes first, and without one.
    """
    plain = node.body
    if isinstance(plain[0], ast.Expr) and isinstance(plain[0].value, ast.Constant) and len(plain) > 1:
        yield plain[0]
        plain, watched = plain[1:], watched[1:]
    scope, ends = _Scope(), _Returns()
    plain = [scope.visit(statement) for statement in plain]
    body = [ends.visit(statement) for statement in watched]
    yield from scope.declarations  # which would come too late for what is written twice
    body.append(_put_at(ast.Return(_call(ast.Constant(_WEAVE), "returned", ast.Constant(None))), watched[-1].lineno))
    if replacing:
        names: list[ast.expr] = [_name(part, ast.Store()) for part in (node.args.vararg, node.args.kwarg) if part]
        body.insert(0, ast.Assign([ast.Tuple(names, ast.Store())], _call(ast.Constant(_WEAVE), "arguments")))
    first = plain[0].lineno
    test: ast.expr = _call(ast.Constant(_WEAVE), "begin", *_arguments(node.args))
    body = [_put_at(ast.With([ast.withitem(ast.Constant(_WEAVE))], body), _NO_LINE)]
    if torch:
        compiler = ast.Attribute(ast.Name(torch, ast.Load()), "compiler", ast.Load())
        test = ast.BoolOp(ast.And(), [ast.UnaryOp(ast.Not(), _call(compiler, "is_compiling")), test])
    if torch == _TORCH:
        yield _put_at(ast.Import([ast.alias("torch", _TORCH)]), first)
        forget: ast.stmt = ast.Delete([ast.Name(_TORCH, ast.Del())])
        body, plain = [forget, *body], [forget, *plain]
    yield _put_at(ast.If(test, body, plain), first)


def _arguments(arguments: ast.arguments) -> tuple[ast.expr, ast.expr]:
    """What the function was given, as a tuple and a dict."""
    values: list[ast.expr] = [_name(argument) for argument in (*arguments.posonlyargs, *arguments.args)]
    if arguments.vararg:
        values.append(ast.Starred(_name(arguments.vararg), ast.Load()))
    keys: list[ast.expr | None] = [ast.Constant(argument.arg) for argument in arguments.kwonlyargs]
    named: list[ast.expr] = [_name(argument) for argument in arguments.kwonlyargs]
    if arguments.kwarg:
        keys, named = [*keys, None], [*named, _name(arguments.kwarg)]
    return ast.Tuple(values, ast.Load()), ast.Dict(keys, named)


def _name(argument: ast.arg, context: ast.expr_context | None = None) -> ast.Name:
    return ast.Name(argument.arg, context or ast.Load())


def _call(owner: ast.expr, method: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(owner, method, ast.Load()), list(arguments), [])


def _put_at(new: ast.stmt, line: int) -> ast.stmt:
    """What has no place yet is on this line, so that who traces lines sees no other ones."""
    waiting: list[ast.AST] = [new]
    while waiting:
        node = waiting.pop()
        if hasattr(node, "lineno"):  # the program's own, with everything in it
            continue
        if isinstance(node, ast.stmt | ast.expr | ast.alias):
            node.lineno = node.end_lineno = line
            node.col_offset = node.end_col_offset = min(line, 0)
        waiting.extend(ast.iter_child_nodes(node))
    return new


class _Scope(ast.NodeTransformer):
    """Takes out what a function says of names that are not its own; functions inside of it are left alone."""

    def __init__(self) -> None:
        self.declarations: list[ast.stmt] = []

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Of statements, only those inside: what is looked for is never in an expression."""
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            if inside := getattr(node, name, None):
                inside[:] = map(self.visit, inside)
        return node

    def visit_Global(self, node: ast.Global) -> ast.stmt:
        self.declarations.append(node)
        return ast.copy_location(ast.Pass(), node)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.stmt:
        self.declarations.append(node)
        return ast.copy_location(ast.Pass(), node)

    def _leave(self, node: Any) -> Any:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _leave


class _Returns(_Scope):
    """Shows what the function returns to the weave, too."""

    def visit_Return(self, node: ast.Return) -> ast.Return:
        shown = _call(ast.Constant(_WEAVE), "returned", node.value or ast.Constant(None))
        for part in (shown, shown.func, shown.func.value):  # type: ignore[attr-defined]
            ast.copy_location(part, node)
        return ast.copy_location(ast.Return(ast.fix_missing_locations(shown)), node)
