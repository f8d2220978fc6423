"""A `backward()` that failed on its graph: which variable leads into an earlier one, or was changed since."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeGuard

from torch import Tensor, nn

from unstuck.capture.crash.failing_line import attributes_of
from unstuck.capture.places import Places
from unstuck.events import InputFact, Place
from unstuck.events.torch_errors import CHANGED_VERSION, TorchError

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
MOST_NODES = 20_000
MOST_NAMES = 2_000
MOST_MODULES = 2_000
MOST_SUSPECTS = 3
_Found = list[tuple[str, Place | None]]
_Nodes = set[Any]


def backward_facts(
    message: str, own: Sequence[TracebackType], below: Sequence[FrameType], places: Places
) -> dict[str, Any]:
    """The loss, and what led to the error. `own` are the user's frames, innermost first."""
    _tree.cache_clear()  # a cell of a notebook may have changed since the last crash
    loss = _loss(below)
    if loss is None:
        return {}
    inputs = [InputFact("loss", shape=tuple(loss.shape), requires_grad=loss.requires_grad)]
    suspects: _Found = []
    if TorchError.SECOND_BACKWARD.is_in(message):
        how, suspects = _old_parts(loss, own, places)
        inputs.append(InputFact("how", value=how))
    elif changed := CHANGED_VERSION.search(message):
        shape = tuple(int(side) for side in changed.group(1).split(",") if side.strip())
        how, suspects = _changed_since(shape, int(changed.group(2)), own, places)
        inputs.append(InputFact("how", value=how))
    suspects = suspects[:MOST_SUSPECTS]
    spots = tuple(dict.fromkeys(place for _, place in suspects if place is not None))
    return {
        "inputs": tuple(inputs),
        "suspects": tuple(dict.fromkeys(name for name, _ in suspects)),
        "suspect_places": spots,
    }


def _loss(below: Sequence[FrameType]) -> Tensor | None:
    for frame in below:
        for name in ("self", "tensors", "outputs"):
            value = frame.f_locals.get(name)
            first = value[0] if type(value) in (tuple, list) and value else value
            if issubclass(type(first), Tensor):
                return first
    return None


def _nodes(tensor: Tensor) -> _Nodes:
    """Its graph, but for what accumulates into parameters: those are in every graph."""
    found: _Nodes = set()
    todo = [tensor.grad_fn]
    while todo and len(found) < MOST_NODES:
        node = todo.pop()
        if node is not None and node not in found and node.next_functions:
            found.add(node)
            todo += [following for following, _ in node.next_functions]
    return found


def _old_parts(loss: Tensor, own: Sequence[TracebackType], places: Places) -> tuple[str, _Found]:
    """What an earlier backward has used up and this graph still contains."""
    nodes = _nodes(loss)
    searches: dict[str, Callable[[], _Found]] = {
        "kept": lambda: [found for entry in own for found in _attributes(entry, nodes, places)],
        "carried": lambda: [found for entry in own for found in _carried(entry, nodes, places)],
        "before the loop": lambda: [found for entry in own for found in _before_loop(entry, nodes, places)],
        "shared": lambda: _shared(loss, own[0], nodes, places),
    }
    for how, search in searches.items():
        if suspects := search():
            return how, suspects
    return "", []


def _attributes(entry: TracebackType, nodes: _Nodes, places: Places) -> Iterator[tuple[str, None]]:
    """Tensors kept on a module or on `self` and read there again, such as a hidden state."""
    frame = entry.tb_frame
    for name, value in list(frame.f_locals.items())[:MOST_NAMES]:
        if issubclass(type(value), nn.Module):
            for path, part in _parts(value):
                code = _forward_of(part, places)
                for attribute in _kept_on(part, code, code and code.co_firstlineno, nodes):
                    yield ".".join(word for word in (name, path, attribute) if word), None
        elif name == "self":
            for attribute in _kept_on(value, frame.f_code, entry.tb_lineno, nodes):
                yield f"self.{attribute}", None


def _parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return list(itertools.islice(nn.Module.named_modules(module), MOST_MODULES))


def _forward_of(module: nn.Module, places: Places) -> CodeType | None:
    """The `forward` of a module, if the user wrote it."""
    code = getattr(getattr(type(module), "forward", None), "__code__", None)
    return code if code is not None and places.is_users(code) else None


