"""Every field of an event is written by `capture/` and read by somebody else: what nobody reads is not recorded."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

import unstuck
from unstuck.events import EVENTS, Event

PACKAGE = Path(unstuck.__file__).parent
WRITERS = ("capture", "check", "trials")
"""Packages that make events. Reading a field there does not count: it has to reach a rule or a report."""
FOR_PEOPLE = {
    ("Crash", "frames"): "the traceback in the user's files, for somebody who has the record and not the terminal",
    ("RunStarted", "process"): "which process wrote the record, to tell the ranks of one job apart",
    ("RunStarted", "unstuck"): "which version wrote the record, for reports of bugs",
}
"""Fields that no code reads, each with the reason why they are recorded."""
BY_DEFAULT = {("RunStarted", "version")}
"""Fields whose default is what is written."""


@cache
def trees() -> dict[Path, ast.Module]:
    files = (file.relative_to(PACKAGE) for file in PACKAGE.rglob("*.py"))
    return {file: ast.parse((PACKAGE / file).read_text(encoding="utf-8")) for file in files}


def fields_of(event: type[Event]) -> tuple[str, ...]:
    return tuple(name for name in event.__struct_fields__ if name not in Event.__struct_fields__)


FIELDS = [(event, name) for event in EVENTS for name in fields_of(event)]


@cache
def names_read() -> frozenset[str]:
    """Attributes that are read, and words in modules that read attributes by their names."""
    found: set[str] = set()
    for file, tree in trees().items():
        nodes = [] if file.parts[0] in (*WRITERS, "events") else list(ast.walk(tree))
        found |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
        if any(_reads_by_name(node) for node in nodes):
            found |= _words(nodes)
    return frozenset(found)


def _reads_by_name(node: ast.AST) -> bool:
    is_getattr = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"
    return is_getattr and not isinstance(node.args[1], ast.Constant)


def _words(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@cache
def fields_written() -> tuple[frozenset[tuple[str, str]], frozenset[str], frozenset[str]]:
    """Class and field of each keyword; classes that are called with `**`; and every word that may be such a field."""
    nodes = [node for file, tree in trees().items() if file.parts[0] in WRITERS for node in ast.walk(tree)]
    calls = [(ast.unparse(node.func).rpartition(".")[2], node) for node in nodes if isinstance(node, ast.Call)]
    keywords = {(name, keyword.arg) for name, call in calls for keyword in call.keywords if keyword.arg}
    starred = {name for name, call in calls if any(keyword.arg is None for keyword in call.keywords)}
    words = _words(nodes) | {name for _, name in keywords} | _attributes_of_structs(nodes)
    return frozenset(keywords), frozenset(starred), frozenset(words)


def _attributes_of_structs(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}


def is_written(event: str, name: str) -> bool:
    keywords, starred, words = fields_written()
    return bool({(event, name), ("replace", name)} & keywords) or (event in starred and name in words)


@pytest.mark.parametrize(("event", "name"), FIELDS, ids=lambda value: getattr(value, "__name__", value))
def test_a_field_is_written_and_read(event: type[Event], name: str) -> None:
    assert is_written(event.__name__, name) or (event.__name__, name) in BY_DEFAULT, (
        f"nothing in {', '.join(WRITERS)} writes {event.__name__}({name}=...); write it or remove the field"
    )
    if (event.__name__, name) not in FOR_PEOPLE:
        assert name in names_read(), f"no rule and no report reads .{name}; remove {event.__name__}.{name}"


def test_no_exception_is_out_of_date() -> None:
    fields = {(event.__name__, name) for event, name in FIELDS}
    assert fields >= {*FOR_PEOPLE, *BY_DEFAULT}, "a field is gone: remove it from FOR_PEOPLE or BY_DEFAULT"
