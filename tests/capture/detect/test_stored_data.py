"""Arrays of data sets are compared without running the program's code, and missing values are not taken for changes."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Dataset, Subset

from unstuck.capture.detect import stored_data
from unstuck.capture.detect.stored_data import changed, samples_of


class Stored(Dataset[Any]):
    def __init__(self, values: Any) -> None:
        self.values = values


def with_missing_values() -> torch.Tensor:
    values = torch.randn(40, 10)
    values[::3, 2] = float("nan")
    return values


@pytest.mark.parametrize("make", [lambda: torch.randn(40, 10), with_missing_values, lambda: numpy.ones((40, 10))])
@pytest.mark.parametrize("large", [2**24, 300], ids=["whole", "in blocks"])
def test_only_what_is_overwritten_is_changed(make: Any, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_data, "_LARGE", large)
    data = Subset(Stored(make()), [0, 1])
    before = samples_of(data)
    assert list(before) == ["values"]
    assert changed(before, samples_of(data)) == ""
    data.dataset.values[1:] *= 2  # type: ignore[attr-defined]
    assert changed(before, samples_of(data)) == "values"


def test_a_value_that_goes_missing_is_a_change() -> None:
    data = Stored(with_missing_values())
    before = samples_of(data)
    data.values[0, 0] = float("nan")
    assert changed(before, samples_of(data)) == "values"


def test_no_code_of_the_program_is_called() -> None:
    class Lazy:
        __slots__ = ()

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

    class Strict:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

    assert samples_of(Lazy()) == samples_of(Strict()) == {}
