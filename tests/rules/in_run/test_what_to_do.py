"""The change that a report asks for is the one that helps: small scripts whose obvious remedy would not."""

from __future__ import annotations

import contextlib
import textwrap
from pathlib import Path

from unstuck.findings import Finding, Severity
from unstuck.judge import judge
from unstuck.record import read
from unstuck.testing.runs import run_server

START = """
import torch
from torch import nn
torch.manual_seed(0)
inputs, labels = torch.randn(64, 8), torch.randint(0, 3, (64,))
"""


def first_finding(folder: Path, code: str) -> Finding:
    """What the run alone shows first."""
    (folder / "train.py").write_text(START + textwrap.dedent(code))
    run_server().run(str(folder), ["run", "--quiet", "--fail-on", "never", "train.py"])
    with contextlib.chdir(folder):
        record = read(next(Path(".unstuck/runs").iterdir()))
        assert record.crash is None
        return judge(record=record).diagnoses[0].lead


def test_a_warm_up_that_stays_at_zero_is_not_for_want_of_a_rate(tmp_path: Path) -> None:
    code = """
    model = nn.Linear(8, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step // 1000)
    for step in range(40):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    """
    finding = first_finding(tmp_path, code)
    assert finding.code == "O23"
    assert "LambdaLR holds the learning rate of Adam at 0" in finding.message
    assert "it was built with 0.001" in finding.message
    assert "(step + 1) / warmup" in finding.fix.text
    assert finding.place is not None
    assert finding.place.line == 9


def test_a_trainer_that_rebuilds_its_model_needs_a_new_optimizer(tmp_path: Path) -> None:
    code = """
    class Trainer:
        def __init__(self):
            self.model = nn.Linear(8, 3)
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

        def fit(self, steps):
            for step in range(steps):
                loss = nn.functional.cross_entropy(self.model(inputs), labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

    trainer = Trainer()
    trainer.fit(5)
    trainer.model = nn.Linear(8, 3)
    trainer.fit(40)
    """
    finding = first_finding(tmp_path, code)
    assert (finding.code, finding.severity) == ("O02", Severity.ERROR)
    assert "2 of 2 trainable parameters are in no optimizer" in finding.message
    assert "Adam still holds 2 that the model no longer uses" in finding.message
    assert "rebuild it whenever the model is replaced" in finding.fix.text


def test_a_graph_that_is_begun_anew_before_the_loss(tmp_path: Path) -> None:
    code = """
    model = nn.Linear(8, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(40):
        scores = torch.tensor(model(inputs).tolist(), requires_grad=True)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """
    finding = first_finding(tmp_path, code)
    assert finding.code == "O03"
    assert "none of the 2 parameters of the optimizer had a gradient" in finding.message
    assert "torch.tensor" in finding.fix.text
    assert finding.place is not None
    assert finding.place.line == 11
