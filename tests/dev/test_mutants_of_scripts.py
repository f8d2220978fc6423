"""bench/mutants.py: what it changes, and which part it says that is."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "bench" / "mutants.py"
SCRIPT = """
import torch
from torch import nn


def points(size):
    x = torch.randn(size, 4)
    y = (x[:, 1:3].sum(1) > 0.5).long()
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(4, 2)

    def forward(self, x):
        h = self.layers(x[:, :4] - 1.0).transpose(0, 1)
        return h.softmax(1).T


def accuracy(model, x, y):
    return (model(x).argmax(1) == y).float().mean()


x, y = points(100)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    loss = nn.functional.cross_entropy(model(x), y * (y >= 0))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_mutants", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def source(bench: ModuleType, tmp_path: Path) -> object:
    path = tmp_path / "net.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return bench.Source(path)


def test_mutants_are_other_programs_and_the_same_for_the_same_seed(bench: ModuleType, source: object) -> None:
    found = list(bench.mutants([source], 3))
    assert found == list(bench.mutants([source], 3))
    assert len({mutant.source for mutant in found}) > 25
    for mutant in found:
        assert ast.dump(ast.parse(mutant.source)) != ast.dump(ast.parse(SCRIPT))
        assert mutant.before != mutant.after
    assert {mutant.operator for mutant in found} == {operator.__name__ for operator in bench.OPERATORS}


def test_what_evaluates_is_left_alone(bench: ModuleType, source: object) -> None:
    lines = SCRIPT.splitlines()
    begin = lines.index("def accuracy(model, x, y):") + 1
    changed = {mutant.line for mutant in bench.mutants([source], 0)}
    assert not changed & {begin, begin + 1}


def test_parts_go_by_lines(bench: ModuleType, source: object) -> None:
    lines = SCRIPT.splitlines()

    def part(text: str) -> str:
        number = next(i for i, line in enumerate(lines, 1) if text in line)
        return str(source.part(number))  # type: ignore[attr-defined]

    assert part("torch.randn") == "data"
    assert part("transpose") == "model"
    assert part("cross_entropy") == "loss"
    assert part("SGD") == "update"
    assert part("loss.backward()") == "update"


def test_originals_say_how_they_did(bench: ModuleType) -> None:
    for name, outcome in bench.OUTCOMES.items():
        assert (bench.HEALTHY / f"{name}.py").is_file()
        assert outcome.margin > 0
    assert len(bench.OUTCOMES) == 20
    assert bench.error_of("mlp", "epoch 1: validation accuracy 60.0%\nepoch 2: validation accuracy 97.0%") == 3
    assert bench.error_of("mlp", "epoch 1: validation accuracy nan%") == float("inf")


def test_the_first_diagnosis_is_judged_by_its_place(bench: ModuleType, source: object) -> None:
    mutant = next(one for one in itertools.islice(bench.mutants([source], 0), 200) if one.part == "model")

    def kind(line: int | None, code: str = "O12", key: str = "") -> str:
        place = None if line is None else {"line": line}
        return str(bench.kind_of({"code": code, "place": place, "subject": {"key": key}}, mutant, source))

    assert kind(mutant.line) == "cause"
    assert kind(SCRIPT.splitlines().index("        super().__init__()") + 1) == "cornered"
    assert kind(None, "P21", "data and model") == "cornered"
    assert kind(None, "P21", "loss") == "else"
    assert kind(None) == "else"
