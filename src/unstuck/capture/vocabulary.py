"""The words behind numbers: texts of token ids, and names of classes, as the main module of the program knows them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator
from types import ModuleType
from typing import Any

from torch import Tensor, nn

MOST_LETTERS = 400
FEWEST_WORDS = 10
"""A table with fewer entries is no vocabulary."""
LIBRARIES = frozenset({"transformers", "tokenizers", "tiktoken", "sentencepiece"})
"""Their `decode` does nothing but decode, so that it may be called inside a run."""
OF_WORDS = re.compile(r"itos|vocab|i(d|dx)?2|chars|words|tokens", re.I)
OF_CLASSES = re.compile(r"label|class|target", re.I)


def decoded(ids: list[int]) -> str:
    """The text of token ids, if the main module has a tokenizer, a table or a function `decode` for them."""
    return _first_text(_decoders(), ids) or looked_up(ids)


def looked_up(ids: list[int]) -> str:
    """The same without calling anything that the program defines."""
    return _first_text(_libraries(), ids) or next((text for text in _by_tables(ids) if text), "")


def class_names() -> tuple[str, ...]:
    """Those of a data set that the main module holds, as data sets of torchvision keep them."""
    for value in _globals().values():
        for owner in (value, _own(value).get("dataset")):
            names = _own(owner).get("classes", vars(type(owner)).get("classes"))
            if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
                return tuple(name[:40] for name in names[:200])
    return ()


def _first_text(decoders: Iterator[Callable[[list[int]], Any]], ids: list[int]) -> str:
    for decode in decoders if len(ids) > 1 else ():
        try:
            text = decode(ids)
        except Exception:
            continue
        if isinstance(text, str) and text:
            return text[:MOST_LETTERS]
    return ""


def _globals() -> dict[str, Any]:
    """What the main module holds, but for modules, classes and tensors."""
    left_out = (ModuleType, type, Tensor)
    return {
        name: value for name, value in vars(sys.modules["__main__"]).items() if not issubclass(type(value), left_out)
    }


def _own(value: Any) -> dict[str, Any]:
    """The attributes of an object, without asking it."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _decoders() -> Iterator[Callable[[list[int]], Any]]:
    names = _globals()
    if callable(names.get("decode")):
        yield names["decode"]
    for value in names.values():
        if not issubclass(type(value), str | bytes | nn.Module) and callable(getattr(type(value), "decode", None)):
            yield value.decode


def _libraries() -> Iterator[Callable[[list[int]], Any]]:
    for value in _globals().values():
        kind = type(value)
        if kind.__module__.split(".")[0] in LIBRARIES and callable(getattr(kind, "decode", None)):
            yield value.decode


def _by_tables(ids: list[int]) -> Iterator[str]:
    wanted = set(ids)
    names = _globals()
    held = ((name, part) for value in names.values() for name, part in _own(value).items())
    for name, table in [*names.items(), *held] if len(ids) > 1 else ():
        if type(table) in (dict, list, tuple) and len(table) >= FEWEST_WORDS and not OF_CLASSES.search(name):
            words = _words(name, table, wanted)
            if words:
                between = "" if all(len(word) == 1 for word in words.values()) else " "
                yield between.join(words[one] for one in ids)[:MOST_LETTERS]


def _words(name: str, table: Any, wanted: Collection[int]) -> dict[int, str]:
    """The wanted entries of a table from ids to words, or from words to ids; nothing if it is another table."""
    if isinstance(table, dict):
        if all(type(table.get(one)) is str for one in wanted):
            return {one: table[one] for one in wanted}
        is_vocabulary = all(type(word) is str for word in table) and _numbers_all(table.values())
        found = {one: word for word, one in table.items() if one in wanted} if is_vocabulary else {}
        return found if len(found) == len(wanted) else {}
    fits = OF_WORDS.search(name) and min(wanted) >= 0 and max(wanted) < len(table)
    return {one: table[one] for one in wanted} if fits and all(type(table[one]) is str for one in wanted) else {}


def _numbers_all(ids: Collection[Any]) -> bool:
    """Does each number from 0 on come once?"""
    return all(type(one) is int for one in ids) and set(ids) == set(range(len(ids)))
