"""A softmax in model.py, a loss in losses.py, a loop in train.py."""

from __future__ import annotations

from pathlib import Path

from unstuck.judge import judge
from unstuck.source import read_script

PROJECT = Path(__file__).parent / "cases" / "project"

TRAIN = """
import torch
from engine import Engine
from losses import make_criterion
from model import TextClassifier

torch.manual_seed(0)
model = TextClassifier(100, 4)
engine = Engine(model, torch.optim.Adam(model.parameters()), make_criterion())
for step in range(100):
    engine.step(torch.randint(0, 100, (40,)), torch.arange(0, 40, 10), torch.randint(0, 4, (4,)))
"""


def test_the_finding_names_the_file_of_the_softmax_and_the_line_of_the_loss(tmp_path: Path) -> None:
    for file in PROJECT.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    train = tmp_path / "train.py"
    train.write_text(TRAIN, encoding="utf-8")
    (diagnosis,) = judge(scripts=(read_script(train),)).diagnoses
    assert diagnosis.lead.code == "O12"
    assert diagnosis.lead.place is not None
    assert Path(diagnosis.lead.place.path).name == "model.py"
    assert diagnosis.lead.place.line == 8
    assert [Path(place.path).name for place in diagnosis.lead.related] == ["engine.py"]
