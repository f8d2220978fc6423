"""The loops on the page docs/gradient-manager.md: before and after end in the same weights."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unstuck import GradientManager
from unstuck.judge import judge
from unstuck.source import read_script

PAGE = (Path(__file__).parents[2] / "docs" / "gradient-manager.md").read_text(encoding="utf-8")
SETUP = re.findall(r"```python setup\n(.*?)```", PAGE, re.S)[0]
LOOPS = re.findall(r"^## \d+\. (.*?)\n(.*?)(?=^## )", PAGE, re.S | re.M)


def block(section: str, kind: str) -> str:
    (found,) = re.findall(rf"```python {kind}(?: distributed)?\n(.*?)```", section, re.S)
    return str(found)


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(f"{SETUP}\n{code}", "docs/gradient-manager.md", "exec"), names)
    return names


def weights(names: dict[str, Any]) -> Tensor:
    modules = [names["model"], *([names["critic"]] if "critic" in names else [])]
    return torch.cat([parameter.detach().flatten() for module in modules for parameter in module.parameters()])


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port), ("RANK", 0), ("WORLD_SIZE", 1)):
        monkeypatch.setenv(name, str(value))


def test_the_page_has_its_loops() -> None:
    assert len(LOOPS) == 14


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(("title", "section"), LOOPS, ids=[title for title, _ in LOOPS])
def test_before_and_after_train_the_same_weights(title: str, section: str) -> None:
    untrained, before, after = run(""), run(block(section, "before")), run(block(section, "after"))
    # bfloat16 keeps 8 bits: dividing by 3 before the backward pass is not quite dividing by it afterwards.
    tolerance = 1e-3 if "bfloat16" in section else 1e-5
    assert torch.allclose(weights(before), weights(after), rtol=1e-4, atol=tolerance)
    assert not torch.allclose(weights(untrained), weights(before)[: len(weights(untrained))], atol=1e-3)
    managers = [value for value in after.values() if isinstance(value, GradientManager)]
    assert managers
    assert all(manager.steps > 0 for manager in managers)
    if "threshold" in after:
        assert after["threshold"] == pytest.approx(before["threshold"], rel=0.15)


@pytest.mark.parametrize(("title", "section"), LOOPS, ids=[title for title, _ in LOOPS])
def test_lint_has_nothing_to_say_about_a_managed_loop(title: str, section: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{SETUP}\n{block(section, 'after')}", encoding="utf-8")
    assert [it.lead.code for it in judge(scripts=(read_script(script),)).diagnoses] == []


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(("title", "section"), LOOPS, ids=[title for title, _ in LOOPS])
def test_nor_has_a_watched_run(title: str, section: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{SETUP}\n{block(section, 'after')}", encoding="utf-8")
    words = [sys.executable, "-m", "unstuck", "run", script.name]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Nothing found" in done.stderr
