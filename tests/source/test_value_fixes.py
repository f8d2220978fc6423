"""The edits of the rules about predictions, targets and formulas, applied by `unstuck lint --fix`."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.cli import main

SCRIPT = """
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
x, y = torch.randn(8, 4), torch.rand(8, 3)
labels = torch.randint(0, 3, (8,))
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
for step in range(3):
    scores = model(x)
    {line}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

LINES = {
    "O13": ("loss = F.binary_cross_entropy_with_logits(scores.sigmoid(), y)",
            "loss = F.binary_cross_entropy_with_logits(scores, y)"),
    "O13 fused": ("loss = F.binary_cross_entropy(torch.sigmoid(scores + 1), y)",
                  "loss = F.binary_cross_entropy_with_logits((scores + 1), y)"),
    "O16": ("loss = F.nll_loss(scores, labels)", "loss = F.cross_entropy(scores, labels)"),
    "O16 softmax": ("loss = F.nll_loss(scores.softmax(1), labels)", "loss = F.nll_loss(scores.log_softmax(1), labels)"),
    "M07": ("loss = F.cross_entropy(torch.tanh(scores), labels)", "loss = F.cross_entropy(scores, labels)"),
    "M08": ("loss = F.binary_cross_entropy_with_logits(y, scores)",
            "loss = F.binary_cross_entropy_with_logits(scores, y)"),
    "G15 softmax": ("loss = -torch.log(F.softmax(scores, dim=1)).mean()",
                    "loss = -F.log_softmax(scores, dim=1).mean()"),
    "G15 sigmoid": ("loss = -(1 - torch.sigmoid(scores)).log().mean()", "loss = -F.logsigmoid(-scores).mean()"),
    "G15 softplus": ("loss = torch.log1p(torch.exp(-scores)).mean()", "loss = F.softplus(-scores).mean()"),
}  # fmt: skip
UNSAFE = {
    "M02": ("loss = F.nll_loss(F.log_softmax(scores, dim=0), labels)",
            "loss = F.nll_loss(F.log_softmax(scores, dim=1), labels)"),
    "M02 implicit": ("loss = F.nll_loss(F.log_softmax(scores), labels)",
                     "loss = F.nll_loss(F.log_softmax(scores, dim=-1), labels)"),
    "G15 root": ("loss = torch.sqrt(((scores - y) ** 2).sum(1)).mean()",
                 "loss = torch.sqrt(((scores - y) ** 2).sum(1) + 1e-8).mean()"),
}  # fmt: skip


def fixed(folder: Path, line: str, flag: str, before: str = "") -> str:
    path = folder / "train.py"
    path.write_text(SCRIPT.format(line=line, before=before), encoding="utf-8")
    main(["lint", str(path), flag, "--fail-on", "never"])
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", LINES)
def test_what_only_removes_the_mistake_is_done_by_fix(name: str, tmp_path: Path) -> None:
    line, wanted = LINES[name]
    assert fixed(tmp_path, line, "--fix") == SCRIPT.format(line=wanted, before="")


@pytest.mark.parametrize("name", UNSAFE)
def test_what_must_be_looked_at_is_left_to_unsafe_fixes(name: str, tmp_path: Path) -> None:
    line, wanted = UNSAFE[name]
    assert fixed(tmp_path, line, "--fix") == SCRIPT.format(line=line, before="")
    assert fixed(tmp_path, line, "--unsafe-fixes") == SCRIPT.format(line=wanted, before="")


def test_a_loss_object_is_renamed_where_it_is_made(tmp_path: Path) -> None:
    before = "criterion = nn.NLLLoss(ignore_index=2)"
    text = fixed(tmp_path, "loss = criterion(scores, labels)", "--fix", before)
    assert "criterion = nn.CrossEntropyLoss(ignore_index=2)" in text


def test_a_loss_object_that_is_right_elsewhere_is_not_renamed(tmp_path: Path) -> None:
    line = "loss = criterion(scores, labels) + criterion(scores.log_softmax(1), labels)"
    before = "criterion = nn.NLLLoss()"
    assert fixed(tmp_path, line, "--fix", before) == SCRIPT.format(line=line, before=before)


def test_a_logarithm_of_another_base_is_not_rewritten(tmp_path: Path) -> None:
    line = "loss = -torch.log2(F.softmax(scores, dim=1)).mean()"
    assert fixed(tmp_path, line, "--unsafe-fixes") == SCRIPT.format(line=line, before="")


@pytest.mark.parametrize(
    "line", ["loss = F.nll_loss(model.softmax(scores), labels)", "loss = -torch.log(model.softmax(scores)).mean()"]
)
def test_an_attribute_that_happens_to_be_called_softmax_is_not_renamed(line: str, tmp_path: Path) -> None:
    before = "model.softmax = nn.Softmax(dim=1)"
    assert fixed(tmp_path, line, "--unsafe-fixes", before) == SCRIPT.format(line=line, before=before)
