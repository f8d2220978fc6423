"""Observing `tensor[...]` changes nothing that a program can see, and ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from unstuck.capture.guard import Guard
from unstuck.capture.torch_hooks import indexing
from unstuck.capture.torch_hooks.patches import Patches


@pytest.fixture
def patches() -> Any:
    made = Patches(Guard(lambda text: None))
    yield made
    made.remove()
    assert "__getitem__" not in Tensor.__dict__


def test_what_is_picked(patches: Patches) -> None:
    own = Tensor.__getitem__
    picked: list[tuple[int, Any]] = []
    patches.around_indexing(lambda tensor, index, result: picked.append((len(tensor), index)))
    rows = torch.arange(5)
    assert rows[1:3].tolist() == [1, 2]
    assert rows[2] == 2
    assert rows[[4, 0]].tolist() == [4, 0]
    assert Tensor.__getitem__ is own
    patches.leave_indexing()
    rows[1:2]
    assert picked == [(5, slice(1, 3)), (5, [4, 0])]


def test_errors_are_those_of_torch(patches: Patches) -> None:
    patches.around_indexing(lambda *_: None)
    with pytest.raises(IndexError, match="out of bounds"):
        torch.arange(3)[torch.tensor([7])]


def test_subclasses_and_function_handlers(patches: Patches) -> None:
    asked: list[Any] = []

    class Own(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(func)
            handle: Any = super().__torch_function__
            return handle(func, types, args, kwargs or {})

    picked: list[Any] = []
    patches.around_indexing(lambda *given: picked.append(given))
    torch.arange(4).as_subclass(Own)[1:]
    assert asked == [Tensor.__getitem__]
    assert picked == []


def test_it_ends_by_itself(patches: Patches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "_MOST_CALLS", 3)
    patches.around_indexing(lambda *_: None)
    rows = torch.arange(4)
    assert [int(rows[1]) for _ in range(5)] == [1] * 5
    assert "__getitem__" not in Tensor.__dict__