def _kept_on(thing: Any, code: CodeType | None, line: int | None, nodes: _Nodes) -> Iterator[str]:
    """Attributes that lead into the graph and that this function reads."""
    tree = _tree(code.co_filename) if code is not None else None
    if tree is None or line is None:
        return
    scope = function_at(tree, line)
    for attribute, value in list(attributes_of(thing).items())[:MOST_NAMES]:
        if _touches(value, nodes) and reads_attribute(scope, attribute):
            yield attribute


def _touches(value: Any, nodes: _Nodes) -> bool:
    """Has it, or a tensor in it, a part of its history in common with this graph?"""
    return any(not nodes.isdisjoint(_nodes(tensor)) for tensor in _tensors(value))


def _leads_into(value: Any, nodes: _Nodes) -> bool:
    """Is it, or does it hold, a tensor that this graph was computed from?"""
    return any(tensor.grad_fn in nodes for tensor in _tensors(value))


def _tensors(value: Any, depth: int = 2) -> list[Tensor]:
    """It, or the tensors it holds, as far as they have a history."""
    if issubclass(type(value), Tensor):
        return [value] if value.grad_fn is not None else []
    if depth and type(value) in (tuple, list) and len(value) <= MOST_NAMES:
        return [tensor for item in value for tensor in _tensors(item, depth - 1)]
    return []


def _carried(entry: TracebackType, nodes: _Nodes, places: Places) -> Iterator[tuple[str, Place | None]]:
    """Variables that each iteration computes from their own last value."""
    tree = _tree(entry.tb_frame.f_code.co_filename)
    for loop in loops_around(tree, entry.tb_lineno) if tree else ():
        for name, statement in names_carried(loop).items():
            if _touches(entry.tb_frame.f_locals.get(name), nodes):
                yield name, _spot(entry, statement, places)


def _before_loop(entry: TracebackType, nodes: _Nodes, places: Places) -> Iterator[tuple[str, Place | None]]:
    """Variables that were computed before the loop and are used in every iteration."""
    tree = _tree(entry.tb_frame.f_code.co_filename)
    for loop in loops_around(tree, entry.tb_lineno) if tree else ():
        inside = names_assigned(loop)
        read = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        for name, statement in names_assigned(function_at(tree, entry.tb_lineno)).items() if tree else ():
            if name in read and name not in inside and _leads_into(entry.tb_frame.f_locals.get(name), nodes):
                yield name, _spot(entry, statement, places)


def _shared(loss: Tensor, entry: TracebackType, nodes: _Nodes, places: Places) -> _Found:
    """Variables behind this loss and behind another one, on which `backward()` is called as well."""
    known = entry.tb_frame.f_locals
    tree = _tree(entry.tb_frame.f_code.co_filename)
    scope = function_at(tree, entry.tb_lineno) if tree else None
    for call in ast.walk(scope) if scope else ():
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "backward"):
            continue
        other = known.get(call.func.value.id) if isinstance(call.func.value, ast.Name) else None
        if not is_tensor(other) or other is loss:
            continue
        both = nodes & _nodes(other)
        behind = {name: value for name, value in known.items() if _leads_into(value, both) and value is not loss}
        if behind:
            nearest = max(behind, key=lambda name: len(_nodes(behind[name])) if is_tensor(behind[name]) else 0)
            return [(nearest, _spot(entry, call, places))]
    return []


def _changed_since(
    shape: tuple[int, ...], version: int, own: Sequence[TracebackType], places: Places
) -> tuple[str, _Found]:
    """Who has been changed: a parameter, a variable of the user's, or something inside a `forward`."""
    modules = [v for entry in own for v in entry.tb_frame.f_locals.values() if issubclass(type(v), nn.Module)]
    variables: _Found = []
    for entry in own:
        held = {name for name, value in entry.tb_frame.f_locals.items() if _is_at(value, shape, version)}
        tree = _tree(entry.tb_frame.f_code.co_filename)
        scope = function_at(tree, entry.tb_lineno) if tree else None
        changes = changes_in(scope) if scope else []
        variables += [(name, _spot(entry, node, places)) for name, node in changes if name in held]
    if variables:
        return "variable", variables
    parameters: _Found = [
        (name, None)
        for module in modules
        for name, parameter in nn.Module.named_parameters(module)
        if parameter._version == version and tuple(parameter.shape) in (shape, shape[::-1])
    ]
    if parameters:
        return "parameter", parameters
    layers: _Found = [
        (name, None)
        for module in modules
        for name, part in _parts(module)
        if attributes_of(part).get("inplace") is True
    ]
    statements: _Found = [found for module in modules for found in _changes_in_forward(module, places)]
    if layers and not statements and len(layers) <= MOST_SUSPECTS:
        return "layer", layers
    return "forward", statements


