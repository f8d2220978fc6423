from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_scripts import Command


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that looks for one mistake, so that rules yet to be written do not join in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.unstuck]\nselect = ["O12"]\n')
    return tmp_path


@pytest.fixture
def python_module() -> Command:
    """`python -m WORDS`, with our own errors swallowed as for a user."""

    def command(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if name != "UNSTUCK_RAISE"}
        return subprocess.run(
            [sys.executable, "-m", *words],
            env={**variables, "PYTHONUTF8": "1"},
            input=text,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=120,
        )

    return command
