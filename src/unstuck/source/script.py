"""A script as the rules see it: its events as loops and paths, and what its values came from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from unstuck.events import Backward
from unstuck.lazy import pattern
from unstuck.source.documents.comments import IGNORE
from unstuck.source.documents.files import SourceError, read_text
from unstuck.source.facts import Facts
from unstuck.source.reader import knowledge
from unstuck.source.reader.base import Frame
from unstuck.source.reader.project import Project, define, parse
from unstuck.source.reader.scope import Scope, SourceFile
from unstuck.source.reader.statements import Statements
from unstuck.source.trace import Happened, Loop, events_in, loops_in
from unstuck.source.values import Instance, Tensor, UserClass, UserFunction

TORCH_TEXT = pattern(r"torch|backward|optimizer|nn\.Module")
TRAINING_TEXT = pattern(r"backward\(|zero_grad|optim\b|Loss\b|cross_entropy|_loss\(|Optimizer")
FUNCTION_TEXT = pattern(
    r"backward|\.step\(|zero_grad|[lL]oss|criterion|training_step|cross_entropy|requires_grad|optim"
)


class Script:
    """One file, read. Build it with `read_script`."""

    def __init__(self, path: str, text: str, tree: ast.Module, project: Project) -> None:
        self.path = path
        self.text = text
        self.lines = text.split("\n")
        self.tree = tree
        self._project = project

    @cached_property
    def facts(self) -> Facts:
        """What following the script's statements, functions and classes found out."""
        if not TORCH_TEXT.search(self.text):
            return Facts()
        return _Reading(self, self._project).facts

    @cached_property
    def training_loops(self) -> tuple[Loop, ...]:
        """Loops whose own turn runs a backward pass, each once."""
        found: dict[object, Loop] = {}
        for loop in loops_in(self.facts.trace):
            if any(isinstance(item.event, Backward) for item in events_in(loop.body, nested_loops=False)):
                found.setdefault((loop.node, tuple(map(str, _events_of(loop)))), loop)
        return tuple(found.values())

    def ignored(self, line: int, code: str, name: str) -> bool:
        """Does a `# unstuck: ignore` comment on this line silence the rule?"""
        if not 0 < line <= len(self.lines):
            return False
        comment = IGNORE.search(self.lines[line - 1])
        if comment is None:
            return False
        listed = comment.group(1)
        words = {word.strip().lower().replace("_", "-") for word in (listed or "").split(",")}
        # A comment for all rules does not silence the one that looks for comments nobody needs.
        return (listed is None and name != "unused-ignore") or code.lower() in words or name in words


def _events_of(loop: Loop) -> Iterator[object]:
    return ((type(item.event).__name__, item.event.place) for item in events_in(loop.body))


class _Reading(Statements):
    """One pass over a script: its statements, then whatever they did not reach."""

    def __init__(self, script: Script, project: Project) -> None:
        scope = Scope(file=SourceFile(script.path, script.lines))
        trains = bool(TRAINING_TEXT.search(script.text))
        super().__init__(scope, project, follow_calls=trains)
        define(script.tree.body, scope, project)
        if trains:
            self.execute(script.tree.body)
            self.facts.reached = len(self.facts.trace)
        self.trusts_defaults = False
        self._read_classes(scope, only_modules=not trains)
        if trains:
            self._read_functions(scope)

    def _read_classes(self, scope: Scope, *, only_modules: bool) -> None:
        for value in list(scope.names.values()):
            own = isinstance(value, UserClass) and value.scope is scope
            if own and isinstance(value, UserClass) and (knowledge.is_module_class(value) or not only_modules):
                self._read_class(value)

    def _read_functions(self, scope: Scope) -> None:
        """Functions that nothing called, with arguments that could be anything."""
        for value in list(scope.names.values()):
            if isinstance(value, UserFunction) and value.scope is scope and self._worth_reading(value.node):
                self.call_function(value, (), {})

    def _worth_reading(self, node: ast.AST) -> bool:
        """Not read yet, and its text mentions something that trains."""
        lines = self.scope.source.lines[getattr(node, "lineno", 1) - 1 : getattr(node, "end_lineno", 1)]
        return node not in self.read and FUNCTION_TEXT.search("\n".join(lines)) is not None

    def _read_class(self, cls: UserClass) -> None:
        methods = [node for node in cls.methods.values() if node not in self.read]
        module = knowledge.is_module_class(cls)
        if not methods or not (module or any(self._worth_reading(node) for node in methods)):
            return
        instance = next((item for item in self.facts.modules if item.cls is cls), None)
        if instance is None:
            instance = Instance(cls.node.name, self.scope.source.place(cls.node), cls)
            if module:
                self.facts.modules.append(instance)
            self.initialise(instance)
        for node in methods:
            if node.name == "forward" or self._worth_reading(node):
                self._read_method(UserFunction(node, cls.scope, instance, cls))

    def _read_method(self, method: UserFunction) -> None:
        name = getattr(method.node, "name", "")
        is_forward = name == "forward"
        self.forward_depth += is_forward
        with self.inside(Frame(self.scope, owner=method.owner)):
            if name == "training_step" and knowledge.is_lightning(method.owner):
                self._read_step(method)
            else:
                self.call_function(method, (), {})
        self.forward_depth -= is_forward

    def _read_step(self, method: UserFunction) -> None:
        """Lightning calls `training_step` for every batch: a turn of a loop that is not written down."""
        loop = Loop(method.node, self.place(method.node))
        self.loops.append(loop)
        with self.collecting(loop):
            loss = self.call_function(method, (), {})
        self.loops.pop()
        by_hand = any(isinstance(item.event, Backward) for item in events_in(loop.body))
        if isinstance(loss, Tensor) and loss.place is not None and not by_hand:
            # Lightning runs backward on what is returned.
            self.facts.backwards.append(Happened(Backward(place=loss.place), loss))


def read_script(
    path: Path, project: Project | None = None, text: str | None = None, tree: ast.Module | None = None
) -> Script:
    """Read one file, or raise a SourceError that says what is wrong with it.

    `text` stands for what lies on disk, and `tree` is that text parsed, where somebody has done it already.
    """
    text = read_text(path) if text is None else text
    script = Script(str(path), text, tree or parse(text, str(path)), project or Project())
    try:
        _ = script.facts
    except RecursionError:
        raise SourceError(f"{path} nests too deeply to be followed; it was skipped.") from None
    return script
