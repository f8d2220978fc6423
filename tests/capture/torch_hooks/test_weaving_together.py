"""Several watches and several functions of one name do not get into each other's way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from unstuck.capture import watching
from unstuck.events import Forward
from unstuck.record import read


def test_classes_of_one_name_are_all_put_back(tmp_path: Path) -> None:
    def make() -> type[nn.Module]:
        class Net(nn.Linear):
            def zero_grad(self, set_to_none: bool = True) -> None:
                super().zero_grad(set_to_none)

        return Net

    classes = [make(), make()]
    before = [kind.zero_grad.__code__ for kind in classes]
    with watching(tmp_path / "run"):
        for kind in classes:
            model = kind(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(2):
                model.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
    assert [kind.zero_grad.__code__ for kind in classes] == before


def test_a_watch_inside_a_watch_that_rests_blinds_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstuck.capture.window.BUDGET", 1e9)  # a busy machine records no fewer windows
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(4, 2)).pow(2).mean().backward()
            optimizer.step()

    with watching(tmp_path / "outer"):
        train(55)  # from the fiftieth on, windows are recorded now and then
        with watching(tmp_path / "inner"):
            train(20)
        train(100)
    late = [event.step for event in read(tmp_path / "outer").of(Forward) if event.step > 80]
    assert late
    assert list(read(tmp_path / "inner").of(Forward))
