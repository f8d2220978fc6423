"""What M03 puts in place of a kept loss bears everything that the script does with it later."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.lint.engine import lint
from unstuck.lint.fixes import SAFE, fix_all, write
from unstuck.lint.settings import Settings

SCRIPT = """
import numpy as np
import torch
import torch.nn.functional as F

torch.manual_seed(0)
model = torch.nn.Linear(3, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(8, 3), torch.randint(0, 5, (8,))
losses, total = [], 0
for step in range(3):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    {kept}
{later}
"""


@pytest.mark.parametrize(
    ("kept", "later", "wanted"),
    [
        ("losses.append(loss)", "print(np.mean([one.item() for one in losses]))", "losses.append(loss.detach())"),
        ("total += loss", "mean = total / 3\nprint(mean.item())", "total += loss.detach()"),
        ("total += loss", "print((total / 3).item())", "total += loss.detach()"),
        ("losses.append(loss)", "print(torch.stack(losses).mean())", "losses.append(loss.detach())"),
        ("total += loss", "print(f'{total / 3:.3f}', total)", "total += loss.item()"),
        ("losses.append(loss)", "print(sum(losses) / len(losses))", "losses.append(loss.item())"),
        ("losses.append(loss)", "print(np.mean(losses))", "losses.append(loss.item())"),
    ],
)
def test_the_fix_bears_later_use(kept: str, later: str, wanted: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(kept=kept, later=later), encoding="utf-8")
    files, problems = fix_all(lint([str(path)], Settings()), Settings(), SAFE)
    assert not problems
    for file in files:
        write(file)
    text = path.read_text(encoding="utf-8")
    assert wanted in text
    exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
