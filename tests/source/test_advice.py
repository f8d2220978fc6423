"""Advice is told, and only where it is due: the cases of `test_cases` let any advice pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.judge import judge
from unstuck.source import read_script

CASES = Path(__file__).parent / "cases"
QUIET = {
    "o20_result_is_read.py": "O20",
    "m04_order_is_fine.py": "M04",
    "one_epoch_for_both.py": "M04",
    "o05_modes_restored.py": "R06",
}
LIBRARY = """
import torch


def fit(model, loader, criterion, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
"""
MAIN = """
import torch
from torch import nn
from library import fit{imported}


def main():
    fit(nn.Linear(4, 1), [(torch.randn(8, 4), torch.randn(8, 1))], nn.MSELoss(), 3)


if __name__ == "__main__":
    {seeding}main()
"""


def codes(path: Path) -> list[str]:
    return [diagnosis.lead.code for diagnosis in judge(scripts=(read_script(path),)).diagnoses]


@pytest.mark.parametrize(("name", "code"), QUIET.items())
def test_look_alikes_get_no_advice(name: str, code: str) -> None:
    assert code not in codes(CASES / "healthy" / name)


def test_a_library_needs_no_seed_but_the_script_that_trains_with_it_does(tmp_path: Path) -> None:
    library, main = tmp_path / "library.py", tmp_path / "main.py"
    library.write_text(LIBRARY, encoding="utf-8")
    main.write_text(MAIN.format(imported="", seeding=""), encoding="utf-8")
    assert codes(library) == []
    (diagnosis,) = judge(scripts=(read_script(main),)).diagnoses
    assert diagnosis.lead.code == "R06"
    assert diagnosis.lead.place is not None
    assert Path(diagnosis.lead.place.path).name == "main.py"


def test_a_seed_fixed_in_another_file_counts(tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(LIBRARY + "\n\ndef fix_seed():\n    torch.manual_seed(0)\n", encoding="utf-8")
    main = tmp_path / "main.py"
    main.write_text(MAIN.format(imported=", fix_seed", seeding="fix_seed()\n    "), encoding="utf-8")
    assert codes(main) == []
