"""What the variables of the program hold: loaders, data sets and tables, by the names they have."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from unstuck.capture.places import Places

DEEPEST = 2
MOST_VARIABLES = 4_000
MOST_INSIDE = 64
FEWEST = 30
"""Rows of a table of examples."""
EVALUATES = re.compile(
    r"(^|_|\W)(val|valid|validation|test|testing|dev|eval|evaluation|held_?out|hold_?out)s?($|_|\d|\W)"
    r"|^[xy]_?(te|va|val|ts|tst|test|dev)$|^(te|va)_|_(te|va|tst)$"
    r"|(^|_|\W)(val|valid|test|dev|eval)_?(set|data|dataset|loader|dataloader|dl|ds|x|y|inputs|labels|targets)",
    re.I,
)
"""Names of what is evaluated on."""
TRAINS = re.compile(r"(^|_|\W)(train|training)(_?(set|data|dataset|loader|dataloader|dl|ds))?($|_|\d|\W)", re.I)


def is_of_evaluation(name: str) -> bool:
    """Does the name say so?"""
    return any(EVALUATES.search(part) and not TRAINS.search(part) for part in _parts(name))


def is_of_training(name: str) -> bool:
    """Does the name say so? `train_eval_loader` holds training data, to know how right the model is on these."""
    return not is_of_evaluation(name) and any(TRAINS.search(part) for part in _parts(name))


def _parts(name: str) -> list[str]:
    """Of `data['val'].inputs`: `data`, `val`, `inputs`."""
    return [part for part in re.split(r"[^\w-]+", name) if part]


class Variables:
    """Those of the user's frames, innermost first, with the attributes and entries of what they hold."""

    def __init__(self, places: Places) -> None:
        self.loaders: dict[int, tuple[str, DataLoader[Any]]] = {}
        self.sets: dict[int, tuple[str, Dataset[Any]]] = {}
        self.tables: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, value in self._all(places):
            if isinstance(value, DataLoader):
                self.loaders.setdefault(id(value), (name, value))
            elif isinstance(value, Dataset):
                self.sets.setdefault(id(value), (name, value))
            elif (table := _table(value)) is not None and id(value) not in seen and name not in self.tables:
                self.tables[name] = table
                seen.add(id(value))

    @staticmethod
    def _all(places: Places) -> Iterator[tuple[str, Any]]:
        left = MOST_VARIABLES
        main = getattr(sys.modules.get("__main__"), "__dict__", {})
        for names in (*_scopes(places), main):
            for name, value in list(names.items()):
                for found in _inside(name, value, DEEPEST):
                    left -= 1
                    if left < 0:
                        return
                    yield found


def _scopes(places: Places) -> Iterator[dict[str, Any]]:
    frame: FrameType | None = sys._getframe(1)
    modules: list[dict[str, Any]] = []
    while frame is not None:
        if places.is_users(frame.f_code):
            if frame.f_locals is not frame.f_globals:
                yield dict(frame.f_locals)
            if all(frame.f_globals is not known for known in modules):
                modules.append(frame.f_globals)
        frame = frame.f_back
    yield from modules


def _inside(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if name.startswith("__"):
        return
    yield name, value
    if depth == 0 or isinstance(value, Tensor | type | DataLoader | torch.nn.Module):
        return
    if type(value) in (list, tuple) and len(value) <= 8:
        items = [(f"{name}[{index}]", item) for index, item in enumerate(value)]
    elif type(value) is dict and len(value) <= MOST_INSIDE:
        items = [(f"{name}[{key!r}]", item) for key, item in value.items() if isinstance(key, str)]
    else:
        # Without a call of the program's own code, such as its `__getattr__`.
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return
        own = type(attributes) is dict and _is_of_user(value) and not isinstance(value, Dataset)
        items = [(f"{name}.{key}", item) for key, item in list(attributes.items())[:MOST_INSIDE]] if own else []
    for inner, item in items:
        yield from _inside(inner, item, depth - 1)


def _is_of_user(value: Any) -> bool:
    module = sys.modules.get(type(value).__module__)
    file = getattr(module, "__file__", None) or ""
    is_library = "site-packages" in file or type(value).__module__ in sys.stdlib_module_names
    return not is_library and not isinstance(value, type(sys)) and type(value).__module__.split(".")[0] != "unstuck"


def _table(value: Any) -> Tensor | None:
    """A tensor or an array of numbers with many rows."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray and value.dtype.kind in "fiub":
        if value.ndim == 0 or len(value) < FEWEST or value.dtype.itemsize > 8:
            return None
        try:
            return torch.from_numpy(value if value.flags.writeable else value.copy())
        except (TypeError, ValueError):
            return None
    is_table = type(value) is Tensor and value.dim() > 0 and not value.requires_grad and not value.is_sparse
    return value if is_table and len(value) >= FEWEST and not value.is_meta and not value.is_complex() else None
