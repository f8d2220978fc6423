"""The words behind numbers: texts of token ids, and names of classes, as the main module of the program knows them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from unstuck.capture.preview.predicting import own

MOST_LETTERS = 400
FEWEST_WORDS = 10
MOST_WORDS = 300_000
"""A table with fewer entries, or with more, is not a vocabulary."""
LIBRARIES = frozenset({"transformers", "tokenizers", "tiktoken", "sentencepiece"})
"""Their `decode` does nothing but decode, so that it may be called inside a run."""
OF_WORDS = re.compile(r"itos|vocab|i(d|dx)?2|chars|words|tokens", re.I)
OF_CLASSES = re.compile(r"label|class|target", re.I)
Ids = Sequence[Sequence[int]]


def decoded(rows: Ids) -> list[str]:
    """The texts of token ids, if the main module has a function `decode` or something with a method of that name."""
    return next(filter(None, (_texts(decode, rows) for decode in _decoders())), [])


def words_for(rows: Ids, model: nn.Module) -> list[str]:
    """The texts of token ids without calling anything that the program defines: by a tokenizer of a known library, or
    by a table with as many entries as the model has embeddings. Nothing if tables disagree."""
    sizes = {part.num_embeddings for part in model.modules() if type(part) is nn.Embedding}
    if not sizes or not rows or len(rows[0]) < 2:
        return []
    by_library = next(filter(None, (_texts(decode, rows) for decode in _libraries())), [])
    if by_library:
        return by_library
    found = [texts for texts in _by_tables(rows, sizes) if texts]
    return found[0] if found and all(texts == found[0] for texts in found) else []


def class_names() -> tuple[str, ...]:
    """Those of a data set that the main module holds, as data sets of torchvision keep them."""
    for value in _globals().values():
        for owner in (value, own(value).get("dataset")):
            names = own(owner).get("classes", vars(type(owner)).get("classes"))
            if type(names) in (list, tuple) and names and all(type(name) is str for name in names):
                return tuple(encodable(name[:40]) for name in names[:200])
    return ()


def encodable(text: str) -> str:
    """The text without halves of characters, as names of files may have them."""
    return text.encode("utf-8", "replace").decode()


def _globals() -> dict[str, Any]:
    """What the main module holds, but for modules, classes and tensors."""
    left_out = (ModuleType, type, Tensor)
    names = dict(vars(sys.modules["__main__"]))  # a thread may add to it
    return {name: value for name, value in names.items() if not issubclass(type(value), left_out)}


def _texts(decode: Callable[[list[int]], Any], rows: Ids) -> list[str]:
    try:
        found = [decode(list(row)) for row in rows]
    except Exception:
        return []
    return [encodable(text[:MOST_LETTERS]) for text in found] if all(type(text) is str for text in found) else []


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
        is_known = kind.__module__.split(".")[0] in LIBRARIES and not issubclass(kind, nn.Module)
        if is_known and callable(getattr(kind, "decode", None)):
            yield value.decode


def _by_tables(rows: Ids, sizes: set[int]) -> Iterator[list[str]]:
    wanted = {one for row in rows for one in row}
    names = _globals()
    attributes = ((name, part) for value in names.values() for name, part in list(own(value).items()))
    for name, table in [*names.items(), *attributes]:
        if type(table) not in (dict, list, tuple) or type(name) is not str or OF_CLASSES.search(name):
            continue
        if FEWEST_WORDS <= len(table) <= MOST_WORDS and any(_fits(len(table), size) for size in sizes):
            words = _words(name, table, wanted)
            between = "" if all(len(word) == 1 for word in words.values()) else " "
            yield [encodable(between.join(words[one] for one in row)[:MOST_LETTERS]) for row in rows] if words else []


def _fits(entries: int, embeddings: int) -> bool:
    """Some models round the number of their embeddings up."""
    return entries <= embeddings <= entries + max(64, entries // 100)


def _words(name: str, table: Any, wanted: set[int]) -> dict[int, str]:
    """The wanted entries of a table from ids to words, or from words to ids; nothing if it is another table."""
    if isinstance(table, dict):
        if all(type(table.get(one)) is str for one in wanted):
            return {one: table[one] for one in wanted}
        by_id = {one: word for word, one in list(table.items()) if type(one) is int and type(word) is str}
        numbered = len(by_id) == len(table) and min(by_id, default=1) == 0 and max(by_id) == len(table) - 1
        return {one: by_id[one] for one in wanted} if numbered and wanted <= by_id.keys() else {}
    fits = OF_WORDS.search(name) and min(wanted) >= 0 and max(wanted) < len(table)
    if not fits or not all(type(word) is str for word in table) or len(set(table)) < len(table):
        return {}
    return {one: table[one] for one in wanted}
