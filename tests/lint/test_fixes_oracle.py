"""Edits made to text are the same changes made to the syntax tree, on code of the standard library."""

from __future__ import annotations

import ast
import random
import sysconfig
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from unstuck.source import Project, Script
from unstuck.source.edits.edit import Editor, Edits, apply

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
MODULES = sorted(path for path in LIBRARY.glob("*.py") if path.stat().st_size < 12_000)
CHANGES_PER_MODULE = 6
Change = Callable[[Editor, random.Random], tuple[Edits | None, Callable[[], object]] | None]


def test_there_is_something_to_try() -> None:
    assert len(MODULES) > 20


@pytest.mark.parametrize("seed", range(4))
def test_edits_do_to_the_text_what_is_meant(seed: int) -> None:
    chance = random.Random(seed)
    made = 0
    for path in chance.sample(MODULES, 20):
        text = path.read_text(encoding="utf-8")
        for _ in range(CHANGES_PER_MODULE):
            made += _change_and_compare(text, chance)
    assert made > 20


def _change_and_compare(text: str, chance: random.Random) -> bool:
    tree = _parsed(text)
    change = chance.choice(CHANGES)
    tried = change(Editor(Script("library.py", text, tree, Project())), chance)
    if tried is None or tried[0] is None:
        return False
    edits, mutate = tried
    result = _parsed(apply(text, edits))
    mutate()
    assert ast.dump(result) == ast.dump(tree), (change.__name__, edits)
    return True


def _parsed(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _block(tree: ast.Module, chance: random.Random) -> list[ast.stmt]:
    names = ("body", "orelse", "finalbody")
    fields = [getattr(node, name, None) for node in ast.walk(tree) for name in names]
    return chance.choice([field for field in fields if isinstance(field, list) and field])


def _call(tree: ast.Module, chance: random.Random, fits: Callable[[ast.Call], bool]) -> ast.Call | None:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and fits(node)]
    return chance.choice(calls) if calls else None


def _has_plain_argument(call: ast.Call) -> bool:
    return bool(call.args) and not isinstance(call.args[0], ast.Starred | ast.GeneratorExp)


def _put(tree: ast.Module, old: ast.expr, new: ast.expr) -> None:
    """Put another node where one stands."""
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if value is old:
                setattr(node, name, new)
                return
            if isinstance(value, list) and any(item is old for item in value):
                setattr(node, name, [new if item is old else item for item in value])
                return


def insert(on: Editor, chance: random.Random) -> tuple[Edits | None, Callable[[], object]]:
    block = _block(on.tree, chance)
    at, after = chance.randrange(len(block)), chance.random() < 0.5
    edits = (on.insert_after if after else on.insert_before)(block[at], "pass")
    return edits, lambda: block.insert(at + after, ast.Pass())


def delete(on: Editor, chance: random.Random) -> tuple[Edits | None, Callable[[], object]]:
    block = _block(on.tree, chance)
    statement = chance.choice(block)
    return on.delete(statement), lambda: block.remove(statement)


def move(on: Editor, chance: random.Random) -> tuple[Edits | None, Callable[[], object]]:
    block = _block(on.tree, chance)
    statement, target, after = chance.choice(block), chance.choice(block), chance.random() < 0.5

    def mutate() -> None:
        block.remove(statement)
        block.insert(block.index(target) + after, statement)

    return (on.move_after if after else on.move_before)(statement, target), mutate


def wrap(on: Editor, chance: random.Random) -> tuple[Edits | None, Callable[[], object]] | None:
    call = _call(on.tree, chance, _has_plain_argument)
    if call is None:
        return None
    node = chance.choice([call, call.args[0]])
    divided = ast.BinOp(node, ast.Div(), ast.Name("n", ast.Load()))
    return on.wrap(node, "{} / n"), lambda: _put(on.tree, node, divided)


def unwrap(on: Editor, chance: random.Random) -> tuple[Edits | None, Callable[[], object]] | None:
    call = _call(on.tree, chance, _has_plain_argument)
    return (on.unwrap(call, call.args[0]), lambda: _put(on.tree, call, call.args[0])) if call else None


def set_keyword(on: Editor, chance: random.Random) -> tuple[Edits | None, Callable[[], object]] | None:
    call = _call(on.tree, chance, lambda call: True)
    keyword = ast.keyword("new", ast.Constant(1))
    return (on.set_keyword(call, "new", "1"), lambda: call.keywords.append(keyword)) if call else None


def remove_keyword(on: Editor, chance: random.Random) -> tuple[Edits | None, Callable[[], object]] | None:
    call = _call(on.tree, chance, lambda call: any(keyword.arg for keyword in call.keywords))
    if call is None:
        return None
    keyword = chance.choice([keyword for keyword in call.keywords if keyword.arg])
    return on.remove_keyword(call, keyword.arg or ""), lambda: call.keywords.remove(keyword)


def remove_element(on: Editor, chance: random.Random) -> tuple[Edits | None, Callable[[], object]] | None:
    call = _call(on.tree, chance, _has_plain_argument)
    return (on.remove_element(call.args[0]), lambda: call.args.pop(0)) if call else None


CHANGES: list[Change] = [insert, delete, move, wrap, unwrap, set_keyword, remove_keyword, remove_element]