def _changes_in_forward(root: nn.Module, places: Places) -> Iterator[tuple[str, Place]]:
    """In-place statements in the `forward` of the user's own modules."""
    seen: set[type] = set()
    for _, module in _parts(root):
        code = _forward_of(module, places)
        if type(module) in seen or code is None:
            continue
        seen.add(type(module))
        tree = _tree(code.co_filename)
        scope = function_at(tree, code.co_firstlineno) if tree else None
        for name, node in changes_in(scope) if scope else ():
            yield name, places.of_file(code.co_filename, node.lineno, node.col_offset + 1)


def _is_at(value: Any, shape: tuple[int, ...], version: int) -> bool:
    return is_tensor(value) and tuple(value.shape) == shape and value._version == version


def is_tensor(value: Any) -> TypeGuard[Tensor]:
    """By its class: `isinstance` would ask the object itself."""
    return issubclass(type(value), Tensor)


def _spot(entry: TracebackType, node: ast.stmt | ast.expr, places: Places) -> Place:
    return places.of_file(entry.tb_frame.f_code.co_filename, node.lineno, node.col_offset + 1)


@functools.lru_cache(maxsize=4)
def _tree(filename: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return None


# Questions about the text of the program: the loop around a line, and the names it carries or changes.


def function_at(tree: ast.Module, line: int) -> Scope:
    """The innermost function that this line belongs to, or else the whole file."""
    found: Scope = tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _covers(node, line):
            found = node
    return found


def loops_around(tree: ast.Module, line: int) -> list[Loop]:
    """The loops of the line's own function around it, innermost first."""
    loops = [node for node in ast.walk(function_at(tree, line)) if isinstance(node, Loop) and _covers(node, line)]
    return loops[::-1]


def _covers(node: ast.stmt, line: int) -> bool:
    first: int = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", ()))])
    return first <= line <= (node.end_lineno or first)


def names_carried(loop: Loop) -> dict[str, ast.stmt]:
    """Names that the loop computes from their own last value only: `out, h = rnn(x, h)`, `total += loss`."""
    carried: dict[str, ast.stmt] = {}
    fresh: set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign):
            carried |= dict.fromkeys(_names([node.target]), node)
        elif isinstance(node, ast.Assign):
            read = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
            carried |= {name: node for name in _names(node.targets) if name in read}
            fresh |= set(_names(node.targets)) - read
        elif isinstance(node, ast.For | ast.AsyncFor):
            fresh |= set(_names([node.target]))
    return {name: statement for name, statement in carried.items() if name not in fresh}


def reads_attribute(scope: ast.AST, name: str) -> bool:
    """Is `self.name` read here?"""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for node in ast.walk(scope)
    )


def names_assigned(scope: ast.AST) -> dict[str, ast.stmt]:
    """Every name that is assigned, with the statement that does it last."""
    found: dict[str, ast.stmt] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            found |= dict.fromkeys(_names(node.targets), node)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
            found |= dict.fromkeys(_names([node.target]), node)
    return found


def changes_in(scope: ast.AST) -> list[tuple[str, ast.stmt | ast.expr]]:
    """Statements that change a variable in place: `x += 1`, `x[0] = 1`, `x.mul_(2)`, `F.relu(x, inplace=True)`."""
    numbers = {
        name
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for name in _names(node.targets)
    }
    found = [pair for node in ast.walk(scope) for pair in _change(node)]
    return [(name, node) for name, node in found if name not in numbers]


def _change(node: ast.AST) -> Iterator[tuple[str, ast.stmt | ast.expr]]:
    if isinstance(node, ast.AugAssign):
        yield _root(node.target), node
    elif isinstance(node, ast.Assign):
        yield from ((_root(target), node) for target in node.targets if isinstance(target, ast.Subscript))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        word = node.func.attr
        given = _root(node.args[0]) if node.args else ""
        if any(keyword.arg == "inplace" and _is_true(keyword.value) for keyword in node.keywords) and given:
            yield given, node
        elif word.endswith("_") and not word.endswith("__") and word != "requires_grad_":
            owner = _root(node.func.value)
            yield (given if owner in ("F", "torch", "nn") and given else owner), node


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _root(node: ast.expr) -> str:
    """`x` of `x[0]`, `x.data` and `x`."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _names(targets: list[ast.expr]) -> list[str]:
    return [
        node.id
        for target in targets
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
