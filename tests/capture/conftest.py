"""Runs a piece of training under watch and hands back its record."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from unstuck.capture import watching
from unstuck.record import Record, read

Recorded = Callable[..., Record]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """`recorded(function)` runs the function under watch; `raises` names the exception it must end with."""
    numbers = itertools.count()

    def run(function: Callable[[], object], raises: type[Exception] | None = None) -> Record:
        folder = tmp_path / f"run{next(numbers)}"
        with pytest.raises(raises) if raises else contextlib.nullcontext(), watching(folder):
            function()
        return read(folder)

    return run


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
