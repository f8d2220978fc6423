"""Findings, scripts and records made by hand, for tests that need no engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unstuck.events import Event, Gauges, Place, RunEnded, RunStarted
from unstuck.findings import Confidence, Evidence, Finding, Fix, Severity, Subject, Verify, Witness
from unstuck.record import Record
from unstuck.rule import Rule


def make_finding(
    code: str = "O12",
    *,
    witness: Witness = Witness.SOURCE,
    line: int | None = 5,
    path: str = "train.py",
    subject: str = "cross_entropy",
    severity: Severity = Severity.ERROR,
    **more: Any,
) -> Finding:
    fields: dict[str, Any] = {
        "confidence": Confidence.CERTAIN,
        "message": "The loss gets probabilities, not logits.",
        "cause": "The loss applies log-softmax itself.",
        "fix": Fix("Remove the softmax."),
        "place": None if line is None else Place(path, line),
        "docs": f"unstuck explain {code}",
    }
    return Finding(
        code=code,
        name=NAMES.get(code, "some-rule"),
        severity=severity,
        witness=witness,
        subject=Subject("loss", subject),
        **{**fields, **more},
    )


NAMES = {"O12": "double-softmax", "O03": "loss-detached", "G10": "non-finite"}


def make_rule(code: str = "O12", severity: Severity = Severity.ERROR, **more: Any) -> Rule:
    return Rule(code, NAMES.get(code, "some-rule"), "softmax before CrossEntropyLoss", severity, **more)


def make_record(
    *events: Event, script: str = "train.py", losses: tuple[float, ...] = (), ended: bool = True, **start: Any
) -> Record:
    gauges = [Gauges(step=index + 1, loss=value) for index, value in enumerate(losses)]
    ending = [RunEnded(steps=len(losses), seconds=12.34)] if ended else []
    return Record(Path("events.jsonl"), (RunStarted(script=script, **start), *events, *gauges, *ending), not ended)


class FakeScript:
    """As much of a Script as the judge touches."""

    def __init__(self, path: str = "train.py", ignored_lines: tuple[int, ...] = ()) -> None:
        self.path = path
        self.lines: list[str] = []
        self._ignored = ignored_lines

    def ignored(self, line: int, code: str, name: str) -> bool:
        return line in self._ignored


SCRIPT = """import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(self.head(x), dim=1)

def train(model, loader, criterion):
    for x, y in loader:
        loss = criterion(model(x), y)
"""


def detailed_finding() -> Finding:
    """One with everything a report can show."""
    return make_finding(
        witness=Witness.RUN,
        message="cross_entropy got probabilities in all 640 calls: every row of its input sums to 1.",
        cause="cross_entropy applies log-softmax itself, so a softmax before it leaves a fifth of the gradient.",
        fix=Fix("Return self.head(x) and leave the softmax to the loss."),
        place=Place("train.py", 5, 16, 5, 50, "Net.forward"),
        related=(Place("train.py", 9, 16, 9, 38, "train"),),
        evidence=(
            Evidence("gradient kept", 0.1934, "of the right one", 0.5),
            Evidence("lowest loss", 1.4612),
            Evidence("layers", [f"layer{index}" for index in range(9)]),
            Evidence("calls", 12640),
        ),
        verify=Verify("unstuck run train.py --epochs 3", "no O12 double-softmax"),
    )


def finds(*findings: Finding) -> Any:
    """A witness that always says the same."""

    def witness(_seen: object) -> Iterator[Finding]:
        yield from findings

    return witness
