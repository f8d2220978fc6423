"""One pass over a script: its statements, then the classes and functions that they did not reach."""

from __future__ import annotations

import ast
import importlib
import os

from unstuck.events import Backward
from unstuck.importable import importable
from unstuck.lazy import pattern
from unstuck.source.facts import Facts
from unstuck.source.reader import knowledge
from unstuck.source.reader.abilities import reachable
from unstuck.source.reader.calls.functions import call_function
from unstuck.source.reader.calls.objects import initialise
from unstuck.source.reader.project import Module, Project, define
from unstuck.source.reader.reader import Frame, Reader
from unstuck.source.reader.scope import Scope, SourceFile
from unstuck.source.trace import Happened, Loop, events_in
from unstuck.source.values import Instance, Tensor, UserClass, UserFunction, Value

TRAINING_TEXT = pattern(r"backward\(|zero_grad|optim\b|Loss\b|cross_entropy|_loss\(|Optimizer")
FUNCTION_TEXT = pattern(
    r"backward|\.step\(|zero_grad|[lL]oss|criterion|training_step|cross_entropy|requires_grad|optim"
)

# Importing a file of this folder registers its handlers.
for _inside in ("", "calls"):
    for _name, _ in importable([os.path.join(os.path.dirname(__file__), _inside)]):
        importlib.import_module(".".join(filter(None, (__package__, _inside, _name))))


def read_facts(tree: ast.Module, text: str, file: SourceFile, project: Project) -> Facts:
    """What following the script's statements, functions and classes finds out."""
    scope = Scope(file=file)
    trains = bool(TRAINING_TEXT.search(text))
    reader = Reader(scope, project, follow_calls=trains)
    project.read.append(Module([], tree, b""))
    define(tree.body, scope, project)
    if trains:
        reader.execute(tree.body)
        reader.facts.reached = len(reader.facts.trace)
    # Nothing calls what is read from here on: arguments could be anything.
    reader.trusts_defaults = False
    for value in list(scope.names.values()):
        if isinstance(value, UserClass) and value.scope is scope and (trains or knowledge.is_module_class(value)):
            _read_class(reader, value)
    for value in list(scope.names.values()) if trains else ():
        if isinstance(value, UserFunction) and value.scope is scope and _mentions_training(reader, value.node):
            _give_back(reader, call_function(reader, value, (), {}))
    return reader.facts


def _give_back(reader: Reader, value: Value) -> None:
    """What a function returns to callers that are not known may be stepped, cleared or switched there."""
    reader.facts.escaped.update(map(id, reachable((value,))))


def _mentions_training(reader: Reader, node: ast.AST) -> bool:
    """Is it a function that was not read yet, and whose text mentions something that trains?"""
    if node in reader.functions_read:
        return False
    lines = reader.frame.scope.source.lines[getattr(node, "lineno", 1) - 1 : getattr(node, "end_lineno", 1)]
    return FUNCTION_TEXT.search("\n".join(lines)) is not None


def _read_class(reader: Reader, cls: UserClass) -> None:
    methods = [node for node in cls.methods.values() if node not in reader.functions_read]
    is_module = knowledge.is_module_class(cls)
    if not methods or not (is_module or any(_mentions_training(reader, node) for node in methods)):
        return
    instance = next((item for item in reader.facts.modules if item.cls is cls), None)
    if instance is None:
        instance = Instance(cls.node.name, reader.frame.scope.source.place(cls.node), cls)
        if is_module:
            reader.facts.modules.append(instance)
        initialise(reader, instance)
    for node in methods:
        is_forward = node.name == "forward"
        if is_forward or _mentions_training(reader, node):
            method = UserFunction(node, cls.scope, instance, cls)
            reader.forward_depth += is_forward
            with reader.inside(Frame(reader.frame.scope, owner=instance)):
                if node.name == "training_step" and knowledge.is_lightning(instance):
                    _read_training_step(reader, method)
                else:
                    _give_back(reader, call_function(reader, method, (), {}))
            reader.forward_depth -= is_forward


def _read_training_step(reader: Reader, method: UserFunction) -> None:
    """Lightning calls `training_step` for every batch: one iteration of a loop that is not in the text."""
    loop = Loop(method.node, reader.place(method.node))
    reader.loops.append(loop)
    with reader.collecting(loop):
        loss = call_function(reader, method, (), {})
    reader.loops.pop()
    manual = any(isinstance(item.event, Backward) for item in events_in(loop.body))
    if isinstance(loss, Tensor) and loss.place is not None and not manual:
        # Lightning runs backward on what is returned.
        reader.facts.backwards.append(Happened(Backward(place=loss.place), loss))
